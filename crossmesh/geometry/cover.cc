// SPDX-License-Identifier: Apache-2.0
// Strides that divide each other are a mixed radix of the flat storage: in its digits every region
// is a few boxes, and the question becomes one about boxes. A dimension whose stride does not fit
// the radix is unrolled, one region per step.
#include "crossmesh/geometry/cover.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "crossmesh/geometry/overlap.h"
#include "crossmesh/geometry/space.h"

namespace crossmesh {
namespace {

using Kind = CoverFault::Kind;
__extension__ typedef __int128 Wide;

constexpr std::int64_t kBoxesMax = 1 << 18;
constexpr std::size_t kStridesMax = 2048;
constexpr std::int64_t kStorageMax = std::int64_t{1} << 61;

struct Loop {
  std::int64_t count;
  std::int64_t stride;
};

// A region with ascending positive strides, counts above 1, and no loop that continues another.
struct Runs {
  int region = 0;
  std::int64_t offset = 0;
  std::vector<Loop> loops;
};

struct Radix {
  std::vector<std::int64_t> strides;  // of the digits, ascending from 1
  Shape factors;                      // outermost first, as a space has them
};

std::int64_t clamp(Wide value) {
  constexpr Wide low = std::numeric_limits<std::int64_t>::min();
  constexpr Wide high = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(std::max(value, low), high));
}

bool is_empty(const StridedRegion& region) { return crossmesh::is_empty(whole(region.shape)); }

std::optional<CoverFault> find_outside(const StridedRegion& region, std::int64_t storage_size) {
  Wide first = region.view.offset, last = region.view.offset;
  for (int d = 0; d < region.shape.size(); ++d) {
    const Wide reach = Wide{region.shape[d] - 1} * region.view.strides[d];
    (reach < 0 ? first : last) += reach;
  }
  if (first < 0) return CoverFault{Kind::outside, -1, -1, clamp(first), 0};
  if (last >= storage_size) return CoverFault{Kind::outside, -1, -1, clamp(last), 0};
  return std::nullopt;
}

// Requires: the region is not empty, and inside the storage.
Runs normalise(const StridedRegion& region) {
  Runs runs{0, region.view.offset, {}};
  for (int d = 0; d < region.shape.size(); ++d) {
    Loop loop{region.shape[d], region.view.strides[d]};
    if (loop.count == 1) continue;
    if (loop.stride < 0) {
      runs.offset += (loop.count - 1) * loop.stride;
      loop.stride = -loop.stride;
    }
    runs.loops.push_back(loop);
  }
  std::sort(runs.loops.begin(), runs.loops.end(),
            [](const Loop& a, const Loop& b) { return a.stride < b.stride; });
  std::size_t kept = 0;
  for (std::size_t l = 1; l < runs.loops.size(); ++l) {
    Loop& inner = runs.loops[kept];
    if (inner.stride > 0 && inner.stride * inner.count == runs.loops[l].stride) {
      inner.count *= runs.loops[l].count;
    } else {
      runs.loops[++kept] = runs.loops[l];
    }
  }
  runs.loops.resize(std::min(runs.loops.size(), kept + 1));
  return runs;
}

// The divisibility chain from 1 through the strides of the most steps; nothing when there are too
// many strides to choose from.
std::optional<Radix> choose_radix(const std::vector<Runs>& all, std::int64_t storage_size) {
  std::map<std::int64_t, double> weight_of_stride{{1, 0}};
  for (const Runs& runs : all) {
    for (const Loop& loop : runs.loops) {
      weight_of_stride[loop.stride] += static_cast<double>(loop.count);
    }
  }
  if (weight_of_stride.size() > kStridesMax) return std::nullopt;
  const std::vector<std::pair<std::int64_t, double>> strides(weight_of_stride.begin(),
                                                             weight_of_stride.end());
  std::vector<double> best(strides.size(), 0);
  std::vector<std::size_t> previous(strides.size(), 0);
  std::size_t end = 0;
  for (std::size_t i = 1; i < strides.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (strides[i].first % strides[j].first != 0 || best[j] < best[previous[i]]) continue;
      previous[i] = j;
    }
    best[i] = best[previous[i]] + strides[i].second;
    if (best[i] > best[end]) end = i;
  }
  std::vector<std::pair<std::int64_t, double>> chain;
  for (; end != 0; end = previous[end]) chain.push_back(strides[end]);
  std::reverse(chain.begin(), chain.end());
  while (chain.size() >= kDimsMax) {
    chain.erase(std::min_element(chain.begin(), chain.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; }));
  }
  Radix radix{{1}, {}};
  for (const auto& [stride, weight] : chain) radix.strides.push_back(stride);
  std::int64_t above = (storage_size + radix.strides.back() - 1) / radix.strides.back();
  for (std::size_t digit = radix.strides.size(); digit-- > 0;) {
    radix.factors.push_back(above);
    if (digit > 0) above = radix.strides[digit] / radix.strides[digit - 1];
  }
  return radix;
}

