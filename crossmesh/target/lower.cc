// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/target/detail/loop_block.h"

namespace crossmesh {
namespace {

using detail::Loop;
using detail::LoopBlock;

// The largest size that divides every element of the map: all are powers of 2.
std::int64_t unit_bytes_of(const ElementMap& map) {
  std::int64_t unit = std::min(byte_size(map.tensor.dtype), byte_size(map.result.dtype));
  for (const StridedTensor& copy : map.copies) unit = std::min(unit, byte_size(copy.dtype));
  return unit;
}

// The sizes of a dense storage of `tensor`'s elements, in units.
std::vector<std::int64_t> sizes_in_units(const StridedTensor& tensor, std::int64_t ratio) {
  std::vector<std::int64_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
  sizes.push_back(ratio);
  return sizes;
}

// A copy of each element of `source` to the place that `target_strides` gives, in units.
LoopBlock block_of(const StridedTensor& source, const Strides& target_strides,
                   std::int64_t target_offset, std::int64_t ratio) {
  LoopBlock block{checked_mul(source.offset, ratio), checked_mul(target_offset, ratio), {}};
  for (int d = 0; d < source.sizes.size(); ++d) {
    block.loops.push_back({source.sizes[d], checked_mul(source.strides[d], ratio),
                           checked_mul(target_strides[d], ratio)});
  }
  block.loops.push_back({ratio, 1, 1});
  return block;
}

// A walk over the digits of a dense index: which dimension each place belongs to.
struct Digit {
  int dim = 0;
  std::int64_t step = 1;  // of the dimension's index
  std::int64_t radix = 1;
  std::int64_t place = 1;
};

std::vector<Digit> digits_of(std::span<const std::int64_t> sizes,
                             std::span<const std::int64_t> places) {
  std::vector<Digit> digits;
  std::int64_t below = places.front();
  std::size_t p = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] <= 1) continue;
    below /= sizes[d];
    for (; p < places.size() && places[p] >= below; ++p) {
      digits.push_back(
          {static_cast<int>(d), places[p] / below, places[p - 1] / places[p], places[p]});
    }
  }
  return digits;
}

const Loop* loop_at(const LoopBlock& block, std::int64_t place) {
  const auto found = std::find_if(block.loops.begin(), block.loops.end(),
                                  [&](const Loop& loop) { return loop.source_stride == place; });
  return found == block.loops.end() ? nullptr : &*found;
}

// Blocks over the storage that a copy made, as blocks over the storage that it read.
std::optional<std::vector<LoopBlock>> read_through(const std::vector<LoopBlock>& blocks,
                                                   const StridedTensor& copied, std::int64_t ratio,
                                                   std::int64_t blocks_max) {
  constexpr int kPlacesMax = 64;
  const std::vector<std::int64_t> sizes = sizes_in_units(copied, ratio);
  const std::vector<std::int64_t> dense = detail::places_of(sizes);
  std::vector<LoopBlock> results;
  for (const LoopBlock& block : blocks) {
    const auto places = detail::refine_places(dense, std::span(&block, 1), kPlacesMax);
    const auto cuts = detail::cut_at_places(block, places, blocks_max);
    if (!cuts) return std::nullopt;
    const std::vector<Digit> digits = digits_of(sizes, places);
    for (const LoopBlock& cut : *cuts) {
      LoopBlock read{checked_mul(copied.offset, ratio), cut.target_offset, {}};
      for (const Digit& digit : digits) {
        const bool is_unit = digit.dim == copied.sizes.size();
        const std::int64_t stride = is_unit ? 1 : copied.strides[digit.dim] * ratio;
        read.source_offset += cut.source_offset / digit.place % digit.radix * digit.step * stride;
        if (const Loop* loop = loop_at(cut, digit.place)) {
          read.loops.push_back({loop->count, digit.step * stride, loop->target_stride});
        }
      }
      results.push_back(detail::simplified(std::move(read)));
    }
    if (static_cast<std::int64_t>(results.size()) > blocks_max) return std::nullopt;
  }
  return results;
}

// Blocks over the tensor's own storage, in units; nothing where they are too many.
std::optional<std::vector<LoopBlock>> read_tensor(const ElementMap& map, LoopBlock first,
                                                  std::int64_t unit, std::int64_t blocks_max) {
  std::vector<LoopBlock> blocks{detail::simplified(std::move(first))};
  for (auto copied = map.copies.rbegin(); copied != map.copies.rend(); ++copied) {
    auto read = read_through(blocks, *copied, byte_size(copied->dtype) / unit, blocks_max);
    if (!read) return std::nullopt;
    blocks = std::move(*read);
  }
  return blocks;
}

