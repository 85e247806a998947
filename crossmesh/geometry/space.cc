// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// The factors of one dimension, as a range of Space::factors.
struct FactorRange {
  int begin = 0;
  int end = 0;
};

FactorRange factors_of(const Space& space, int dim) {
  FactorRange range;
  for (int d = 0; d < dim; ++d) range.begin += static_cast<int>(space.factor_count[d]);
  range.end = range.begin + static_cast<int>(space.factor_count[dim]);
  return range;
}

std::int64_t extent_of(const Space& space, FactorRange range) {
  std::int64_t extent = 1;
  for (int f = range.begin; f < range.end; ++f) {
    if (space.factors[f] == 0) return 0;
  }
  for (int f = range.begin; f < range.end; ++f) extent = checked_mul(extent, space.factors[f]);
  return extent;
}

// For each factor of `coarse`, the factors of `fine` that split it. Where both spaces hold factors
// of 1 that the other lacks, a range is empty, or one takes the others' leading ones.
struct Nesting {
  DimVector begin;
  DimVector end;
};

Nesting nest(const Space& coarse, const Space& fine) {
  assert(coarse.rank() == fine.rank());
  Nesting nesting{DimVector::filled(coarse.factors.size(), 0),
                  DimVector::filled(coarse.factors.size(), 0)};
  for (int d = 0; d < coarse.rank(); ++d) {
    const FactorRange outer = factors_of(coarse, d);
    const FactorRange inner = factors_of(fine, d);
    const bool empty = extent_of(coarse, outer) == 0;
    int at = inner.end;
    for (int c = outer.end - 1; c >= outer.begin; --c) {
      nesting.end[c] = at;
      std::int64_t product = 1;
      while (!empty && product < coarse.factors[c] && at > inner.begin) {
        product *= fine.factors[--at];
      }
      assert(empty || product == coarse.factors[c]);
      // What is left over are ones (or an empty dimension): the outermost factor takes them.
      if (c == outer.begin) at = inner.begin;
      nesting.begin[c] = at;
    }
  }
  return nesting;
}

Shape slice(const Shape& values, std::int64_t begin, std::int64_t end) {
  return Shape(values.span().subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(end - begin)));
}

// The products of the trailing factors without the whole extent, each once, smallest first.
DimVector suffix_products(const Space& space, FactorRange range) {
  DimVector products;
  std::int64_t product = 1;
  for (int f = range.end - 1; f > range.begin; --f) {
    if (space.factors[f] == 1) continue;
    product *= space.factors[f];
    products.push_back(product);
  }
  return products;
}

// `origin` and `shape` of one more box, with the leading and trailing dimensions of `like`.
Box concat(const Box& head, const Box& tail) {
  Box box = head;
  for (int d = 0; d < tail.origin.size(); ++d) {
    box.origin.push_back(tail.origin[d]);
    box.shape.push_back(tail.shape[d]);
  }
  return box;
}

void peel_below(const Box& head, std::int64_t begin, std::int64_t end, const Shape& factors,
                std::vector<Box>& boxes) {
  const int at = head.origin.size();
  if (begin >= end) return;
  if (at == factors.size()) {
    boxes.push_back(head);
    return;
  }
  std::int64_t inner = 1;
  for (int f = at + 1; f < factors.size(); ++f) inner *= factors[f];
  const auto step = [&](std::int64_t index, std::int64_t count) {
    return concat(head, Box{{index}, {count}});
  };
  std::int64_t first = begin / inner;
  const std::int64_t last = end / inner;
  const std::int64_t head_at = begin % inner;
  const std::int64_t tail_to = end % inner;
  if (first == last) return peel_below(step(first, 1), head_at, tail_to, factors, boxes);
  if (head_at > 0) peel_below(step(first++, 1), head_at, inner, factors, boxes);
  if (first < last) peel_below(step(first, last - first), 0, inner, factors, boxes);
  if (tail_to > 0) peel_below(step(last, 1), 0, tail_to, factors, boxes);
}

}  // namespace

