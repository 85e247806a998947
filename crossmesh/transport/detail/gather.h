// SPDX-License-Identifier: Apache-2.0
// Splits a copy with short runs in two: long stretches of the source are read into a buffer, gaps
// and all where they are small, and its elements go from there to the target. It moves nothing.
#pragma once

#include <cstdint>

#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh::detail {

// A stretch is read whole while it has at most this many bytes for each one that is wanted.
inline constexpr std::int64_t kGatherFactor = 8;

// Offsets are in bytes: of the source from where the nest starts, of the buffer from its begin.
struct Gather {
  LoopNest stretches;                     // from the source to the buffer; elements are bytes
  std::int64_t source_offset_bytes = 0;   // of the first stretch
  LoopNest scatter;                       // from the buffer to the target
  std::int64_t scatter_offset_bytes = 0;  // where the scatter starts in the buffer
  std::int64_t buffer_bytes = 0;

  bool operator==(const Gather&) const = default;
};

// Ensures: scatter after stretches reads and writes the pairs of `nest`; every stretch begins and
// ends with a wanted byte; buffer_bytes <= kGatherFactor * the nest's bytes at the source.
Gather gather_of(const LoopNest& nest);

}  // namespace crossmesh::detail
