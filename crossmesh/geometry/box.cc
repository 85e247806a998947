// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "crossmesh/base/checked.h"

namespace crossmesh {

Box whole(const Shape& shape) { return {Index::filled(shape.size(), 0), shape}; }

std::int64_t volume(const Box& box) {
  // Asked first, so that an empty box of huge extents does not overflow on the way to 0.
  return is_empty(box) ? 0 : checked_product(box.shape.span());
}

bool is_empty(const Box& box) {
  return std::any_of(box.shape.begin(), box.shape.end(), [](std::int64_t n) { return n <= 0; });
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  assert(a.shape.size() == b.shape.size());
  Box both;
  for (int d = 0; d < a.shape.size(); ++d) {
    const std::int64_t begin = std::max(a.origin[d], b.origin[d]);
    const std::int64_t end = std::min(a.origin[d] + a.shape[d], b.origin[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    both.origin.push_back(begin);
    both.shape.push_back(end - begin);
  }
  return both;
}

bool contains(const Box& outer, const Box& inner) {
  assert(outer.shape.size() == inner.shape.size());
  if (is_empty(inner)) return true;
  for (int d = 0; d < outer.shape.size(); ++d) {
    if (inner.origin[d] < outer.origin[d]) return false;
    if (inner.origin[d] + inner.shape[d] > outer.origin[d] + outer.shape[d]) return false;
  }
  return true;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.shape.size(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.origin[d], box.origin[d] + box.shape[d]);
  }
  return text + "]";
}

}  // namespace crossmesh
