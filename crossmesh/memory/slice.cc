// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/slice.h"

#include <algorithm>
#include <cassert>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/memory/detail/walk.h"

namespace crossmesh {
namespace {

// Row-major byte strides of the loops of `nest` when its elements lie side by side.
Strides packed_strides(const LoopNest& nest) {
  Strides strides = DimVector::filled(nest.counts.size(), 0);
  std::int64_t step = nest.run_count * nest.source_element_bytes;
  for (int d = nest.counts.size() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= nest.counts[d];
  }
  return strides;
}

}  // namespace

Slices::Slices(const LoopNest& nest, std::int64_t bytes_max) : nest_(nest) {
  const std::int64_t element_bytes = std::max(nest.source_element_bytes, nest.target_element_bytes);
  if (bytes_max < element_bytes) {
    throw Error(ErrorCode::limit_exceeded, "slice: one element is larger than a slice may be")
        .with("element_bytes", element_bytes)
        .with("bytes_max", bytes_max);
  }
  if (element_count(nest) == 0) return;
  // The bytes of one step of the loop that is looked at.
  std::int64_t step_bytes = element_bytes;
  cut_ = nest.counts.size();
  std::int64_t extent = nest.run_count;
  while (cut_ > 0 && checked_mul(step_bytes, extent) <= bytes_max) {
    step_bytes *= extent;
    extent = nest.counts[--cut_];
  }
  steps_ = std::min(extent, bytes_max / step_bytes);
  parts_ = ceil_div(extent, steps_);
  count_ = parts_;
  for (int d = 0; d < cut_; ++d) count_ *= nest.counts[d];
}

Slice Slices::at(std::int64_t index) const {
  assert(index >= 0 && index < count_);
  Slice slice;
  slice.nest.source_element_bytes = nest_.source_element_bytes;
  slice.nest.target_element_bytes = nest_.target_element_bytes;
  slice.nest.run_count = nest_.run_count;
  const std::int64_t begin = index % parts_ * steps_;
  const auto skip = [&](std::int64_t steps, std::int64_t source_step, std::int64_t target_step) {
    slice.source_offset_bytes += steps * source_step;
    slice.target_offset_bytes += steps * target_step;
  };
  std::int64_t outer = index / parts_;
  for (int d = cut_ - 1; d >= 0; --d) {
    skip(outer % nest_.counts[d], nest_.source_strides[d], nest_.target_strides[d]);
    outer /= nest_.counts[d];
  }
  if (cut_ == nest_.counts.size()) {
    skip(begin, nest_.source_element_bytes, nest_.target_element_bytes);
    slice.nest.run_count = std::min(steps_, nest_.run_count - begin);
    return slice;
  }
  skip(begin, nest_.source_strides[cut_], nest_.target_strides[cut_]);
  for (int d = cut_; d < nest_.counts.size(); ++d) {
    const std::int64_t count = nest_.counts[d];
    slice.nest.counts.push_back(d == cut_ ? std::min(steps_, count - begin) : count);
    slice.nest.source_strides.push_back(nest_.source_strides[d]);
    slice.nest.target_strides.push_back(nest_.target_strides[d]);
  }
  return slice;
}

std::int64_t packed_bytes(const LoopNest& nest) {
  return checked_mul(element_count(nest), nest.source_element_bytes);
}

LoopNest source_to_packed(const LoopNest& nest) {
  LoopNest gather = nest;
  gather.target_strides = packed_strides(nest);
  gather.target_element_bytes = nest.source_element_bytes;
  return detail::merged(gather);
}

LoopNest packed_to_target(const LoopNest& nest) {
  LoopNest scatter = nest;
  scatter.source_strides = packed_strides(nest);
  return detail::merged(scatter);
}

}  // namespace crossmesh
