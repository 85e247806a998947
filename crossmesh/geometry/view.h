// SPDX-License-Identifier: Apache-2.0
// Where the elements of a box lie in a flat storage: element `i` of the box (counted from the box's
// origin) lies at `offset + sum_d i_d * strides[d]`. In elements, not in bytes.
#pragma once

#include <cstdint>
#include <string>

#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {

struct View {
  std::int64_t offset = 0;
  Strides strides;

  bool operator==(const View&) const = default;
};

// Row-major strides of a contiguous storage of `shape`.
Strides contiguous_strides(const Shape& shape);

// The view of `inner`, a box inside `outer`, given the view of `outer`.
// Ensures: every element of `inner` keeps its place.
View restrict(const View& view_of_outer, const Box& outer, const Box& inner);

// A region of a flat storage: `shape` elements per dimension from `view`.
struct StridedRegion {
  Shape shape;
  View view;

  bool operator==(const StridedRegion&) const = default;
};

// `[2, 3]:[3, 1]+12` (shape, strides, offset)
std::string to_string(const StridedRegion& region);

}  // namespace crossmesh
