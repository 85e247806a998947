// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/cross_check.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// A box of a tensor that lies in a parameter's storage.
struct Laid {
  Space space;
  DType dtype = DType::u8;
  Piece piece;
};

// What a layout says of one tensor on its rank: pieces by the name of the storage's owner.
struct Told {
  bool is_opaque = false;
  std::map<std::string, std::vector<Laid>> pieces;
};

std::map<std::string, Told> told_by(const RankLayout& side) {
  std::map<std::string, Told> result;
  for (const Instance& instance : side.layout.instances) {
    const auto at = [](const auto& values, int i) -> const auto& {
      return values[static_cast<std::size_t>(i)];
    };
    const int role = at(at(side.layout.bindings, instance.binding).role_of_rank, side.rank);
    if (role < 0) continue;
    Told& told = result[at(side.layout.tensors, instance.tensor).name];
    if (instance.opaque_reason >= 0) {
      told.is_opaque = true;
      continue;
    }
    const Parameter& parameter = at(side.layout.parameters, instance.parameter);
    std::vector<Laid>& laid = told.pieces[at(side.layout.parameters, parameter.storage).name];
    const LayoutClass& c = at(side.layout.classes, instance.layout_class);
    for (Piece piece : at(c.pieces_of_role, role)) {
      if (is_empty(piece.box)) continue;
      piece.view.offset += instance.offset;
      laid.push_back({c.space, c.dtype, piece});
    }
    if (laid.empty()) told.pieces.erase(at(side.layout.parameters, parameter.storage).name);
  }
  return result;
}

std::int64_t dot(const DimVector& a, const DimVector& b) {
  std::int64_t sum = 0;
  for (int d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

// The parts of a piece in a finer space, each with its view.
std::vector<Piece> refined(const Laid& laid, const Space& fine) {
  const Strides strides = refine_strides(laid.piece.view.strides, laid.space, fine);
  const std::int64_t base =
      laid.piece.view.offset - dot(laid.piece.box.origin, laid.piece.view.strides);
  std::vector<Piece> parts;
  for (const Box& box : refine(laid.piece.box, laid.space, fine)) {
    parts.push_back({box, {base + dot(box.origin, strides), strides}});
  }
  return parts;
}

// Elements that both pieces put to the same places.
std::int64_t shared_elements(const Piece& a, const Piece& b) {
  const std::optional<Box> box = intersect(a.box, b.box);
  if (!box) return 0;
  const View in_a = restrict(a.view, a.box, *box);
  const View in_b = restrict(b.view, b.box, *box);
  if (in_a.offset != in_b.offset) return 0;
  for (int d = 0; d < box->shape.size(); ++d) {
    if (box->shape[d] > 1 && in_a.strides[d] != in_b.strides[d]) return 0;
  }
  return volume(*box);
}

// Whether every element of `a` lies in one of `others` at its place. False where that cannot be
// told by boxes: elements decide then.
bool covers(const std::vector<Laid>& others, const Laid& a) {
  std::int64_t shared = 0;
  for (const Laid& b : others) {
    if (a.dtype != b.dtype) return false;
    const std::optional<Space> fine = common_refinement(a.space, b.space);
    if (!fine) return false;
    for (const Piece& part : refined(a, *fine)) {
      for (const Piece& other : refined(b, *fine)) shared += shared_elements(part, other);
    }
  }
  return shared == volume(a.piece.box);
}

// Elements in row-major order of the tensor, each with its places.
using Places = std::map<std::vector<std::int64_t>, std::vector<std::int64_t>>;

// The index in the tensor of an element of a refined space.
std::vector<std::int64_t> tensor_index(const Index& index, const Space& space) {
  std::vector<std::int64_t> result;
  int factor = 0;
  for (int d = 0; d < space.rank(); ++d) {
    std::int64_t value = 0;
    for (std::int64_t f = 0; f < space.factor_count[d]; ++f, ++factor) {
      value = value * space.factors[factor] + index[factor];
    }
    result.push_back(value);
  }
  return result;
}

Places places_of(const std::vector<Laid>& pieces) {
  Places places;
  for (const Laid& laid : pieces) {
    const Box& box = laid.piece.box;
    for (std::int64_t i = 0; i < volume(box); ++i) {
      Index index = box.origin;
      std::int64_t place = laid.piece.view.offset;
      std::int64_t rest = i;
      for (int d = box.shape.size(); d-- > 0;) {
        index[d] += rest % box.shape[d];
        place += rest % box.shape[d] * laid.piece.view.strides[d];
        rest /= box.shape[d];
      }
      places[tensor_index(index, laid.space)].push_back(place);
    }
  }
  for (auto& [index, all] : places) std::sort(all.begin(), all.end());
  return places;
}

std::optional<Disagreement> compare(const std::vector<Laid>& first,
                                    const std::vector<Laid>& second) {
  const auto is_covered_by = [](const std::vector<Laid>& others) {
    return [&others](const Laid& laid) { return covers(others, laid); };
  };
  if (std::all_of(first.begin(), first.end(), is_covered_by(second)) &&
      std::all_of(second.begin(), second.end(), is_covered_by(first))) {
    return std::nullopt;
  }
  std::map<std::vector<std::int64_t>, std::pair<Places::mapped_type, Places::mapped_type>> places;
  for (const auto& [index, in_first] : places_of(first)) places[index].first = in_first;
  for (const auto& [index, in_second] : places_of(second)) places[index].second = in_second;
  Disagreement found;
  for (const auto& [index, both] : places) {
    if (both.first == both.second || found.element_count++ > 0) continue;
    found.index = index;
    found.first_places = both.first;
    found.second_places = both.second;
  }
  if (found.element_count == 0) return std::nullopt;
  return found;
}

std::string text_of(const std::vector<std::int64_t>& places) {
  if (places.empty()) return "nowhere";
  return fmt::format("place {}", fmt::join(places, ", "));
}

}  // namespace

std::optional<Disagreement> first_disagreement(const RankLayout& first, const RankLayout& second) {
  const std::map<std::string, Told> a = told_by(first);
  std::map<std::string, Told> b = told_by(second);
  for (const TensorInfo& tensor : first.layout.tensors) {
    const auto told = a.find(tensor.name);
    if (told == a.end() || told->second.is_opaque || b[tensor.name].is_opaque) continue;
    std::map<std::string, std::pair<std::vector<Laid>, std::vector<Laid>>> both;
    for (const auto& [name, pieces] : told->second.pieces) both[name].first = pieces;
    for (const auto& [name, pieces] : b[tensor.name].pieces) both[name].second = pieces;
    for (const auto& [name, pieces] : both) {
      std::optional<Disagreement> found = compare(pieces.first, pieces.second);
      if (!found) continue;
      found->tensor = tensor.name;
      found->parameter = name;
      return found;
    }
  }
  return std::nullopt;
}

void cross_check(const RankLayout& resolution, const RankLayout& bake) {
  const std::optional<Disagreement> found = first_disagreement(resolution, bake);
  if (!found) return;
  throw Error(ErrorCode::mismatch, "cross-check: two layouts put a tensor to different places")
      .with("tensor", found->tensor)
      .with("parameter", found->parameter)
      .with("rank", resolution.rank)
      .with("element", fmt::format("[{}]", fmt::join(found->index, ", ")))
      .with(resolution.name, text_of(found->first_places))
      .with(bake.name, text_of(found->second_places))
      .with("elements that differ", found->element_count)
      .hint("the loader does not copy as its marks say: distrust it");
}

}  // namespace crossmesh
