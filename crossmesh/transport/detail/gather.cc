// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/gather.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace crossmesh::detail {
namespace {

// The nest with its loops in the order of the source: the largest strides outermost.
LoopNest in_source_order(const LoopNest& nest) {
  std::array<int, kDimsMax> order{};
  const auto end = order.begin() + nest.counts.size();
  for (int d = 0; d < nest.counts.size(); ++d) order[static_cast<std::size_t>(d)] = d;
  std::stable_sort(order.begin(), end, [&](int a, int b) {
    return std::abs(nest.source_strides[a]) > std::abs(nest.source_strides[b]);
  });
  LoopNest result = nest;
  result.counts = result.source_strides = result.target_strides = {};
  for (auto d = order.begin(); d != end; ++d) {
    result.counts.push_back(nest.counts[*d]);
    result.source_strides.push_back(nest.source_strides[*d]);
    result.target_strides.push_back(nest.target_strides[*d]);
  }
  return result;
}

}  // namespace

Gather gather_of(const LoopNest& nest) {
  Gather gather;
  gather.scatter = in_source_order(nest);
  if (element_count(nest) == 0) return gather;
  LoopNest& scatter = gather.scatter;
  std::int64_t stretch_bytes = nest.run_count * nest.source_element_bytes;
  std::int64_t wanted_bytes = stretch_bytes;
  int outer = scatter.counts.size();
  for (; outer > 0; --outer) {
    const std::int64_t count = scatter.counts[outer - 1];
    const std::int64_t stride = scatter.source_strides[outer - 1];
    const std::int64_t whole_bytes = (count - 1) * std::abs(stride) + stretch_bytes;
    if (whole_bytes > kGatherFactor * wanted_bytes * count) break;
    stretch_bytes = whole_bytes;
    wanted_bytes *= count;
    if (stride < 0) gather.source_offset_bytes += (count - 1) * stride;
  }
  gather.scatter_offset_bytes = -gather.source_offset_bytes;
  // Stretches lie side by side in the buffer; inside one the source's strides hold.
  LoopNest& stretches = gather.stretches;
  stretches.run_count = stretch_bytes;
  stretches.counts = stretches.source_strides = stretches.target_strides =
      DimVector::filled(outer, 0);
  gather.buffer_bytes = stretch_bytes;
  for (int d = outer - 1; d >= 0; --d) {
    stretches.counts[d] = scatter.counts[d];
    stretches.source_strides[d] = scatter.source_strides[d];
    stretches.target_strides[d] = gather.buffer_bytes;
    scatter.source_strides[d] = gather.buffer_bytes;
    gather.buffer_bytes *= scatter.counts[d];
  }
  return gather;
}

}  // namespace crossmesh::detail
