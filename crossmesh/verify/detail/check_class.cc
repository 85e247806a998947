// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "crossmesh/geometry/cover.h"
#include "crossmesh/verify/detail/checks.h"
#include "crossmesh/verify/detail/trace.h"

namespace crossmesh::detail {
namespace {

std::string text_of(const Copy& copy) {
  return fmt::format("role {} <- {}, source {}, target {}", copy.target_role, copy.source_role,
                     to_string(StridedRegion{copy.counts, copy.source}),
                     to_string(StridedRegion{copy.counts, copy.target}));
}

// A role's pieces, ready to be traced; nothing for empty ones, and for those that cannot be.
struct Tracks {
  std::vector<std::optional<Digits>> pieces;
  bool traceable = true;
};

Tracks tracks_of(const LayoutClass& c, std::size_t role) {
  Tracks tracks;
  for (const Piece& piece : c.pieces_of_role[role]) {
    if (is_empty(piece.box)) {
      tracks.pieces.push_back(std::nullopt);
      continue;
    }
    tracks.pieces.push_back(digits_of(piece, c.space));
    tracks.traceable = tracks.traceable && tracks.pieces.back().has_value();
  }
  return tracks;
}

// A lattice cut at one end by the one piece that holds it.
struct Cut {
  std::size_t piece = 0;
  std::vector<Lattice> parts;
};

std::optional<Cut> cut_by_piece(const Lattice& lattice, const Tracks& tracks, End end) {
  for (std::size_t p = 0; p < tracks.pieces.size(); ++p) {
    if (!tracks.pieces[p]) continue;
    if (auto parts = cut(lattice, *tracks.pieces[p], end)) return Cut{p, std::move(*parts)};
  }
  return std::nullopt;
}

bool is_in_form(const Copy& copy) {
  const int rank = copy.counts.size();
  if (copy.source.strides.size() != rank || copy.target.strides.size() != rank) return false;
  for (int d = 0; d < rank; ++d) {
    if (copy.counts[d] < 2) return false;
    if (d > 0 && copy.source.strides[d - 1] == copy.counts[d] * copy.source.strides[d] &&
        copy.target.strides[d - 1] == copy.counts[d] * copy.target.strides[d]) {
      return false;
    }
  }
  return true;
}

// Checks one class, role by role.
class ClassCheck {
 public:
  ClassCheck(const PlanClass& c, const LayoutClass& source, const LayoutClass& target)
      : class_(c), source_(source), target_(target) {}

  std::vector<Finding> run() {
    if (!check_table()) return std::move(findings_);
    nests_ = common_refinement(source_.space, target_.space).has_value();
    for (std::size_t role = 0; role < source_.pieces_of_role.size(); ++role) {
      sources_.push_back(tracks_of(source_, role));
    }
    for (std::size_t role = 0; role < target_.pieces_of_role.size(); ++role) check_role(role);
    check_unique();
    return std::move(findings_);
  }

 private:
  void find(std::string what, std::string facts, int role = -1) {
    findings_.push_back({std::move(what), std::move(facts), role});
  }
  bool check_table();
  void check_role(std::size_t role);
  void check_copy(const Copy& copy, const Tracks& tracks,
                  std::vector<std::vector<StridedRegion>>& filled);
  void check_elements(const Copy& copy, const Cut& at_target, const Tracks& tracks);
  void check_turn(const Copy& copy, std::size_t source_piece);
  void check_filled(std::size_t role, const Tracks& tracks,
                    const std::vector<std::vector<StridedRegion>>& filled);
  void check_unique();

