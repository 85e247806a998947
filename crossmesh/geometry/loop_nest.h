// SPDX-License-Identifier: Apache-2.0
// How the elements of one copy lie on its two ends: nested loops around runs that are
// contiguous on both. It knows bytes and strides, and neither tensors nor buffers.
#pragma once

#include <cstdint>

#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {

// Element (i_0, ..., i_{k-1}, j), with j in [0, run_count), is read at
// `sum_d i_d * source_strides[d] + j * source_element_bytes` and written at
// `sum_d i_d * target_strides[d] + j * target_element_bytes`.
// Strides are in bytes and may be negative or zero on the source; loops are outermost first.
// The two element sizes differ only where the copy converts.
struct LoopNest {
  DimVector counts;
  DimVector source_strides;
  DimVector target_strides;
  std::int64_t run_count = 0;
  std::int32_t source_element_bytes = 1;
  std::int32_t target_element_bytes = 1;

  bool operator==(const LoopNest&) const = default;
};

// What a loop nest is made from: `counts` elements per dimension, at element strides.
struct ElementLoops {
  DimVector counts;
  DimVector source_strides;
  DimVector target_strides;
  std::int32_t source_element_bytes = 1;
  std::int32_t target_element_bytes = 1;
};

// The nest with the longest runs and the fewest loops that visits the same pairs of addresses,
// in row-major order of `loops` or an order that differs by reordering loops only.
// Ensures: every (source, target) address pair of `loops` is visited exactly once.
LoopNest coalesce(const ElementLoops& loops);

// Elements that the nest visits. Ensures: 0 when any count is 0.
std::int64_t element_count(const LoopNest& nest);

// Runs that the nest visits.
std::int64_t run_total(const LoopNest& nest);

}  // namespace crossmesh
