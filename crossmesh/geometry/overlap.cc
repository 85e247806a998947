// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/overlap.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <vector>

namespace crossmesh {
namespace {

using Pair = std::optional<std::pair<int, int>>;

// Few enough that comparing each with each is the fastest.
constexpr std::size_t kPairwiseMax = 8;

// The part of the space that a step of the search looks at: lo <= i < hi.
struct Cell {
  Index lo;
  Index hi;
};

struct Cut {
  int dim = -1;
  std::int64_t at = 0;
  std::size_t larger_half = 0;
};

Pair compare_each(std::span<const Box> boxes, const std::vector<int>& members) {
  for (std::size_t a = 0; a < members.size(); ++a) {
    for (std::size_t b = a + 1; b < members.size(); ++b) {
      const int first = std::min(members[a], members[b]);
      const int second = std::max(members[a], members[b]);
      if (intersect(boxes[static_cast<std::size_t>(first)],
                    boxes[static_cast<std::size_t>(second)])) {
        return std::pair(first, second);
      }
    }
  }
  return std::nullopt;
}

// The middle border in each dimension; of these, the one that leaves the fewest on its fuller side.
Cut choose_cut(std::span<const Box> boxes, const std::vector<int>& members, const Cell& cell) {
  Cut best;
  std::vector<std::int64_t> borders;
  for (int d = 0; d < cell.lo.size(); ++d) {
    borders.clear();
    const auto add = [&](std::int64_t at) {
      if (cell.lo[d] < at && at < cell.hi[d]) borders.push_back(at);
    };
    for (const int m : members) {
      const Box& box = boxes[static_cast<std::size_t>(m)];
      add(box.origin[d]);
      add(box.origin[d] + box.shape[d]);
    }
    if (borders.empty()) continue;
    const auto middle = borders.begin() + static_cast<std::ptrdiff_t>(borders.size() / 2);
    std::nth_element(borders.begin(), middle, borders.end());
    std::size_t below = 0, above = 0;
    for (const int m : members) {
      const Box& box = boxes[static_cast<std::size_t>(m)];
      below += box.origin[d] < *middle;
      above += box.origin[d] + box.shape[d] > *middle;
    }
    const std::size_t larger_half = std::max(below, above);
    if (best.dim < 0 || larger_half < best.larger_half) best = {d, *middle, larger_half};
  }
  return best;
}

Pair search(std::span<const Box> boxes, const std::vector<int>& members, const Cell& cell) {
  if (members.size() <= kPairwiseMax) return compare_each(boxes, members);
  const Cut cut = choose_cut(boxes, members, cell);
  // No border inside the cell: every member fills it.
  if (cut.dim < 0) return std::pair(members[0], members[1]);
  Cell below = cell, above = cell;
  below.hi[cut.dim] = above.lo[cut.dim] = cut.at;
  std::vector<int> members_below, members_above;
  for (const int m : members) {
    const Box& box = boxes[static_cast<std::size_t>(m)];
    if (box.origin[cut.dim] < cut.at) members_below.push_back(m);
    if (box.origin[cut.dim] + box.shape[cut.dim] > cut.at) members_above.push_back(m);
  }
  if (const Pair found = search(boxes, members_below, below)) return found;
  return search(boxes, members_above, above);
}

}  // namespace

Pair find_overlap(std::span<const Box> boxes) {
  std::vector<int> members;
  Cell cell;
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    const Box& box = boxes[b];
    if (is_empty(box)) continue;
    if (members.empty()) cell = {box.origin, box.origin};
    assert(box.origin.size() == cell.lo.size());
    for (int d = 0; d < box.origin.size(); ++d) {
      cell.lo[d] = std::min(cell.lo[d], box.origin[d]);
      cell.hi[d] = std::max(cell.hi[d], box.origin[d] + box.shape[d]);
    }
    members.push_back(static_cast<int>(b));
  }
  return search(boxes, members, cell);
}

}  // namespace crossmesh
