// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/detail/parts.h"

#include <optional>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/meet.h"

namespace crossmesh::detail {
namespace {

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

// The space of one dimension alone.
Space only(const Space& space, int dim) {
  const FactorRange range = factors_of(space, dim);
  Space alone{{}, {range.end - range.begin}};
  for (int f = range.begin; f < range.end; ++f) alone.factors.push_back(space.factors[f]);
  return alone;
}

// The factors [split, end) of a piece that form intervals with the stride of the last factor.
int linear_from(const Piece& piece, const Space& space, FactorRange range) {
  int split = range.end - 1;
  std::int64_t stride = piece.view.strides[split];
  while (split > range.begin && piece.box.shape[split] == space.factors[split]) {
    stride *= space.factors[split];
    if (piece.box.shape[split - 1] > 1 && piece.view.strides[split - 1] != stride) break;
    --split;
  }
  return split;
}

std::int64_t interval_count(const Piece& piece, const Space& space, FactorRange range) {
  if (is_empty(piece.box)) return 0;
  std::int64_t count = 1;
  const int split = linear_from(piece, space, range);
  for (int f = range.begin; f < split; ++f) count *= piece.box.shape[f];
  return count;
}

std::int64_t flat_piece_count(const LayoutClass& c, int dim) {
  const FactorRange range = factors_of(c.space, dim);
  std::int64_t count = 0;
  for (const auto& pieces : c.pieces_of_role) {
    for (const Piece& piece : pieces) count += interval_count(piece, c.space, range);
  }
  return count;
}

// One interval of dimension `range`: `at` counts the steps of the factors before `split`.
Piece interval(const Piece& piece, const Space& space, FactorRange range, const Index& at) {
  const int split = linear_from(piece, space, range);
  Piece flat{{}, {piece.view.offset, {}}};
  for (int f = 0; f < piece.box.origin.size(); ++f) {
    if (f > range.begin && f < range.end) continue;
    flat.box.origin.push_back(piece.box.origin[f]);
    flat.box.shape.push_back(piece.box.shape[f]);
    flat.view.strides.push_back(piece.view.strides[f]);
  }
  std::int64_t begin = 0;
  std::int64_t size = 1;
  for (int f = range.begin; f < range.end; ++f) {
    const std::int64_t step = f < split ? at[f - range.begin] : 0;
    begin = begin * space.factors[f] + piece.box.origin[f] + step;
    flat.view.offset += step * piece.view.strides[f];
    if (f >= split) size *= piece.box.shape[f];
  }
  flat.box.origin[range.begin] = begin;
  flat.box.shape[range.begin] = size;
  flat.view.strides[range.begin] = piece.view.strides[range.end - 1];
  return flat;
}

// Steps `at` through the factors before the split, the last one fastest; false at the end.
bool advance(Index& at, const Piece& piece, FactorRange range) {
  for (int f = at.size() - 1; f >= 0; --f) {
    if (++at[f] < piece.box.shape[range.begin + f]) return true;
    at[f] = 0;
  }
  return false;
}

}  // namespace

std::vector<Part> parts_of(const LayoutClass& layout_class, const Space& fine) {
  std::vector<Part> parts;
  for (std::size_t role = 0; role < layout_class.pieces_of_role.size(); ++role) {
    const auto& pieces = layout_class.pieces_of_role[role];
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const Piece& piece = pieces[p];
      if (is_empty(piece.box)) continue;
      std::int64_t base = piece.view.offset;
      for (int d = 0; d < piece.box.origin.size(); ++d) {
        base -= piece.box.origin[d] * piece.view.strides[d];
      }
      const Strides strides = refine_strides(piece.view.strides, layout_class.space, fine);
      for (const Box& box : refine(piece.box, layout_class.space, fine)) {
        parts.push_back({static_cast<int>(role), static_cast<int>(p), box, base, strides});
      }
    }
  }
  return parts;
}

LayoutClass flatten(const LayoutClass& layout_class, int dim) {
  const FactorRange range = factors_of(layout_class.space, dim);
  if (const std::int64_t count = flat_piece_count(layout_class, dim); count > kFlatPiecesMax) {
    throw Error(ErrorCode::unsupported, "compile: refinements do not nest, and take too many boxes")
        .with("space", to_string(layout_class.space))
        .with("dimension", dim)
        .with("boxes", count)
        .with("limit", kFlatPiecesMax);
  }
  LayoutClass flat{{}, layout_class.dtype, {}};
  const Shape shape = tensor_shape(layout_class.space);
  for (int f = 0; f < layout_class.space.factors.size(); ++f) {
    if (f > range.begin && f < range.end) continue;
    flat.space.factors.push_back(f == range.begin ? shape[dim] : layout_class.space.factors[f]);
  }
  flat.space.factor_count = layout_class.space.factor_count;
  flat.space.factor_count[dim] = 1;
  for (const auto& pieces : layout_class.pieces_of_role) {
    auto& flat_pieces = flat.pieces_of_role.emplace_back();
    for (const Piece& piece : pieces) {
      if (is_empty(piece.box)) continue;
      const int split = linear_from(piece, layout_class.space, range);
      Index at = Index::filled(split - range.begin, 0);
      do {
        flat_pieces.push_back(interval(piece, layout_class.space, range, at));
      } while (advance(at, piece, range));
    }
  }
  return flat;
}

Nested nest(const LayoutClass& first, const LayoutClass& second) {
  if (tensor_shape(first.space) != tensor_shape(second.space)) {
    throw Error(ErrorCode::mismatch, "compile: the two sides give a tensor other shapes")
        .with("source shape", to_string(tensor_shape(first.space)))
        .with("target shape", to_string(tensor_shape(second.space)));
  }
  if (std::optional<Space> fine = common_refinement(first.space, second.space)) {
    return {first, second, *fine};
  }
  Nested nested{first, second, {}};
  for (int d = 0; d < first.space.rank(); ++d) {
    if (common_refinement(only(nested.first.space, d), only(nested.second.space, d))) continue;
    if (flat_piece_count(nested.first, d) <= flat_piece_count(nested.second, d)) {
      nested.first = flatten(nested.first, d);
    } else {
      nested.second = flatten(nested.second, d);
    }
  }
  std::optional<Space> fine = common_refinement(nested.first.space, nested.second.space);
  if (!fine) {
    throw Error(ErrorCode::unsupported, "compile: refinements take too many dimensions")
        .with("source space", to_string(first.space))
        .with("target space", to_string(second.space))
        .with("limit", kDimsMax);
  }
  nested.fine = *fine;
  return nested;
}

}  // namespace crossmesh::detail