// The digits [begin, end) of the radix, counted from the innermost, as factors outermost first.
Shape digits(const Radix& radix, std::size_t begin, std::size_t end) {
  const std::size_t count = radix.strides.size();
  return Shape(radix.factors.span().subspan(count - end, end - begin));
}

std::size_t digit_of(const Radix& radix, std::int64_t stride) {
  const auto at = std::lower_bound(radix.strides.begin(), radix.strides.end(), stride);
  const bool found = at != radix.strides.end() && *at == stride;
  return found ? static_cast<std::size_t>(at - radix.strides.begin()) : radix.strides.size();
}

Box concat(const Box& outer, const Box& inner) {
  Box box = outer;
  for (int d = 0; d < inner.origin.size(); ++d) {
    box.origin.push_back(inner.origin[d]);
    box.shape.push_back(inner.shape[d]);
  }
  return box;
}

struct Boxes {
  std::vector<Box> boxes;
  std::vector<int> region_of_box;
};

// Places the loops from `level` outwards; `inner` are the boxes' digits below, `offset` has the
// digits above. A loop that carries into the digits of the next is cut where it carries.
void place(const Radix& radix, const Runs& runs, std::size_t level, std::int64_t offset,
           const Box& inner, Boxes& out) {
  const Loop& loop = runs.loops[level];
  const bool outermost = level + 1 == runs.loops.size();
  const std::int64_t next = outermost ? 0 : runs.loops[level + 1].stride;
  const std::int64_t start = (outermost ? offset : offset % next) / loop.stride;
  const std::int64_t room = outermost ? loop.count : next / loop.stride - start;
  const Shape factors = digits(radix, digit_of(radix, loop.stride),
                               outermost ? radix.strides.size() : digit_of(radix, next));
  const auto emit = [&](std::int64_t begin, std::int64_t end, std::int64_t new_offset) {
    for (const Box& part : peel(begin, end, factors)) {
      const Box box = concat(part, inner);
      if (!outermost) {
        place(radix, runs, level + 1, new_offset, box, out);
        continue;
      }
      out.boxes.push_back(box);
      out.region_of_box.push_back(runs.region);
    }
  };
  emit(start, start + std::min(loop.count, room), offset);
  if (loop.count > room) emit(0, loop.count - room, offset + room * loop.stride);
}

// Whether the boxes stay within bounds of number.
bool place_unrolled(const Radix& radix, const Runs& runs, Boxes& out) {
  Runs fitting{runs.region, runs.offset, {}};
  std::vector<Loop> others;
  Wide steps = 1;
  for (const Loop& loop : runs.loops) {
    const bool fits = digit_of(radix, loop.stride) < radix.strides.size();
    (fits ? fitting.loops : others).push_back(loop);
    if (!fits) steps *= loop.count;
    if (steps > kBoxesMax) return false;
  }
  if (fitting.loops.empty()) fitting.loops.push_back({1, 1});
  const std::size_t lowest = digit_of(radix, fitting.loops[0].stride);
  const Shape low_factors = digits(radix, 0, lowest);
  for (std::int64_t step = 0; step < steps; ++step) {
    std::int64_t offset = runs.offset, rest = step;
    for (const Loop& loop : others) {
      offset += rest % loop.count * loop.stride;
      rest /= loop.count;
    }
    const std::int64_t low = offset % fitting.loops[0].stride;
    const Box inner = lowest == 0 ? Box{} : peel(low, low + 1, low_factors).front();
    place(radix, fitting, 0, offset, inner, out);
    if (static_cast<std::int64_t>(out.boxes.size()) > kBoxesMax) return false;
  }
  return true;
}

