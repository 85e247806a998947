// SPDX-License-Identifier: Apache-2.0
// Classes are checked once each. Ranks are walked once per distinct (class, bindings, parameter
// class), which gives the offsets that fit; an instance only compares its own with them.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/overlap.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

Error fault(std::string_view what) {
  return Error(ErrorCode::internal, fmt::format("check layout: {}", what));
}

bool in_range(int index, std::size_t count) {
  return index >= 0 && static_cast<std::size_t>(index) < count;
}

template <typename Value>
const Value& at(const std::vector<Value>& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

bool any_negative(std::span<const std::int64_t> values) {
  return std::any_of(values.begin(), values.end(), [](std::int64_t v) { return v < 0; });
}

// The flat elements that a role's pieces reach, as they lie.
struct Reach {
  bool empty = true;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

Reach reach_of(const Shape& shape, const View& view) {
  Reach reach{is_empty(whole(shape)), view.offset, view.offset};
  if (reach.empty) return reach;
  for (int d = 0; d < shape.size(); ++d) {
    const std::int64_t steps = checked_mul(shape[d] - 1, view.strides[d]);
    std::int64_t& end = steps < 0 ? reach.first : reach.last;
    end = checked_add(end, steps);
  }
  return reach;
}

Reach join(const Reach& a, const Reach& b) {
  if (a.empty) return b;
  if (b.empty) return a;
  return {false, std::min(a.first, b.first), std::max(a.last, b.last)};
}

// -- Tables, each by itself ----------------------------------------------------------------------

void check_ranks(const Layout& layout) {
  if (layout.rank_count < 0) {
    throw fault("the number of ranks is negative").with("ranks", layout.rank_count);
  }
  const std::size_t ranks = static_cast<std::size_t>(layout.rank_count);
  if (layout.replica_of_rank.size() != ranks) {
    throw fault("replicas are not told for each rank")
        .with("ranks", ranks)
        .with("replicas told", layout.replica_of_rank.size());
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (in_range(layout.replica_of_rank[rank], ranks)) continue;
    throw fault("a replica is out of range")
        .with("rank", rank)
        .with("replica", layout.replica_of_rank[rank])
        .with("ranks", ranks);
  }
  for (std::size_t b = 0; b < layout.bindings.size(); ++b) {
    const std::vector<int>& roles = layout.bindings[b].role_of_rank;
    if (roles.size() != ranks) {
      throw fault("a binding does not tell a role for each rank")
          .with("binding", b)
          .with("roles told", roles.size())
          .with("ranks", ranks);
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (roles[rank] >= -1) continue;
      throw fault("a role is below -1")
          .with("binding", b)
          .with("rank", rank)
          .with("role", roles[rank]);
    }
  }
}

template <typename Named>
void check_names(const std::vector<Named>& values, std::string_view what) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a].name < values[b].name; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (values[order[i]].name != values[order[i - 1]].name) continue;
    throw fault("a name is told twice").with(what, values[order[i]].name);
  }
}

void check_tensors(const Layout& layout) {
  check_names(layout.tensors, "tensor");
  for (const TensorInfo& tensor : layout.tensors) {
    if (!any_negative(tensor.shape)) continue;
    throw fault("an extent is negative").with("tensor", tensor.name);
  }
}

void check_space(const Space& space, int layout_class) {
  const bool counts_fit = std::all_of(space.factor_count.begin(), space.factor_count.end(),
                                      [](std::int64_t n) { return 1 <= n && n <= kDimsMax; });
  const std::int64_t factors =
      std::accumulate(space.factor_count.begin(), space.factor_count.end(), std::int64_t{0});
  if (!counts_fit || factors != space.factors.size() || any_negative(space.factors.span())) {
    throw fault("a space is malformed")
        .with("class", layout_class)
        .with("factors", to_string(space.factors))
        .with("factors of dimensions", to_string(space.factor_count));
  }
  checked_product(space.factors.span());
}

