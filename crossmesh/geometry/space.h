// SPDX-License-Identifier: Apache-2.0
// A tensor's index space with some dimensions split into factors, a mixed radix: index i of a
// dimension of extent 12 with factors (3, 4) is the pair (i / 4, i % 4). A dimension that nobody
// refines has one factor. Boxes of a refined space say what boxes of the plain one cannot:
// every second row, the q rows of each query group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {

struct Space {
  Shape factors;           // all factors, dimension by dimension, outermost first
  DimVector factor_count;  // factors of each tensor dimension, each at least 1

  // The space that refines nothing. Throws: unsupported past kDimsMax dimensions.
  static Space plain(std::span<const std::int64_t> shape);

  int rank() const { return factor_count.size(); }

  bool operator==(const Space&) const = default;
};

// The tensor's shape: the product of each dimension's factors.
Shape tensor_shape(const Space& space);

// The coarsest space that refines both; nothing where the factors do not nest, or where it would
// have more than kDimsMax dimensions. An empty dimension keeps one factor, 0.
// Requires: equal tensor shapes. Ensures: of(a, b) == of(b, a), and of(a, a) == a up to factors
// of 1.
std::optional<Space> common_refinement(const Space& a, const Space& b);

// The boxes of a space with `factors` that hold exactly the indices [begin, end) of the dimension
// that they split, in ascending order and disjoint. Ensures: at most 2k - 1 boxes for k factors.
std::vector<Box> peel(std::int64_t begin, std::int64_t end, const Shape& factors);

// The boxes of `fine` that hold exactly the elements of `box`, a box of `coarse`, disjoint.
// Requires: `fine` refines `coarse`.
std::vector<Box> refine(const Box& box, const Space& coarse, const Space& fine);

// The strides of `fine` dimensions for a view with `strides` over `coarse` dimensions.
// Requires: `fine` refines `coarse`.
Strides refine_strides(const Strides& strides, const Space& coarse, const Space& fine);

// `[12=3*4, 8]`
std::string to_string(const Space& space);

}  // namespace crossmesh
