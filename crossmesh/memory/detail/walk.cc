// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/detail/walk.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace crossmesh::detail {
namespace {

void pop_loop(LoopNest& nest) {
  nest.counts.pop_back();
  nest.source_strides.pop_back();
  nest.target_strides.pop_back();
}

void push_loop(LoopNest& nest, const LoopNest& whole, int d) {
  nest.counts.push_back(whole.counts[d]);
  nest.source_strides.push_back(whole.source_strides[d]);
  nest.target_strides.push_back(whole.target_strides[d]);
}

// Merges the last loop into the one outside it when the two continue each other.
void merge_last_loops(LoopNest& nest) {
  const int inner = nest.counts.size() - 1;
  if (inner < 1) return;
  const int outer = inner - 1;
  const std::int64_t count = nest.counts[inner];
  if (nest.source_strides[outer] != nest.source_strides[inner] * count) return;
  if (nest.target_strides[outer] != nest.target_strides[inner] * count) return;
  nest.counts[outer] *= count;
  nest.source_strides[outer] = nest.source_strides[inner];
  nest.target_strides[outer] = nest.target_strides[inner];
  pop_loop(nest);
}

}  // namespace

LoopNest merged(const LoopNest& nest) {
  LoopNest result;
  result.source_element_bytes = nest.source_element_bytes;
  result.target_element_bytes = nest.target_element_bytes;
  if (run_total(nest) == 0) return result;
  result.run_count = nest.run_count;
  for (int d = 0; d < nest.counts.size(); ++d) {
    if (nest.counts[d] == 1) continue;
    push_loop(result, nest, d);
    merge_last_loops(result);
  }
  while (!result.counts.empty() &&
         result.source_strides.back() == result.run_count * result.source_element_bytes &&
         result.target_strides.back() == result.run_count * result.target_element_bytes) {
    result.run_count *= result.counts.back();
    pop_loop(result);
  }
  return result;
}

LoopNest reordered(const LoopNest& nest) {
  const int loops = nest.counts.size();
  std::array<int, kDimsMax> order{};
  const auto end = order.begin() + loops;
  for (int d = 0; d < loops; ++d) order[static_cast<std::size_t>(d)] = d;
  std::stable_sort(order.begin(), end, [&](int a, int b) {
    return std::abs(nest.target_strides[a]) > std::abs(nest.target_strides[b]);
  });
  const auto nearest = std::min_element(order.begin(), end, [&](int a, int b) {
    return std::abs(nest.source_strides[a]) < std::abs(nest.source_strides[b]);
  });
  if (nearest != end && nearest + 1 != end) std::rotate(nearest, nearest + 1, end - 1);
  LoopNest result = nest;
  result.counts = result.source_strides = result.target_strides = {};
  for (auto d = order.begin(); d != end; ++d) push_loop(result, nest, *d);
  return result;
}

}  // namespace crossmesh::detail
