// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/meet.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/detail/boxes.h"
#include "crossmesh/plan/detail/merge.h"
#include "crossmesh/plan/detail/parts.h"

namespace crossmesh {
namespace {

using detail::BoxIndex;
using detail::Part;

// What a source class holds: distinct boxes, and for each the parts that hold it.
struct Held {
  const LayoutClass* source = nullptr;
  std::vector<Part> parts;  // in the order of index.boxes, then of role
  BoxIndex index;
  std::vector<std::size_t> first_part;  // of each box; one more at the end
  bool disjoint = true;
};

Held held_by(const LayoutClass& source, const Space& fine) {
  Held held;
  held.source = &source;
  held.parts = detail::parts_of(source, fine);
  std::vector<Box> boxes;
  for (const Part& part : held.parts) boxes.push_back(part.box);
  held.index = detail::index_boxes(std::move(boxes));
  std::vector<std::pair<std::size_t, std::size_t>> order;  // (box, part)
  for (std::size_t p = 0; p < held.parts.size(); ++p) {
    const Box& box = held.parts[p].box;
    const auto at = std::partition_point(held.index.boxes.begin(), held.index.boxes.end(),
                                         [&](const Box& other) {
                                           const auto a = held.index.begin_of(other);
                                           const auto b = held.index.begin_of(box);
                                           return a != b ? a < b : detail::lies_before(other, box);
                                         });
    order.emplace_back(at - held.index.boxes.begin(), p);
  }
  std::sort(order.begin(), order.end());
  std::vector<Part> sorted;
  sorted.reserve(order.size());
  for (const auto& [box, part] : order) {
    while (held.first_part.size() <= box) held.first_part.push_back(sorted.size());
    sorted.push_back(held.parts[part]);
  }
  held.parts = std::move(sorted);
  held.first_part.push_back(held.parts.size());
  held.disjoint = detail::is_disjoint(held.index);
  return held;
}

const Piece& piece_of(const Held& held, const Part& part) {
  const auto& pieces = held.source->pieces_of_role[static_cast<std::size_t>(part.role)];
  return pieces[static_cast<std::size_t>(part.piece)];
}

View view_at(const Part& part, const Box& box) {
  View view{part.base, part.strides};
  for (int d = 0; d < box.origin.size(); ++d) view.offset += box.origin[d] * part.strides[d];
  return view;
}

// Copies of one target role, while they are collected.
using Drafts = std::vector<detail::Draft>;

void add_draft(Drafts& drafts, const Part& source, const Part& target, const Box& box) {
  Copy copy{source.role, target.role, box.shape, view_at(source, box), view_at(target, box)};
  drafts.push_back({detail::canonical(copy), source.piece, target.piece});
}

// The boxes of `wanted` that no source box holds.
std::vector<Box> missing_from(const Held& held, const Box& wanted) {
  std::vector<Box> rest{wanted};
  const BoxIndex::Range range = held.index.near(wanted);
  for (std::size_t b = range.first; b < range.last && !rest.empty(); ++b) {
    std::vector<Box> smaller;
    for (const Box& box : rest) {
      for (const Box& part : detail::subtract(box, held.index.boxes[b])) smaller.push_back(part);
    }
    rest = std::move(smaller);
  }
  return rest;
}

void require_held(const Held& held, const Part& wanted, const Space& fine) {
  const std::vector<Box> rest = missing_from(held, wanted.box);
  if (rest.empty()) return;
  throw Error(ErrorCode::mismatch, "compile: no source rank holds a wanted box")
      .with("target role", wanted.role)
      .with("space", to_string(fine))
      .with("wanted", to_string(wanted.box))
      .with("missing", to_string(rest.front()));
}

// Which of the parts that hold box `b` serves target role `role`. The first of them, and those of
// pieces with the same box, take turns.
const Part& chosen(const Held& held, std::size_t b, int role) {
  const std::size_t first = held.first_part[b];
  const std::size_t last = held.first_part[b + 1];
  if (last - first == 1) return held.parts[first];
  const Box& box = piece_of(held, held.parts[first]).box;
  std::vector<std::size_t> equal;
  for (std::size_t p = first; p < last; ++p) {
    if (piece_of(held, held.parts[p]).box == box) equal.push_back(p);
  }
  return held.parts[equal[static_cast<std::size_t>(role) % equal.size()]];
}

// Takes each element of `wanted` from the first source box that holds it.
void draft_overlapping(Drafts& drafts, const Held& held, const Part& wanted) {
  std::vector<Box> rest{wanted.box};
  const BoxIndex::Range range = held.index.near(wanted.box);
  for (std::size_t b = range.first; b < range.last && !rest.empty(); ++b) {
    std::vector<Box> smaller;
    for (const Box& box : rest) {
      const std::optional<Box> common = intersect(box, held.index.boxes[b]);
      if (common) add_draft(drafts, chosen(held, b, wanted.role), wanted, *common);
      for (const Box& part : detail::subtract(box, held.index.boxes[b])) smaller.push_back(part);
    }
    rest = std::move(smaller);
  }
}

void draft(Drafts& drafts, const Held& held, const Part& wanted, const Space& fine) {
  if (!held.disjoint) {
    require_held(held, wanted, fine);
    draft_overlapping(drafts, held, wanted);
    return;
  }
  std::int64_t found = 0;
  const BoxIndex::Range range = held.index.near(wanted.box);
  for (std::size_t b = range.first; b < range.last; ++b) {
    const std::optional<Box> common = intersect(wanted.box, held.index.boxes[b]);
    if (!common) continue;
    found += volume(*common);
    add_draft(drafts, chosen(held, b, wanted.role), wanted, *common);
  }
  if (found != volume(wanted.box)) require_held(held, wanted, fine);
}

}  // namespace

PlanClass meet(const LayoutClass& source, const LayoutClass& target) {
  const detail::Nested nested = detail::nest(source, target);
  const Held held = held_by(nested.first, nested.fine);
  const std::vector<Part> wanted = detail::parts_of(nested.second, nested.fine);
  PlanClass met;
  std::vector<Box> boxes;
  for (const Part& part : wanted) boxes.push_back(part.box);
  met.unique_elements = detail::union_volume(std::move(boxes));
  std::size_t next = 0;
  const int role_count = static_cast<int>(target.pieces_of_role.size());
  for (int role = 0; role < role_count; ++role) {
    met.first_copy_of_target_role.push_back(static_cast<int>(met.copies.size()));
    Drafts drafts;
    for (; next < wanted.size() && wanted[next].role == role; ++next) {
      draft(drafts, held, wanted[next], nested.fine);
    }
    for (Copy& copy : detail::merged(std::move(drafts))) met.copies.push_back(std::move(copy));
  }
  met.first_copy_of_target_role.push_back(static_cast<int>(met.copies.size()));
  return met;
}

PlanClass meet_whole(const LayoutClass& source) {
  const Shape shape = tensor_shape(source.space);
  LayoutClass target{Space::plain(shape.span()), source.dtype, {}};
  target.pieces_of_role = {{{whole(shape), {0, contiguous_strides(shape)}}}};
  return meet(source, target);
}

std::int64_t wanted_elements(const std::vector<WantedClass>& wanted) {
  LayoutClass all;
  for (const WantedClass& w : wanted) {
    LayoutClass played{w.layout_class->space, w.layout_class->dtype, {}};
    std::vector<bool> is_played(w.layout_class->pieces_of_role.size(), w.binding == nullptr);
    for (std::size_t r = 0; w.binding && r < w.binding->role_of_rank.size(); ++r) {
      const int role = w.binding->role_of_rank[r];
      if (role >= 0) is_played[static_cast<std::size_t>(role)] = true;
    }
    auto& pieces = played.pieces_of_role.emplace_back();
    for (std::size_t role = 0; role < is_played.size(); ++role) {
      if (!is_played[role]) continue;
      for (const Piece& piece : w.layout_class->pieces_of_role[role]) pieces.push_back(piece);
    }
    if (all.pieces_of_role.empty()) {
      all = std::move(played);
      continue;
    }
    // Brings both into one space, as one role of boxes whose views no longer matter.
    const detail::Nested nested = detail::nest(all, played);
    all = {nested.fine, all.dtype, {{}}};
    for (const LayoutClass* c : {&nested.first, &nested.second}) {
      for (const Part& part : detail::parts_of(*c, nested.fine)) {
        all.pieces_of_role[0].push_back({part.box, {part.base, part.strides}});
      }
    }
  }
  std::vector<Box> boxes;
  for (const auto& pieces : all.pieces_of_role) {
    for (const Piece& piece : pieces) boxes.push_back(piece.box);
  }
  return detail::union_volume(std::move(boxes));
}

}  // namespace crossmesh