// Two steps of one region that meet. Strides divide each other, or this looks past them.
std::optional<CoverFault> find_self_overlap(const Runs& runs) {
  for (std::size_t l = 0; l < runs.loops.size(); ++l) {
    const Loop& inner = runs.loops[l];
    if (inner.stride == 0) {
      return CoverFault{Kind::overlap, runs.region, runs.region, runs.offset, 0};
    }
    for (std::size_t m = l + 1; m < runs.loops.size(); ++m) {
      const std::int64_t stride = runs.loops[m].stride;
      if (stride % inner.stride == 0 && stride / inner.stride < inner.count) {
        return CoverFault{Kind::overlap, runs.region, runs.region, runs.offset + stride, 0};
      }
    }
  }
  return std::nullopt;
}

std::int64_t flat_element(const Radix& radix, const Index& digits_of_element) {
  std::int64_t element = 0;
  const int count = digits_of_element.size();
  for (int d = 0; d < count; ++d) {
    element += digits_of_element[d] * radix.strides[static_cast<std::size_t>(count - 1 - d)];
  }
  return element;
}

// The first element of the space that no box holds; the digits may count past the storage, but what
// lies there comes later. Requires: boxes are disjoint, and there is one.
Index find_hole(std::vector<Box> boxes, const Shape& factors) {
  Index hole;
  for (int d = 0; d < factors.size(); ++d) {
    Box slab = whole(factors);
    slab.shape[d] = 1;
    for (int e = 0; e < d; ++e) slab.shape[e] = 1;
    // Between two borders the cross section stays the same: the first that is too small has a hole.
    std::map<std::int64_t, std::int64_t> change_at{{0, 0}, {factors[d], 0}};
    for (Box box : boxes) {
      const std::int64_t begin = box.origin[d], end = begin + box.shape[d];
      for (int e = 0; e <= d; ++e) box.shape[e] = 1;
      change_at[begin] += volume(box);
      change_at[end] -= volume(box);
    }
    std::int64_t section = 0, found = 0;
    for (const auto& [at, change] : change_at) {
      section += change;
      found = at;
      if (section < volume(slab)) break;
    }
    hole.push_back(found);
    std::erase_if(boxes, [&](const Box& box) {
      return found < box.origin[d] || found >= box.origin[d] + box.shape[d];
    });
  }
  return hole;
}

}  // namespace

std::optional<CoverFault> find_cover_fault(std::span<const StridedRegion> regions,
                                           std::int64_t storage_size) {
  std::vector<Runs> all;
  std::int64_t covered = 0;
  for (std::size_t r = 0; r < regions.size(); ++r) {
    if (is_empty(regions[r])) continue;
    if (auto fault = find_outside(regions[r], storage_size)) {
      fault->first = static_cast<int>(r);
      return fault;
    }
    all.push_back(normalise(regions[r]));
    all.back().region = static_cast<int>(r);
  }
  if (storage_size == 0) return std::nullopt;
  const CoverFault intractable{Kind::intractable, -1, -1, 0, 0};
  for (const Runs& runs : all) {
    if (const auto fault = find_self_overlap(runs)) return fault;
  }
  if (storage_size > kStorageMax) return intractable;
  const std::optional<Radix> radix = choose_radix(all, storage_size);
  if (!radix) return intractable;
  Boxes placed;
  for (const Runs& runs : all) {
    if (!place_unrolled(*radix, runs, placed)) {
      return CoverFault{Kind::intractable, runs.region, -1, runs.offset, 0};
    }
  }
  if (const auto pair = find_overlap(placed.boxes)) {
    const std::size_t a = static_cast<std::size_t>(pair->first);
    const std::size_t b = static_cast<std::size_t>(pair->second);
    const Index at = intersect(placed.boxes[a], placed.boxes[b])->origin;
    return CoverFault{Kind::overlap, placed.region_of_box[a], placed.region_of_box[b],
                      flat_element(*radix, at), 0};
  }
  for (const Box& box : placed.boxes) covered += volume(box);
  if (covered == storage_size) return std::nullopt;
  const Index hole = find_hole(std::move(placed.boxes), radix->factors);
  return CoverFault{Kind::hole, -1, -1, flat_element(*radix, hole), covered};
}

}  // namespace crossmesh