  const PlanClass& class_;
  const LayoutClass& source_;
  const LayoutClass& target_;
  std::vector<Tracks> sources_;
  bool nests_ = false;  // whether boxes of one side are boxes, or a few, of the other
  std::vector<Finding> findings_;
};

bool ClassCheck::check_table() {
  const auto& first = class_.first_copy_of_target_role;
  bool is_right = first.size() == target_.pieces_of_role.size() + 1 && first.front() == 0 &&
                  first.back() == static_cast<int>(class_.copies.size()) &&
                  std::is_sorted(first.begin(), first.end());
  for (std::size_t role = 0; is_right && role + 1 < first.size(); ++role) {
    for (int k = first[role]; k < first[role + 1]; ++k) {
      const Copy& copy = class_.copies[static_cast<std::size_t>(k)];
      is_right = is_right && copy.target_role == static_cast<int>(role);
    }
  }
  if (!is_right) find("the table of copies by target role is wrong", "");
  return is_right;
}

void ClassCheck::check_elements(const Copy& copy, const Cut& at_target, const Tracks& tracks) {
  const Tracks& held = sources_[static_cast<std::size_t>(copy.source_role)];
  for (const Lattice& part : at_target.parts) {
    const std::optional<Cut> at_source = cut_by_piece(part, held, End::source);
    if (!at_source) {
      find("a copy reads what its source role does not hold", text_of(copy), copy.target_role);
      return;
    }
    if (nests_ && &part == &at_target.parts.front()) check_turn(copy, at_source->piece);
    for (const Lattice& lattice : at_source->parts) {
      const Elements read = elements_along(lattice, *held.pieces[at_source->piece], End::source);
      const Elements written =
          elements_along(lattice, *tracks.pieces[at_target.piece], End::target);
      const bool is_same = read.tensor == written.tensor &&
                           std::equal(read.steps.begin(), read.steps.end(), written.steps.begin(),
                                      written.steps.end(), [](const auto& a, const auto& b) {
                                        return a.tensor == b.tensor;
                                      });
      if (is_same) continue;
      find("a copy moves other elements than are wanted",
           fmt::format("{}, element {} to the place of {}", text_of(copy), read.tensor,
                       written.tensor),
           copy.target_role);
      return;
    }
  }
}

// Roles whose pieces have equal boxes take turns by target role.
void ClassCheck::check_turn(const Copy& copy, std::size_t source_piece) {
  const auto role = static_cast<std::size_t>(copy.source_role);
  const Box& box = source_.pieces_of_role[role][source_piece].box;
  std::vector<int> equal;
  for (std::size_t r = 0; r < source_.pieces_of_role.size(); ++r) {
    const auto& pieces = source_.pieces_of_role[r];
    const bool has = std::any_of(pieces.begin(), pieces.end(),
                                 [&](const Piece& piece) { return piece.box == box; });
    if (has) equal.push_back(static_cast<int>(r));
  }
  const int turn = equal[static_cast<std::size_t>(copy.target_role) % equal.size()];
  if (turn == copy.source_role) return;
  find("a copy reads from a role whose turn it is not",
       fmt::format("{}, turn of role {}", text_of(copy), turn), copy.target_role);
}

void ClassCheck::check_copy(const Copy& copy, const Tracks& tracks,
                            std::vector<std::vector<StridedRegion>>& filled) {
  if (!is_in_form(copy)) {
    find("a copy is not in its shortest form", text_of(copy), copy.target_role);
    return;
  }
  if (copy.source_role < 0 || static_cast<std::size_t>(copy.source_role) >= sources_.size()) {
    find("a copy reads from no role", text_of(copy), copy.target_role);
    return;
  }
  Lattice lattice{copy.source.offset, copy.target.offset, {}};
  for (int d = 0; d < copy.counts.size(); ++d) {
    lattice.loops.push_back({copy.counts[d], copy.source.strides[d], copy.target.strides[d]});
  }
  const std::optional<Cut> at_target = cut_by_piece(lattice, tracks, End::target);
  if (!at_target) {
    find("a copy writes outside the pieces of its target role", text_of(copy), copy.target_role);
    return;
  }
  for (const Lattice& part : at_target->parts) {
    const Elements written = elements_along(part, *tracks.pieces[at_target->piece], End::target);
    StridedRegion region{{}, {written.piece, {}}};
    for (const Elements::Step& step : written.steps) {
      if (region.shape.full()) {
        find("a copy is too intricate to trace", text_of(copy), copy.target_role);
        return;
      }
      region.shape.push_back(step.count);
      region.view.strides.push_back(step.piece);
    }
    filled[at_target->piece].push_back(region);
  }
  check_elements(copy, *at_target, tracks);
}

void ClassCheck::check_filled(std::size_t role, const Tracks& tracks,
                              const std::vector<std::vector<StridedRegion>>& filled) {
  for (std::size_t p = 0; p < filled.size(); ++p) {
    if (!tracks.pieces[p]) continue;
    const auto fault = find_cover_fault(filled[p], tracks.pieces[p]->element_count);
    if (!fault) continue;
    std::string what;
    switch (fault->kind) {
      case CoverFault::Kind::hole:
        what = "an element of a piece is never written";
        break;
      case CoverFault::Kind::overlap:
        what = "an element of a piece is written twice";
        break;
      case CoverFault::Kind::outside:
        what = "a copy writes outside its piece";
        break;
      case CoverFault::Kind::intractable:
        what = "copies are too intricate to trace";
        break;
    }
    find(std::move(what),
         fmt::format("role {}, piece {} {}, element {}", role, p,
                     to_string(target_.pieces_of_role[role][p].box), fault->element),
         static_cast<int>(role));
  }
}

void ClassCheck::check_role(std::size_t role) {
  const Tracks tracks = tracks_of(target_, role);
  if (!tracks.traceable) {
    find("the strides of a piece do not nest", fmt::format("role {}", role),
         static_cast<int>(role));
    return;
  }
  std::vector<std::vector<StridedRegion>> filled(tracks.pieces.size());
  const Copy* before = nullptr;
  for (int k = class_.first_copy_of_target_role[role];
       k < class_.first_copy_of_target_role[role + 1]; ++k) {
    const Copy& copy = class_.copies[static_cast<std::size_t>(k)];
    if (before != nullptr && std::tuple(before->source_role, before->target.offset) >
                                 std::tuple(copy.source_role, copy.target.offset)) {
      find("copies are out of order", text_of(copy), static_cast<int>(role));
    }
    before = &copy;
    check_copy(copy, tracks, filled);
  }
  check_filled(role, tracks, filled);
}

void ClassCheck::check_unique() {
  std::vector<Box> boxes;
  for (const auto& pieces : target_.pieces_of_role) {
    for (const Piece& piece : pieces) boxes.push_back(piece.box);
  }
  const std::int64_t unique = count_union(boxes);
  if (unique == class_.unique_elements) return;
  find("the number of distinct elements is wrong",
       fmt::format("{} instead of {}", class_.unique_elements, unique));
}

std::int64_t count_slabs(const std::vector<const Box*>& boxes, int dim) {
  if (boxes.empty()) return 0;
  if (dim == boxes[0]->origin.size()) return 1;
  std::vector<std::int64_t> borders;
  for (const Box* box : boxes) {
    borders.push_back(box->origin[dim]);
    borders.push_back(box->origin[dim] + box->shape[dim]);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::int64_t sum = 0;
  for (std::size_t b = 0; b + 1 < borders.size(); ++b) {
    std::vector<const Box*> across;
    for (const Box* box : boxes) {
      if (box->origin[dim] <= borders[b] && borders[b] < box->origin[dim] + box->shape[dim]) {
        across.push_back(box);
      }
    }
    sum += (borders[b + 1] - borders[b]) * count_slabs(across, dim + 1);
  }
  return sum;
}

}  // namespace

std::int64_t count_union(const std::vector<Box>& boxes) {
  std::vector<const Box*> solid;
  for (const Box& box : boxes) {
    if (!is_empty(box)) solid.push_back(&box);
  }
  return count_slabs(solid, 0);
}

std::vector<Finding> check_class(const PlanClass& c, const LayoutClass& source,
                                 const LayoutClass& target) {
  return ClassCheck(c, source, target).run();
}

}  // namespace crossmesh::detail
