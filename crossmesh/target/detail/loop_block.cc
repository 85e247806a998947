// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/loop_block.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "crossmesh/base/checked.h"

namespace crossmesh::detail {
namespace {

template <typename Before>
LoopBlock sorted_and_merged(LoopBlock block, const Before& before) {
  std::erase_if(block.loops, [](const Loop& loop) { return loop.count == 1; });
  std::stable_sort(block.loops.begin(), block.loops.end(), before);
  std::vector<Loop> merged;
  for (const Loop& loop : block.loops) {
    // One step of the outer loop is this loop run to its end, on both sides.
    const bool continues = !merged.empty() &&
                           merged.back().source_stride == loop.source_stride * loop.count &&
                           merged.back().target_stride == loop.target_stride * loop.count;
    if (continues) {
      merged.back() = {merged.back().count * loop.count, loop.source_stride, loop.target_stride};
    } else {
      merged.push_back(loop);
    }
  }
  block.loops = std::move(merged);
  return block;
}

// Without loops of one step, in order; unmerged, since a cut must not be undone.
LoopBlock tidied(LoopBlock block) {
  std::erase_if(block.loops, [](const Loop& loop) { return loop.count == 1; });
  std::stable_sort(block.loops.begin(), block.loops.end(),
                   [](const Loop& a, const Loop& b) { return a.source_stride > b.source_stride; });
  return block;
}

// Where `place` may stand in `places` so that each still divides the one before it.
std::optional<std::ptrdiff_t> nesting_position(std::span<const std::int64_t> places,
                                               std::int64_t place) {
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i] >= place) continue;
    if (places[i - 1] % place != 0 || place % places[i] != 0) return std::nullopt;
    return static_cast<std::ptrdiff_t>(i);
  }
  return std::nullopt;
}

bool is_place(std::span<const std::int64_t> places, std::int64_t value) {
  return std::find(places.begin() + 1, places.end(), value) != places.end();
}

// Cuts blocks until every loop walks one digit. A work list, since one cut may ask for another.
class Cutter {
 public:
  Cutter(std::span<const std::int64_t> places, std::int64_t blocks_max)
      : places_(places), blocks_max_(blocks_max) {}

  std::optional<std::vector<LoopBlock>> cut(const LoopBlock& block) {
    std::vector<LoopBlock> open{block};
    std::vector<LoopBlock> done;
    while (!open.empty()) {
      const LoopBlock next = std::move(open.back());
      open.pop_back();
      if (!cut_once(next, open)) done.push_back(next);
      if (static_cast<std::int64_t>(open.size() + done.size()) > blocks_max_) return std::nullopt;
    }
    return done;
  }

 private:
  // Puts the parts of `block` on the list where a loop needs a cut; false where none does.
  bool cut_once(const LoopBlock& block, std::vector<LoopBlock>& open) const {
    for (std::size_t i = 0; i < block.loops.size(); ++i) {
      if (!is_place(places_, block.loops[i].source_stride)) {
        unroll(block, i, open);
        return true;
      }
      if (i > 0 && block.loops[i].source_stride == block.loops[i - 1].source_stride) {
        unroll_all(block, i, open);
        return true;
      }
    }
    // Innermost first: a carry may run through the digits above.
    for (std::size_t i = block.loops.size(); i-- > 0;) {
      if (cut_at_carry(block, i, open)) return true;
    }
    return false;
  }

  // `block` with `loop` in the place of its loop `at`, moved by `steps` of the old one.
  static LoopBlock with_loop(const LoopBlock& block, std::size_t at, std::int64_t steps,
                             const Loop& loop) {
    LoopBlock result = block;
    const Loop& old = block.loops[at];
    result.source_offset += steps * old.source_stride;
    result.target_offset += steps * old.target_stride;
    result.loops[at] = loop;
    return result;
  }

  // A loop whose stride is no digit: every m-th step, from each of the first m, where m steps are.
  void unroll(const LoopBlock& block, std::size_t at, std::vector<LoopBlock>& open) const {
    const Loop loop = block.loops[at];
    std::int64_t period = loop.count;
    for (std::size_t p = places_.size(); p-- > 1;) {
      if (places_[p] > loop.source_stride && places_[p] % loop.source_stride == 0) {
        period = std::min(period, places_[p] / loop.source_stride);
        break;
      }
    }
    unroll_period(block, at, period, open);
  }

