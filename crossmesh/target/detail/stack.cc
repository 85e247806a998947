// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/stack.h"

#include <algorithm>

#include "crossmesh/base/checked.h"

namespace crossmesh::detail {
namespace {

// Every expert lies on every rank, in its order; each part is cut alone.
PiecesOfRole cut_pieces(const Stack& stack) {
  const std::int64_t rows = stack.shape[1] / stack.parts;
  const Shape& local = stack.slices.local_shape;
  const std::int64_t part_elements = checked_product(local.span());
  const Strides strides = {checked_mul(stack.parts, part_elements), local[1], 1};
  PiecesOfRole pieces_of_role;
  for (const Box& slice : stack.slices.box_of_role) {
    std::vector<Piece>& pieces = pieces_of_role.emplace_back();
    for (int part = 0; part < stack.parts; ++part) {
      const Box box{{0, part * rows + slice.origin[0], slice.origin[1]},
                    {stack.shape[0], slice.shape[0], slice.shape[1]}};
      pieces.push_back({box, {part * part_elements, strides}});
    }
  }
  return pieces_of_role;
}

// Neighbours in neighbouring slots are one piece.
void add_whole(std::vector<Piece>& pieces, const Stack& stack, std::int64_t expert,
               std::int64_t slot) {
  const Shape shape = {1, stack.shape[1], stack.shape[2]};
  const Strides strides = contiguous_strides(shape);
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    const std::int64_t count = last.box.shape[0];
    if (last.box.origin[0] + count == expert &&
        last.view.offset == checked_mul(slot - count, strides[0])) {
      ++last.box.shape[0];
      return;
    }
  }
  pieces.push_back({{{expert, 0, 0}, shape}, {checked_mul(slot, strides[0]), strides}});
}

}  // namespace

std::vector<PiecesOfRole> pieces_of_stack(const Stack& stack, const ExpertPlacement& placement) {
  if (!stack.is_spread) return {cut_pieces(stack)};
  const std::size_t rank_count = placement.slots_of_rank.size();
  std::vector<PiecesOfRole> all;
  for (std::size_t expert = 0; expert < placement.slots_of_expert.size(); ++expert) {
    std::vector<std::size_t> copies(rank_count, 0);
    for (const Slot& slot : placement.slots_of_expert[expert]) {
      const std::size_t copy = copies[static_cast<std::size_t>(slot.rank)]++;
      if (copy == all.size()) all.emplace_back(rank_count);
      add_whole(all[copy][static_cast<std::size_t>(slot.rank)], stack,
                static_cast<std::int64_t>(expert), slot.index);
    }
  }
  return all;
}

}  // namespace crossmesh::detail