Reach check_role(const LayoutClass& c, int layout_class, int role) {
  const std::vector<Piece>& pieces_of_role = at(c.pieces_of_role, role);
  const Box all = whole(c.space.factors);
  Reach reach;
  std::vector<Box> boxes;
  for (const Piece& piece : pieces_of_role) {
    const int dims = c.space.factors.size();
    const bool fits = piece.box.origin.size() == dims && piece.box.shape.size() == dims &&
                      piece.view.strides.size() == dims && !any_negative(piece.box.shape.span()) &&
                      !any_negative(piece.box.origin.span());
    bool inside = fits;
    for (int d = 0; inside && d < dims; ++d) {
      inside = piece.box.shape[d] <= all.shape[d] &&
               piece.box.origin[d] <= all.shape[d] - piece.box.shape[d];
    }
    if (!inside) {
      throw fault("a piece is outside its space")
          .with("class", layout_class)
          .with("role", role)
          .with("origin", to_string(piece.box.origin))
          .with("shape", to_string(piece.box.shape))
          .with("strides", to_string(piece.view.strides))
          .with("space", to_string(c.space));
    }
    reach = join(reach, reach_of(piece.box.shape, piece.view));
    if (pieces_of_role.size() > 1) boxes.push_back(piece.box);
  }
  if (const auto pair = find_overlap(boxes)) {
    throw fault("pieces of one role overlap")
        .with("class", layout_class)
        .with("role", role)
        .with("first", to_string(boxes[static_cast<std::size_t>(pair->first)]))
        .with("second", to_string(boxes[static_cast<std::size_t>(pair->second)]));
  }
  return reach;
}

// By class, then by role.
std::vector<std::vector<Reach>> check_classes(const Layout& layout) {
  std::vector<std::vector<Reach>> reach_of_role;
  for (std::size_t i = 0; i < layout.classes.size(); ++i) {
    const LayoutClass& c = layout.classes[i];
    check_space(c.space, static_cast<int>(i));
    std::vector<Reach>& reaches = reach_of_role.emplace_back();
    reaches.reserve(c.pieces_of_role.size());
    for (std::size_t role = 0; role < c.pieces_of_role.size(); ++role) {
      reaches.push_back(check_role(c, static_cast<int>(i), static_cast<int>(role)));
    }
  }
  return reach_of_role;
}

void check_reserves(const ParameterClass& c, std::size_t parameter_class,
                    const std::vector<std::int64_t>& elements_of_role) {
  for (std::size_t r = 0; r < c.reserves.size(); ++r) {
    const auto facts = [&](Error error) {
      return std::move(error.with("parameter class", parameter_class).with("reserve", r));
    };
    const Reserve& reserve = c.reserves[r];
    if (!in_range(reserve.role, c.shape_of_role.size())) {
      throw facts(fault("the role of a reserve is out of range")).with("role", reserve.role);
    }
    const StridedRegion& region = reserve.region;
    if (region.shape.size() != region.view.strides.size() || any_negative(region.shape.span())) {
      throw facts(fault("the region of a reserve is malformed")).with("region", to_string(region));
    }
    const Reach reach = reach_of(region.shape, region.view);
    const std::int64_t elements = at(elements_of_role, reserve.role);
    if (reach.empty || (reach.first >= 0 && reach.last < elements)) continue;
    throw facts(fault("a reserve is outside its parameter"))
        .with("role", reserve.role)
        .with("region", to_string(region))
        .with("elements", elements);
  }
}

// Elements of the storage, by parameter class, then by role.
std::vector<std::vector<std::int64_t>> check_parameter_classes(const Layout& layout) {
  std::vector<std::vector<std::int64_t>> elements_of_role;
  for (std::size_t i = 0; i < layout.parameter_classes.size(); ++i) {
    const ParameterClass& c = layout.parameter_classes[i];
    if (c.shape_of_role.size() != c.strides_of_role.size()) {
      throw fault("shapes and strides are not told for the same roles")
          .with("parameter class", i)
          .with("shapes", c.shape_of_role.size())
          .with("strides", c.strides_of_role.size());
    }
    std::vector<std::int64_t>& elements = elements_of_role.emplace_back();
    elements.reserve(c.shape_of_role.size());
    for (std::size_t role = 0; role < c.shape_of_role.size(); ++role) {
      const Shape& shape = c.shape_of_role[role];
      const Strides& strides = c.strides_of_role[role];
      if (shape.size() != strides.size() || any_negative(shape.span()) ||
          any_negative(strides.span())) {
        throw fault("the shape of a parameter is malformed")
            .with("parameter class", i)
            .with("role", role)
            .with("shape", to_string(shape))
            .with("strides", to_string(strides));
      }
      elements.push_back(storage_elements(shape, strides));
    }
    check_reserves(c, i, elements);
  }
  return elements_of_role;
}

