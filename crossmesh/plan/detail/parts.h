// SPDX-License-Identifier: Apache-2.0
// The pieces of two classes of one tensor brought into one space, in which each is a box or a few.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh::detail {

// A box of a role's piece in a finer space. Element x of the space lies at
// `base + sum_d x_d * strides[d]`.
struct Part {
  int role = 0;
  int piece = 0;
  Box box;
  std::int64_t base = 0;
  Strides strides;
};

// The non-empty parts of a class in `fine`, which refines its space; in the order of role, piece.
std::vector<Part> parts_of(const LayoutClass& layout_class, const Space& fine);

// The same class with dimension `dim` of its space as one factor: each piece is cut into the
// intervals of that dimension over which its view has one stride.
// Throws: unsupported when that takes more than kFlatPiecesMax pieces.
LayoutClass flatten(const LayoutClass& layout_class, int dim);

// Two classes whose spaces nest.
struct Nested {
  LayoutClass first;
  LayoutClass second;
  Space fine;
};

// Flattens the dimensions whose factors do not nest, on the side where it takes fewer pieces.
// Throws: unsupported where that does not help; mismatch where tensor shapes differ.
Nested nest(const LayoutClass& first, const LayoutClass& second);

}  // namespace crossmesh::detail
