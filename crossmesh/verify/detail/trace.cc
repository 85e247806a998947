// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/verify/detail/trace.h"

#include <algorithm>
#include <cassert>

namespace crossmesh::detail {
namespace {

constexpr int kCutsMax = 1 << 16;

using Values = std::vector<std::int64_t>;  // one per digit

std::optional<Values> read_digits(const Digits& system, std::int64_t place) {
  Values values;
  if (place < 0) return std::nullopt;
  for (const Digits::Digit& digit : system.digits) {
    values.push_back(place / digit.stride);
    place %= digit.stride;
    if (values.back() >= digit.extent) return std::nullopt;
  }
  if (place != 0) return std::nullopt;
  return values;
}

std::int64_t stride_of(const Lattice::Loop& loop, End end) {
  return end == End::source ? loop.source : loop.target;
}

std::int64_t start_of(const Lattice& lattice, End end) {
  return end == End::source ? lattice.source : lattice.target;
}

// Splits loop `at` after `count` steps.
std::vector<Lattice> split(const Lattice& lattice, std::size_t at, std::int64_t count) {
  Lattice head = lattice;
  Lattice tail = lattice;
  const Lattice::Loop& loop = lattice.loops[at];
  head.loops[at].count = count;
  tail.loops[at].count = loop.count - count;
  tail.source += count * loop.source;
  tail.target += count * loop.target;
  return {head, tail};
}

// Makes loop `at` two loops, the inner one of `period` steps; what does not fill one is split off.
std::vector<Lattice> fold(const Lattice& lattice, std::size_t at, std::int64_t period) {
  const std::int64_t count = lattice.loops[at].count;
  if (count % period != 0) return split(lattice, at, count / period * period);
  Lattice folded = lattice;
  Lattice::Loop outer = lattice.loops[at];
  outer.count = count / period;
  outer.source *= period;
  outer.target *= period;
  folded.loops[at].count = period;
  folded.loops.push_back(outer);
  return {folded};
}

// The digit that overflows along the lattice, innermost first; -1 when none does.
struct Overflow {
  int digit = -1;
  std::size_t loop = 0;  // the longest loop that moves the digit
};

Overflow find_overflow(const Digits& system, const Values& start, const Lattice& lattice,
                       const std::vector<Values>& steps) {
  for (int d = static_cast<int>(system.digits.size()) - 1; d >= 0; --d) {
    const auto digit = static_cast<std::size_t>(d);
    std::int64_t last = start[digit];
    Overflow overflow{d, 0};
    std::int64_t longest = 0;
    for (std::size_t l = 0; l < steps.size(); ++l) {
      const std::int64_t reach = (lattice.loops[l].count - 1) * steps[l][digit];
      last += reach;
      if (reach > longest) overflow.loop = l;
      longest = std::max(longest, reach);
    }
    if (last >= system.digits[digit].extent) return overflow;
  }
  return {};
}

}  // namespace

std::optional<Digits> digits_of(const Piece& piece, const Space& space) {
  Digits system{piece.view.offset, 0, 1, {}};
  std::int64_t tensor_step = 1;
  for (int d = piece.box.shape.size() - 1; d >= 0; --d) {
    const std::int64_t extent = piece.box.shape[d];
    system.first_element += piece.box.origin[d] * tensor_step;
    if (extent > 1) {
      system.digits.push_back({extent, piece.view.strides[d], tensor_step, system.element_count});
    }
    system.element_count *= extent;
    tensor_step *= space.factors[d];
  }
  std::stable_sort(system.digits.begin(), system.digits.end(),
                   [](const auto& a, const auto& b) { return a.stride > b.stride; });
  std::int64_t span = 1;
  for (auto digit = system.digits.rbegin(); digit != system.digits.rend(); ++digit) {
    if (digit->stride < span) return std::nullopt;
    span += (digit->extent - 1) * digit->stride;
  }
  return system;
}

std::optional<std::vector<Lattice>> cut(const Lattice& lattice, const Digits& digits, End end) {
  std::vector<Lattice> parts;
  std::vector<Lattice> open{lattice};
  for (int cuts = 0; !open.empty(); ++cuts) {
    if (cuts > kCutsMax) return std::nullopt;
    Lattice next = std::move(open.back());
    open.pop_back();
    std::erase_if(next.loops, [](const Lattice::Loop& loop) { return loop.count == 1; });
    const auto start = read_digits(digits, start_of(next, end) - digits.offset);
    if (!start) return std::nullopt;
    std::vector<Values> steps;
    for (const Lattice::Loop& loop : next.loops) {
      const auto step = read_digits(digits, stride_of(loop, end));
      if (!step || stride_of(loop, end) == 0) return std::nullopt;
      steps.push_back(*step);
    }
    const Overflow overflow = find_overflow(digits, *start, next, steps);
    if (overflow.digit < 0) {
      parts.push_back(std::move(next));
      continue;
    }
    const auto d = static_cast<std::size_t>(overflow.digit);
    const std::int64_t extent = digits.digits[d].extent;
    const std::int64_t step = steps[overflow.loop][d];
    const std::int64_t count = next.loops[overflow.loop].count;
    const std::int64_t fitting = (extent - 1 - (*start)[d]) / step + 1;
    std::vector<Lattice> smaller;
    if (fitting >= count) {
      // It overflows only together with other loops.
      smaller = split(next, overflow.loop, count / 2);
    } else if ((*start)[d] < step && extent % step == 0) {
      smaller = fold(next, overflow.loop, extent / step);
    } else {
      smaller = split(next, overflow.loop, fitting);
    }
    for (Lattice& part : smaller) open.push_back(std::move(part));
  }
  return parts;
}

Elements elements_along(const Lattice& lattice, const Digits& digits, End end) {
  const auto start = read_digits(digits, start_of(lattice, end) - digits.offset);
  assert(start);
  Elements elements{digits.first_element, 0, {}};
  for (std::size_t d = 0; d < digits.digits.size(); ++d) {
    elements.tensor += (*start)[d] * digits.digits[d].tensor_step;
    elements.piece += (*start)[d] * digits.digits[d].piece_step;
  }
  for (const Lattice::Loop& loop : lattice.loops) {
    const auto values = read_digits(digits, stride_of(loop, end));
    assert(values);
    Elements::Step step{loop.count, 0, 0};
    for (std::size_t d = 0; d < digits.digits.size(); ++d) {
      step.tensor += (*values)[d] * digits.digits[d].tensor_step;
      step.piece += (*values)[d] * digits.digits[d].piece_step;
    }
    elements.steps.push_back(step);
  }
  return elements;
}

}  // namespace crossmesh::detail