// -- What torch refuses, and what no piece says --------------------------------------------------

Error refuse_copy(const ElementMap& source, const CopyTarget& target, std::string_view what) {
  return Error(ErrorCode::invalid_argument, fmt::format("copy_: {}", what))
      .with("source", to_string(source.result))
      .with("target", fmt::format("{}{}", name_of(target.dtype), to_string(target.region)));
}

// Elements of the destination; and that it lies within its storage.
std::int64_t check_target(const ElementMap& source, const CopyTarget& target) {
  const StridedRegion& region = target.region;
  if (region.shape.size() != region.view.strides.size()) {
    throw refuse_copy(source, target, "the destination has not a stride for each size");
  }
  std::int64_t last = region.view.offset;
  bool negative = last < 0;
  for (int d = 0; d < region.shape.size(); ++d) {
    negative = negative || region.shape[d] < 0 || region.view.strides[d] < 0;
    if (negative || region.shape[d] == 0) continue;
    last = checked_add(last, checked_mul(region.shape[d] - 1, region.view.strides[d]));
  }
  if (negative) throw refuse_copy(source, target, "the destination has a negative number");
  const std::int64_t count = volume(whole(region.shape));
  if (count > 0 && last >= target.storage_size) {
    throw refuse_copy(source, target, "the destination passes the end of its storage")
        .with("last element", last)
        .with("storage", target.storage_size);
  }
  return count;
}

// Torch's rule: sizes are compared from the last; one of 1 is spread over the destination's.
void check_sizes(const ElementMap& source, const CopyTarget& target) {
  const Shape& sizes = source.result.sizes;
  const int lead = target.region.shape.size() - sizes.size();
  bool match = lead >= 0;
  for (int d = 0; match && d < sizes.size(); ++d) {
    match = sizes[d] == target.region.shape[lead + d] || sizes[d] == 1;
  }
  if (!match) throw refuse_copy(source, target, "the sizes do not match");
}

// Dimensions of more than one element, largest stride first.
std::vector<Loop> walked_dims(const StridedRegion& region) {
  LoopBlock block;
  for (int d = 0; d < region.shape.size(); ++d) {
    block.loops.push_back({region.shape[d], 0, region.view.strides[d]});
  }
  std::erase_if(block.loops, [](const Loop& loop) { return loop.count == 1; });
  std::stable_sort(block.loops.begin(), block.loops.end(),
                   [](const Loop& a, const Loop& b) { return a.target_stride > b.target_stride; });
  return block.loops;
}

// Whether each stride steps over all that the smaller ones reach, so that no two elements meet.
bool is_surely_disjoint(const StridedRegion& region) {
  std::int64_t reach = 0;
  const std::vector<Loop> loops = walked_dims(region);
  for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
    if (loop->target_stride <= reach) return false;
    reach += (loop->count - 1) * loop->target_stride;
  }
  return true;
}

// Why the copy is opaque whatever its boxes; empty where it is not.
std::string opaque_reason(const ElementMap& source, const CopyTarget& target, std::int64_t unit) {
  const StridedTensor& end = source.result;
  if (element_count(end) != volume(whole(target.region.shape))) {
    return "the copy repeats elements";
  }
  if (!is_surely_disjoint(target.region)) return "the destination may overlap itself";
  if (end.dtype == target.dtype) return "";
  if (!is_castable(end.dtype, target.dtype)) {
    return fmt::format("no conversion from {} to {}", name_of(end.dtype), name_of(target.dtype));
  }
  if (byte_size(source.tensor.dtype) != unit || byte_size(end.dtype) != unit) {
    return fmt::format("a conversion of {} that was viewed as {}", name_of(source.tensor.dtype),
                       name_of(end.dtype));
  }
  return "";
}

// -- Boxes ---------------------------------------------------------------------------------------

// Steps of single elements: where the copy itself steps so, its stride is told, so that a row of a
// parameter has the stride of its rows.
class SingleSteps {
 public:
  // `first` counts in elements of the tensor where `unit` is one.
  SingleSteps(const ElementMap& map, const LoopBlock& first, std::int64_t unit) {
    if (!map.copies.empty() || byte_size(map.tensor.dtype) != unit) return;
    std::copy_if(first.loops.begin(), first.loops.end(), std::back_inserter(loops_),
                 [](const Loop& loop) { return loop.count == 1; });
  }