// -- Tables against each other -------------------------------------------------------------------

struct Extents {
  std::vector<std::vector<Reach>> reach_of_role;            // of a layout class
  std::vector<std::vector<std::int64_t>> elements_of_role;  // of a parameter class
  std::vector<int> role_max;                                // of a binding; -1 when nobody plays
};

std::vector<int> find_role_max(const Layout& layout) {
  std::vector<int> role_max;
  for (const Binding& binding : layout.bindings) {
    role_max.push_back(-1);
    for (const int role : binding.role_of_rank) role_max.back() = std::max(role_max.back(), role);
  }
  return role_max;
}

void check_index(std::string_view holder, std::string_view name, std::string_view what,
                 std::pair<int, std::size_t> index_and_count) {
  const auto [index, count] = index_and_count;
  if (in_range(index, count)) return;
  throw fault("an index is out of range").with(holder, name).with(what, index).with("count", count);
}

// `bits` of a storage of one role, so that parameters of different dtypes compare.
std::int64_t bits_of(std::int64_t elements, DType dtype) {
  return checked_mul(elements, bit_size(dtype));
}

void check_tie(const Layout& layout, const Parameter& p, const Extents& extents) {
  const Parameter& owner = at(layout.parameters, p.storage);
  if (owner.storage != p.storage || &owner > &p) {
    throw fault("the owner of a storage is not its first name")
        .with("parameter", p.name)
        .with("owner", owner.name);
  }
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const int role = at(at(layout.bindings, p.binding).role_of_rank, rank);
    if (role < 0) continue;
    const int owner_role = at(at(layout.bindings, owner.binding).role_of_rank, rank);
    const auto bits = [&](const Parameter& q, int role_of_q) {
      return bits_of(at(at(extents.elements_of_role, q.parameter_class), role_of_q),
                     at(layout.parameter_classes, q.parameter_class).dtype);
    };
    if (owner_role >= 0 && bits(p, role) <= bits(owner, owner_role)) continue;
    throw fault("a name does not fit into the storage that it shares")
        .with("parameter", p.name)
        .with("owner", owner.name)
        .with("rank", rank);
  }
}

void check_parameters(const Layout& layout, const Extents& extents) {
  check_names(layout.parameters, "parameter");
  for (const Parameter& p : layout.parameters) {
    check_index("parameter", p.name, "class", {p.parameter_class, layout.parameter_classes.size()});
    check_index("parameter", p.name, "binding", {p.binding, layout.bindings.size()});
    check_index("parameter", p.name, "storage", {p.storage, layout.parameters.size()});
    const int role_max = at(extents.role_max, p.binding);
    const std::size_t roles = at(layout.parameter_classes, p.parameter_class).shape_of_role.size();
    if (role_max >= 0) check_index("parameter", p.name, "role", {role_max, roles});
  }
  for (const Parameter& p : layout.parameters) {
    if (&at(layout.parameters, p.storage) != &p) check_tie(layout, p, extents);
  }
}

// The offsets that keep every piece of a class inside the parameter, on every rank.
struct Room {
  std::int64_t offset_min = std::numeric_limits<std::int64_t>::min();
  std::int64_t offset_max = std::numeric_limits<std::int64_t>::max();
};

// Requires: all indices are in range.
Error place_fault(const Layout& layout, const Instance& i, std::string_view what) {
  return fault(what)
      .with("tensor", at(layout.tensors, i.tensor).name)
      .with("parameter", at(layout.parameters, i.parameter).name)
      .with("class", i.layout_class);
}

