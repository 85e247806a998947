// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/digit_space.h"

#include <algorithm>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/target/detail/loop_block.h"

namespace crossmesh::detail {
namespace {

constexpr std::int64_t kBoxesMax = 4096;

LoopBlock block_of(const StridedRegion& region) {
  LoopBlock block{region.view.offset, region.view.offset, {}};
  for (int d = 0; d < region.shape.size(); ++d) {
    // A dimension without a stride shows the same elements again.
    if (region.view.strides[d] == 0) continue;
    block.loops.push_back({region.shape[d], region.view.strides[d], region.view.strides[d]});
  }
  return simplified(std::move(block));
}

// A size that the largest stride divides, and that all regions end before.
std::int64_t size_of(std::span<const LoopBlock> blocks) {
  std::int64_t size = 1;
  std::int64_t step = 1;
  for (const LoopBlock& block : blocks) {
    std::int64_t last = block.source_offset;
    for (const Loop& loop : block.loops) {
      last = checked_add(last, checked_mul(loop.count - 1, loop.source_stride));
      step = std::max(step, loop.source_stride);
    }
    size = std::max(size, checked_add(last, 1));
  }
  return checked_mul(ceil_div(size, step), step);
}

}  // namespace

DigitSpace::DigitSpace(std::span<const StridedRegion> regions) {
  std::vector<LoopBlock> blocks;
  for (const StridedRegion& region : regions) {
    if (!is_empty(whole(region.shape))) blocks.push_back(block_of(region));
  }
  const std::vector<std::int64_t> all{size_of(blocks), 1};
  places_ = refine_places(all, blocks, kDimsMax + 1);
  if (places_.front() == 1) places_ = {1, 1};
}

std::optional<std::vector<Box>> DigitSpace::boxes_of(const StridedRegion& region) const {
  std::vector<Box> boxes;
  if (is_empty(whole(region.shape))) return boxes;
  const auto blocks = cut_at_places(block_of(region), places_, kBoxesMax);
  if (!blocks) return std::nullopt;
  for (const LoopBlock& block : *blocks) {
    Box box;
    for (std::size_t p = 1; p < places_.size(); ++p) {
      const std::int64_t radix = places_[p - 1] / places_[p];
      box.origin.push_back(block.source_offset / places_[p] % radix);
      const auto loop = std::find_if(block.loops.begin(), block.loops.end(),
                                     [&](const Loop& l) { return l.source_stride == places_[p]; });
      box.shape.push_back(loop == block.loops.end() ? 1 : loop->count);
    }
    boxes.push_back(box);
  }
  return boxes;
}

StridedRegion DigitSpace::region_of(const Box& box) const {
  StridedRegion region;
  for (int d = 0; d < box.shape.size(); ++d) {
    const std::int64_t place = places_[static_cast<std::size_t>(d) + 1];
    region.view.offset += box.origin[d] * place;
    if (box.shape[d] == 1) continue;
    const int last = region.shape.size() - 1;
    // A digit that continues the one outside it is told as one dimension.
    if (last >= 0 && region.view.strides[last] == place * box.shape[d]) {
      region.shape[last] *= box.shape[d];
      region.view.strides[last] = place;
      continue;
    }
    region.shape.push_back(box.shape[d]);
    region.view.strides.push_back(place);
  }
  return region;
}

std::vector<Box> subtract(const std::vector<Box>& from, const Box& taken) {
  std::vector<Box> left;
  for (Box box : from) {
    const std::optional<Box> both = intersect(box, taken);
    if (!both) {
      left.push_back(box);
      continue;
    }
    for (int d = 0; d < box.shape.size(); ++d) {
      const std::int64_t end = box.origin[d] + box.shape[d];
      const std::int64_t both_end = both->origin[d] + both->shape[d];
      if (box.origin[d] < both->origin[d]) {
        Box before = box;
        before.shape[d] = both->origin[d] - box.origin[d];
        left.push_back(before);
      }
      if (both_end < end) {
        Box after = box;
        after.origin[d] = both_end;
        after.shape[d] = end - both_end;
        left.push_back(after);
      }
      box.origin[d] = both->origin[d];
      box.shape[d] = both->shape[d];
    }
  }
  return left;
}

std::vector<Box> intersect(const std::vector<Box>& a, const std::vector<Box>& b) {
  std::vector<Box> shared;
  for (const Box& first : a) {
    for (const Box& second : b) {
      if (const auto both = intersect(first, second)) shared.push_back(*both);
    }
  }
  return shared;
}

bool meet(const std::vector<Box>& a, const std::vector<Box>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Box& first) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Box& second) { return intersect(first, second).has_value(); });
  });
}

}  // namespace crossmesh::detail