  // The target's stride for a digit of one step, or `fallback`.
  std::int64_t stride(std::int64_t place, std::int64_t fallback) const {
    for (const Loop& loop : loops_) {
      if (loop.source_stride == place) return loop.target_stride;
    }
    return fallback;
  }

 private:
  std::vector<Loop> loops_;
};

Piece piece_of(const LoopBlock& block, std::span<const std::int64_t> sizes,
               std::span<const Digit> digits, const SingleSteps& singles) {
  Piece piece;
  piece.view.offset = block.target_offset;
  std::vector<std::int64_t> places;
  std::size_t next = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (next >= digits.size() || digits[next].dim != static_cast<int>(d)) {
      piece.box.origin.push_back(0);
      piece.box.shape.push_back(1);
      piece.view.strides.push_back(-1);
      places.push_back(next < digits.size() ? digits[next].place * digits[next].radix : 1);
    }
    for (; next < digits.size() && digits[next].dim == static_cast<int>(d); ++next) {
      const Digit& digit = digits[next];
      const Loop* loop = loop_at(block, digit.place);
      piece.box.origin.push_back(block.source_offset / digit.place % digit.radix);
      piece.box.shape.push_back(loop != nullptr ? loop->count : 1);
      piece.view.strides.push_back(loop != nullptr ? loop->target_stride : -1);
      places.push_back(digit.place);
    }
  }
  // A dimension of one step goes on where the one inside it ends, unless the copy says otherwise.
  std::int64_t continued = 1;
  for (int f = piece.box.shape.size() - 1; f >= 0; --f) {
    std::int64_t& stride = piece.view.strides[f];
    if (stride < 0) stride = singles.stride(places[static_cast<std::size_t>(f)], continued);
    continued = stride * piece.box.shape[f];
  }
  return piece;
}

Space space_of(std::span<const std::int64_t> sizes, std::span<const Digit> digits) {
  Space space;
  std::size_t next = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const std::size_t first = next;
    for (; next < digits.size() && digits[next].dim == static_cast<int>(d); ++next) {
      space.factors.push_back(digits[next].radix);
    }
    if (next == first) space.factors.push_back(1);
    space.factor_count.push_back(
        std::max<std::int64_t>(1, static_cast<std::int64_t>(next - first)));
  }
  return space;
}

// Blocks over units, as blocks over whole elements of so many units; nothing where one is cut.
std::optional<std::vector<LoopBlock>> in_elements(const std::vector<LoopBlock>& blocks,
                                                  std::int64_t ratio) {
  if (ratio == 1) return blocks;
  std::vector<LoopBlock> results;
  for (const LoopBlock& block : blocks) {
    LoopBlock result{block.source_offset / ratio, block.target_offset / ratio, {}};
    if (block.source_offset % ratio != 0 || block.target_offset % ratio != 0) return std::nullopt;
    bool whole_elements = false;
    for (const Loop& loop : block.loops) {
      if (loop.source_stride == 1 && loop.target_stride == 1 && loop.count % ratio == 0) {
        whole_elements = true;
        result.loops.push_back({loop.count / ratio, 1, 1});
      } else if (loop.source_stride % ratio == 0 && loop.target_stride % ratio == 0) {
        result.loops.push_back(
            {loop.count, loop.source_stride / ratio, loop.target_stride / ratio});
      } else {
        return std::nullopt;
      }
    }
    if (!whole_elements) return std::nullopt;
    results.push_back(detail::simplified(std::move(result)));
  }
  return results;
}

}  // namespace