// What one rank allows; nothing where the class places no element there.
std::optional<Room> room_on(const Layout& layout, const Instance& i, const Extents& extents,
                            int rank) {
  const int role = at(at(layout.bindings, i.binding).role_of_rank, rank);
  if (role < 0) return std::nullopt;
  const Reach& reach = at(at(extents.reach_of_role, i.layout_class), role);
  if (reach.empty) return std::nullopt;
  const Parameter& p = at(layout.parameters, i.parameter);
  const int parameter_role = at(at(layout.bindings, p.binding).role_of_rank, rank);
  if (parameter_role < 0) {
    throw place_fault(layout, i, "a piece lies in a parameter that its rank lacks")
        .with("rank", rank);
  }
  const ParameterClass& pc = at(layout.parameter_classes, p.parameter_class);
  const std::int64_t elements = at(at(extents.elements_of_role, p.parameter_class), parameter_role);
  const std::int64_t fitting =
      bits_of(elements, pc.dtype) / bit_size(at(layout.classes, i.layout_class).dtype);
  return Room{checked_mul(-1, reach.first), checked_add(fitting - 1, checked_mul(-1, reach.last))};
}

Room find_room(const Layout& layout, const Instance& i, const Extents& extents) {
  Room all;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const std::optional<Room> room = room_on(layout, i, extents, rank);
    if (!room) continue;
    all.offset_min = std::max(all.offset_min, room->offset_min);
    all.offset_max = std::min(all.offset_max, room->offset_max);
  }
  return all;
}

// Requires: there is one.
Error outside_fault(const Layout& layout, const Instance& i, const Extents& extents) {
  Error error = place_fault(layout, i, "a view is outside its parameter");
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const std::optional<Room> room = room_on(layout, i, extents, rank);
    if (!room || (room->offset_min <= i.offset && i.offset <= room->offset_max)) continue;
    error.with("rank", rank)
        .with("offset", i.offset)
        .with("least", room->offset_min)
        .with("most", room->offset_max);
    break;
  }
  return error;
}

// Requires: the indices of earlier tables are in range.
void check_instance_indices(const Layout& layout, const Instance& i, const Extents& extents) {
  const std::string number = std::to_string(&i - layout.instances.data());
  check_index("instance", number, "tensor", {i.tensor, layout.tensors.size()});
  const std::string& name = at(layout.tensors, i.tensor).name;
  check_index("tensor", name, "parameter", {i.parameter, layout.parameters.size()});
  check_index("tensor", name, "class", {i.layout_class, layout.classes.size()});
  check_index("tensor", name, "binding", {i.binding, layout.bindings.size()});
  if (i.opaque_reason != -1) {
    check_index("tensor", name, "reason", {i.opaque_reason, layout.reasons.size()});
  }
  const int role_max = at(extents.role_max, i.binding);
  const std::size_t roles = at(layout.classes, i.layout_class).pieces_of_role.size();
  if (role_max >= 0) check_index("tensor", name, "role", {role_max, roles});
}

void check_instances(const Layout& layout, const Extents& extents) {
  std::map<std::tuple<int, int, int, int>, Room> room_of_geometry;
  for (const Instance& i : layout.instances) {
    check_instance_indices(layout, i, extents);
    const TensorInfo& tensor = at(layout.tensors, i.tensor);
    const Space& space = at(layout.classes, i.layout_class).space;
    const Shape shape = tensor_shape(space);
    // The pieces of an opaque tensor say what its loader may write, and need not be its elements.
    if (i.opaque_reason < 0 &&
        !std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) {
      throw fault("the space of a class is not its tensor's")
          .with("tensor", tensor.name)
          .with("shape", fmt::format("[{}]", fmt::join(tensor.shape, ", ")))
          .with("class", i.layout_class)
          .with("space", to_string(space));
    }
    const Parameter& p = at(layout.parameters, i.parameter);
    const std::tuple geometry{i.layout_class, i.binding, p.parameter_class, p.binding};
    auto found = room_of_geometry.find(geometry);
    if (found == room_of_geometry.end()) {
      found = room_of_geometry.emplace(geometry, find_room(layout, i, extents)).first;
    }
    const Room& room = found->second;
    if (i.offset < room.offset_min || i.offset > room.offset_max) {
      throw outside_fault(layout, i, extents);
    }
  }
}

}  // namespace

void check(const Layout& layout) {
  check_ranks(layout);
  check_tensors(layout);
  Extents extents{check_classes(layout), check_parameter_classes(layout), find_role_max(layout)};
  check_parameters(layout, extents);
  check_instances(layout, extents);
}

}  // namespace crossmesh