Space Space::plain(std::span<const std::int64_t> shape) {
  if (shape.size() > kDimsMax) {
    throw Error(ErrorCode::unsupported, "lay out: a tensor has too many dimensions")
        .with("dimensions", shape.size())
        .with("limit", kDimsMax);
  }
  return {Shape(shape), DimVector::filled(static_cast<int>(shape.size()), 1)};
}

Shape tensor_shape(const Space& space) {
  Shape shape;
  for (int d = 0; d < space.rank(); ++d) {
    shape.push_back(extent_of(space, factors_of(space, d)));
  }
  return shape;
}

std::optional<Space> common_refinement(const Space& a, const Space& b) {
  assert(tensor_shape(a) == tensor_shape(b));
  Space space;
  for (int d = 0; d < a.rank(); ++d) {
    const std::int64_t extent = extent_of(a, factors_of(a, d));
    std::vector<std::int64_t> chain;
    if (extent != 0) {
      for (const std::int64_t p : suffix_products(a, factors_of(a, d))) chain.push_back(p);
      for (const std::int64_t p : suffix_products(b, factors_of(b, d))) chain.push_back(p);
      std::sort(chain.begin(), chain.end());
      chain.erase(std::unique(chain.begin(), chain.end()), chain.end());
      if (!chain.empty() && chain.back() == extent) chain.pop_back();
    }
    if (space.factors.size() + static_cast<int>(chain.size()) + 1 > kDimsMax) return std::nullopt;
    std::int64_t outer = extent;
    for (auto inner = chain.rbegin(); inner != chain.rend(); ++inner) {
      if (outer % *inner != 0) return std::nullopt;
      space.factors.push_back(outer / *inner);
      outer = *inner;
    }
    space.factors.push_back(outer);
    space.factor_count.push_back(static_cast<std::int64_t>(chain.size()) + 1);
  }
  return space;
}

std::vector<Box> peel(std::int64_t begin, std::int64_t end, const Shape& factors) {
  assert(begin >= 0);
  std::vector<Box> boxes;
  peel_below({}, begin, end, factors, boxes);
  return boxes;
}

std::vector<Box> refine(const Box& box, const Space& coarse, const Space& fine) {
  if (is_empty(box)) return {};
  const Nesting nesting = nest(coarse, fine);
  std::vector<Box> boxes{Box{}};
  for (int c = 0; c < coarse.factors.size(); ++c) {
    const Shape factors = slice(fine.factors, nesting.begin[c], nesting.end[c]);
    const std::vector<Box> parts = peel(box.origin[c], box.origin[c] + box.shape[c], factors);
    std::vector<Box> products;
    products.reserve(boxes.size() * parts.size());
    for (const Box& head : boxes) {
      for (const Box& part : parts) products.push_back(concat(head, part));
    }
    boxes = std::move(products);
  }
  return boxes;
}

Strides refine_strides(const Strides& strides, const Space& coarse, const Space& fine) {
  const Nesting nesting = nest(coarse, fine);
  Strides refined = Strides::filled(fine.factors.size(), 0);
  for (int c = 0; c < coarse.factors.size(); ++c) {
    std::int64_t stride = strides[c];
    for (std::int64_t f = nesting.end[c] - 1; f >= nesting.begin[c]; --f) {
      refined[static_cast<int>(f)] = stride;
      stride = checked_mul(stride, fine.factors[static_cast<int>(f)]);
    }
  }
  return refined;
}

std::string to_string(const Space& space) {
  std::string text = "[";
  for (int d = 0; d < space.rank(); ++d) {
    const FactorRange range = factors_of(space, d);
    text += fmt::format("{}{}", d == 0 ? "" : ", ", extent_of(space, range));
    for (int f = range.begin; range.end - range.begin > 1 && f < range.end; ++f) {
      text += fmt::format("{}{}", f == range.begin ? "=" : "*", space.factors[f]);
    }
  }
  return text + "]";
}

}  // namespace crossmesh