std::variant<LoweredCopy, OpaqueCopy> lower(const ElementMap& source, const CopyTarget& target,
                                            std::int64_t pieces_max) {
  const std::int64_t count = check_target(source, target);
  check_sizes(source, target);
  const bool moves_bits = source.result.dtype == target.dtype;
  LoweredCopy lowered;
  lowered.space = Space::plain(source.tensor.sizes.span());
  lowered.source_dtype = moves_bits ? source.tensor.dtype : source.result.dtype;
  lowered.target_dtype = moves_bits ? source.tensor.dtype : target.dtype;
  if (count == 0) return lowered;
  for (const Loop& loop : walked_dims(target.region)) {
    if (loop.target_stride > 0) continue;
    throw refuse_copy(source, target, "the destination shows one element more than once");
  }
  const std::int64_t unit = unit_bytes_of(source);
  if (std::string reason = opaque_reason(source, target, unit); !reason.empty()) {
    return OpaqueCopy{std::move(reason)};
  }
  const OpaqueCopy too_many{fmt::format("the copy moves more than {} boxes", pieces_max)};
  // Sizes agree up to leading ones of the destination, which are not walked.
  Strides strides;
  const int lead = target.region.shape.size() - source.result.sizes.size();
  for (int d = lead; d < target.region.shape.size(); ++d) {
    strides.push_back(target.region.view.strides[d]);
  }
  const LoopBlock first = block_of(source.result, strides, target.region.view.offset,
                                   byte_size(source.result.dtype) / unit);
  const auto units = read_tensor(source, first, unit, pieces_max);
  if (!units) return too_many;
  const auto blocks = in_elements(*units, byte_size(source.tensor.dtype) / unit);
  if (!blocks) return OpaqueCopy{"the copy moves parts of elements"};

  const Shape& sizes = source.tensor.sizes;
  const std::vector<std::int64_t> dense = detail::places_of(sizes.span());
  const int ones = static_cast<int>(std::count(sizes.begin(), sizes.end(), 1));
  const auto places = detail::refine_places(dense, *blocks, kDimsMax + 1 - ones);
  const std::vector<Digit> digits = digits_of(sizes.span(), places);
  lowered.space = space_of(sizes.span(), digits);
  const SingleSteps singles(source, first, unit);
  for (const LoopBlock& block : *blocks) {
    const auto cuts = detail::cut_at_places(block, places, pieces_max);
    if (!cuts) return too_many;
    for (const LoopBlock& cut : *cuts) {
      lowered.pieces.push_back(piece_of(cut, sizes.span(), digits, singles));
    }
    if (static_cast<std::int64_t>(lowered.pieces.size()) > pieces_max) return too_many;
  }
  std::sort(lowered.pieces.begin(), lowered.pieces.end(),
            [](const Piece& a, const Piece& b) { return a.view.offset < b.view.offset; });
  return lowered;
}

CanonicalChain canonical(const ElementMap& map) {
  CanonicalChain chain{map.tensor.dtype,
                       map.tensor.sizes,
                       map.result.dtype,
                       map.result.sizes,
                       unit_bytes_of(map),
                       {},
                       {}};
  if (element_count(map.result) == 0) return chain;
  const std::int64_t ratio = byte_size(map.result.dtype) / chain.unit_bytes;
  auto blocks =
      read_tensor(map, block_of(map.result, contiguous_strides(map.result.sizes), 0, ratio),
                  chain.unit_bytes, kPiecesMax);
  if (!blocks) {
    chain.unresolved = map;
    return chain;
  }
  for (LoopBlock& block : *blocks) block = detail::simplified_by_target(std::move(block));
  std::sort(blocks->begin(), blocks->end(), [](const LoopBlock& a, const LoopBlock& b) {
    return a.target_offset < b.target_offset;
  });
  for (const LoopBlock& block : *blocks) {
    std::vector<std::int64_t>& run = chain.runs.emplace_back();
    run = {block.source_offset, block.target_offset};
    for (const Loop& loop : block.loops) {
      run.insert(run.end(), {loop.count, loop.source_stride, loop.target_stride});
    }
  }
  return chain;
}

Fingerprint fingerprint(const CanonicalChain& chain) {
  FingerprintBuilder builder;
  builder.add(static_cast<std::int64_t>(chain.dtype)).add(chain.shape.span());
  builder.add(static_cast<std::int64_t>(chain.result_dtype)).add(chain.sizes.span());
  builder.add(chain.unit_bytes).add(static_cast<std::int64_t>(chain.runs.size()));
  for (const std::vector<std::int64_t>& run : chain.runs) builder.add(std::span(run));
  if (!chain.unresolved) return builder.finish();
  const auto add = [&](const StridedTensor& tensor) {
    builder.add(static_cast<std::int64_t>(tensor.dtype)).add(tensor.sizes.span());
    builder.add(tensor.strides.span()).add(tensor.offset);
  };
  for (const StridedTensor& copied : chain.unresolved->copies) add(copied);
  add(chain.unresolved->result);
  return builder.finish();
}

}  // namespace crossmesh
