// SPDX-License-Identifier: Apache-2.0
// Sets of boxes of one space: differences, unions, and which of them overlap.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "crossmesh/geometry/box.h"

namespace crossmesh::detail {

// Orders boxes by their origins, then by their shapes.
bool lies_before(const Box& a, const Box& b);

// The elements of `a` that are not in `b`, as at most two boxes per dimension.
std::vector<Box> subtract(const Box& a, const Box& b);

// Elements that lie in at least one of `boxes`.
std::int64_t union_volume(std::vector<Box> boxes);

// The dimension in which the boxes have the most origins: the one to search by. Nothing where the
// boxes have no dimensions.
std::optional<int> search_dim(const std::vector<Box>& boxes);

// Distinct boxes, ordered by their origins in one dimension, so that those which reach into an
// interval are found without looking at all.
struct BoxIndex {
  std::vector<Box> boxes;
  std::optional<int> dim;
  std::vector<std::int64_t> end_max;  // the largest end of boxes[0..i] in `dim`

  std::int64_t begin_of(const Box& box) const { return dim ? box.origin[*dim] : 0; }
  std::int64_t end_of(const Box& box) const { return dim ? box.origin[*dim] + box.shape[*dim] : 1; }
  // A range of `boxes` outside of which none meets `box`.
  struct Range {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  Range near(const Box& box) const;
};

// Requires: no box is empty, all have the same rank. Duplicates are dropped.
BoxIndex index_boxes(std::vector<Box> boxes);

bool is_disjoint(const BoxIndex& index);

}  // namespace crossmesh::detail
