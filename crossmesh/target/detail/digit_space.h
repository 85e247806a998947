// SPDX-License-Identifier: Apache-2.0
// A flat storage as the index space of a mixed radix, chosen so that given strided regions are
// boxes of it: then what regions share, and what they leave, are questions about boxes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/view.h"

namespace crossmesh::detail {

class DigitSpace {
 public:
  // Requires: no offset, size or stride is negative.
  explicit DigitSpace(std::span<const StridedRegion> regions);

  // Nothing where it takes too many boxes. Ensures: the boxes are disjoint where the region's
  // elements are.
  std::optional<std::vector<Box>> boxes_of(const StridedRegion& region) const;

  // Ensures: boxes_of gives the box back.
  StridedRegion region_of(const Box& box) const;

 private:
  std::vector<std::int64_t> places_;  // of the digits, outermost first, after the size of all
};

// The boxes of `from` without `taken`, disjoint where `from` are.
std::vector<Box> subtract(const std::vector<Box>& from, const Box& taken);

// The boxes that hold what is in both.
std::vector<Box> intersect(const std::vector<Box>& a, const std::vector<Box>& b);

bool meet(const std::vector<Box>& a, const std::vector<Box>& b);

}  // namespace crossmesh::detail