  void unroll_all(const LoopBlock& block, std::size_t at, std::vector<LoopBlock>& open) const {
    unroll_period(block, at, block.loops[at].count, open);
  }

  void unroll_period(const LoopBlock& block, std::size_t at, std::int64_t period,
                     std::vector<LoopBlock>& open) const {
    const Loop loop = block.loops[at];
    // One more than allowed is enough to be refused.
    const std::int64_t parts = std::min(period, blocks_max_ + 1);
    for (std::int64_t i = 0; i < parts; ++i) {
      const Loop every{ceil_div(loop.count - i, period), loop.source_stride * period,
                       loop.target_stride * period};
      open.push_back(tidied(with_loop(block, at, i, every)));
    }
  }

  bool cut_at_carry(const LoopBlock& block, std::size_t at, std::vector<LoopBlock>& open) const {
    const Loop loop = block.loops[at];
    const std::size_t place = static_cast<std::size_t>(
        std::find(places_.begin() + 1, places_.end(), loop.source_stride) - places_.begin());
    const std::int64_t radix = places_[place - 1] / places_[place];
    const std::int64_t digit = block.source_offset / places_[place] % radix;
    if (digit + loop.count <= radix) return false;
    assert(place > 1);
    const auto part = [&](std::int64_t first, std::int64_t count) {
      return with_loop(block, at, first, {count, loop.source_stride, loop.target_stride});
    };
    if (digit > 0) {
      open.push_back(tidied(part(0, radix - digit)));
      open.push_back(tidied(part(radix - digit, loop.count - (radix - digit))));
      return true;
    }
    const std::int64_t rows = loop.count / radix;
    LoopBlock whole = part(0, radix);
    if (rows > 1) {
      const Loop outer{rows, loop.source_stride * radix, loop.target_stride * radix};
      whole.loops.insert(whole.loops.begin() + static_cast<std::ptrdiff_t>(at), outer);
    }
    open.push_back(std::move(whole));
    if (loop.count % radix > 0) {
      open.push_back(tidied(part(rows * radix, loop.count % radix)));
    }
    return true;
  }

  std::span<const std::int64_t> places_;
  std::int64_t blocks_max_;
};

}  // namespace

LoopBlock simplified(LoopBlock block) {
  return sorted_and_merged(std::move(block), [](const Loop& a, const Loop& b) {
    return a.source_stride > b.source_stride;
  });
}

LoopBlock simplified_by_target(LoopBlock block) {
  return sorted_and_merged(std::move(block), [](const Loop& a, const Loop& b) {
    return a.target_stride > b.target_stride;
  });
}

std::vector<std::int64_t> places_of(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> places{checked_product(shape)};
  for (const std::int64_t extent : shape) {
    if (extent > 1) places.push_back(places.back() / extent);
  }
  return places;
}

std::vector<std::int64_t> refine_places(std::span<const std::int64_t> places,
                                        std::span<const LoopBlock> blocks, int count_max) {
  std::vector<Loop> loops;
  for (const LoopBlock& block : blocks) {
    loops.insert(loops.end(), block.loops.begin(), block.loops.end());
  }
  // Where strides exclude each other, the longest loop is worth most.
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return a.count > b.count; });
  std::vector<std::int64_t> refined(places.begin(), places.end());
  const auto insert = [&](std::int64_t place) {
    if (static_cast<int>(refined.size()) >= count_max || is_place(refined, place)) return;
    if (const auto position = nesting_position(refined, place)) {
      refined.insert(refined.begin() + *position, place);
    }
  };
  for (const Loop& loop : loops) insert(loop.source_stride);
  for (const Loop& loop : loops) {
    if (is_place(refined, loop.source_stride)) continue;
    // Steps that together are a multiple of the digit above repeat; that multiple is a place.
    for (std::size_t i = refined.size(); i-- > 1;) {
      if (refined[i] <= loop.source_stride) continue;
      const std::int64_t period = refined[i] / std::gcd(refined[i], loop.source_stride);
      if (period < loop.count) insert(checked_mul(period, loop.source_stride));
      break;
    }
  }
  return refined;
}

std::optional<std::vector<LoopBlock>> cut_at_places(const LoopBlock& block,
                                                    std::span<const std::int64_t> places,
                                                    std::int64_t blocks_max) {
  return Cutter(places, blocks_max).cut(block);
}

}  // namespace crossmesh::detail
