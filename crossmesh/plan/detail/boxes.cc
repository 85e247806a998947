// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/detail/boxes.h"

#include <algorithm>

namespace crossmesh::detail {

bool lies_before(const Box& a, const Box& b) {
  if (a.origin != b.origin) {
    return std::lexicographical_compare(a.origin.begin(), a.origin.end(), b.origin.begin(),
                                        b.origin.end());
  }
  return std::lexicographical_compare(a.shape.begin(), a.shape.end(), b.shape.begin(),
                                      b.shape.end());
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  const std::optional<Box> common = intersect(a, b);
  if (!common) return {a};
  std::vector<Box> rest;
  Box left = a;
  for (int d = 0; d < a.origin.size(); ++d) {
    const std::int64_t begin = common->origin[d];
    const std::int64_t end = begin + common->shape[d];
    const std::int64_t left_end = left.origin[d] + left.shape[d];
    if (left.origin[d] < begin) {
      rest.push_back(left);
      rest.back().shape[d] = begin - left.origin[d];
    }
    if (end < left_end) {
      rest.push_back(left);
      rest.back().origin[d] = end;
      rest.back().shape[d] = left_end - end;
    }
    left.origin[d] = begin;
    left.shape[d] = common->shape[d];
  }
  return rest;
}

std::optional<int> search_dim(const std::vector<Box>& boxes) {
  std::optional<int> best;
  std::size_t most = 0;
  std::vector<std::int64_t> origins(boxes.size());
  for (int d = 0; !boxes.empty() && d < boxes[0].origin.size(); ++d) {
    for (std::size_t i = 0; i < boxes.size(); ++i) origins[i] = boxes[i].origin[d];
    std::sort(origins.begin(), origins.end());
    const auto count =
        static_cast<std::size_t>(std::unique(origins.begin(), origins.end()) - origins.begin());
    if (count > most) {
      best = d;
      most = count;
    }
  }
  return best;
}

BoxIndex::Range BoxIndex::near(const Box& box) const {
  const auto first = std::upper_bound(end_max.begin(), end_max.end(), begin_of(box));
  const auto last = std::partition_point(
      boxes.begin(), boxes.end(), [&](const Box& other) { return begin_of(other) < end_of(box); });
  return {static_cast<std::size_t>(first - end_max.begin()),
          static_cast<std::size_t>(last - boxes.begin())};
}

BoxIndex index_boxes(std::vector<Box> boxes) {
  BoxIndex index;
  index.dim = search_dim(boxes);
  std::sort(boxes.begin(), boxes.end(), [&](const Box& a, const Box& b) {
    const std::int64_t at_a = index.begin_of(a);
    const std::int64_t at_b = index.begin_of(b);
    return at_a != at_b ? at_a < at_b : lies_before(a, b);
  });
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  index.boxes = std::move(boxes);
  std::int64_t end = 0;
  for (const Box& box : index.boxes) {
    end = std::max(end, index.end_of(box));
    index.end_max.push_back(end);
  }
  return index;
}

bool is_disjoint(const BoxIndex& index) {
  for (std::size_t i = 0; i < index.boxes.size(); ++i) {
    const BoxIndex::Range range = index.near(index.boxes[i]);
    for (std::size_t j = std::max(range.first, i + 1); j < range.last; ++j) {
      if (intersect(index.boxes[i], index.boxes[j])) return false;
    }
  }
  return true;
}

std::int64_t union_volume(std::vector<Box> boxes) {
  std::erase_if(boxes, [](const Box& box) { return is_empty(box); });
  const BoxIndex index = index_boxes(std::move(boxes));
  std::int64_t sum = 0;
  if (is_disjoint(index)) {
    for (const Box& box : index.boxes) sum += volume(box);
    return sum;
  }
  for (std::size_t i = 0; i < index.boxes.size(); ++i) {
    std::vector<Box> rest{index.boxes[i]};
    const BoxIndex::Range range = index.near(index.boxes[i]);
    for (std::size_t j = range.first; j < std::min(i, range.last) && !rest.empty(); ++j) {
      std::vector<Box> smaller;
      for (const Box& box : rest) {
        for (const Box& part : subtract(box, index.boxes[j])) smaller.push_back(part);
      }
      rest = std::move(smaller);
    }
    for (const Box& box : rest) sum += volume(box);
  }
  return sum;
}

}  // namespace crossmesh::detail
