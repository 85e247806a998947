// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "crossmesh/geometry/cover.h"
#include "crossmesh/verify/detail/checks.h"
#include "crossmesh/verify/detail/trace.h"

namespace crossmesh::detail {
namespace {

template <typename Values>
const auto& at(const Values& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

int role_on(const Layout& layout, int binding, int rank) {
  return at(at(layout.bindings, binding).role_of_rank, rank);
}

// One memory on one rank: its own elements in a row, and what is said to lie on them. In bits where
// dtypes differ, so that all are comparable.
struct Memory {
  const ParameterClass* parameter_class = nullptr;
  int role = -1;
  std::int64_t unit_bits = 1;
  std::int64_t element_count = 0;  // of the parameter, without gaps between its rows; in units
  std::optional<Digits> digits;
  std::vector<StridedRegion> claims;  // in element numbers of the parameter
  std::vector<int> instances;         // of each claim; -1 for a reserve
};

StridedRegion in_units(StridedRegion region, std::int64_t units) {
  if (units == 1) return region;
  region.view.offset *= units;
  for (std::int64_t& stride : region.view.strides) stride *= units;
  region.shape.push_back(units);
  region.view.strides.push_back(1);
  return region;
}

Strides strides_of(const ParameterClass& c, int role) {
  return c.strides_of_role.empty() ? contiguous_strides(at(c.shape_of_role, role))
                                   : at(c.strides_of_role, role);
}

// The element numbers of a region of the memory; false where it leaves the parameter.
bool claim(Memory& memory, const StridedRegion& region, int instance) {
  Lattice lattice{0, region.view.offset, {}};
  for (int d = 0; d < region.shape.size(); ++d) {
    if (region.shape[d] == 0) return true;
    lattice.loops.push_back({region.shape[d], 0, region.view.strides[d]});
  }
  const auto parts = cut(lattice, *memory.digits, End::target);
  if (!parts) return false;
  for (const Lattice& part : *parts) {
    const Elements elements = elements_along(part, *memory.digits, End::target);
    StridedRegion numbered{{}, {elements.piece, {}}};
    for (const Elements::Step& step : elements.steps) {
      if (numbered.shape.full()) return false;
      numbered.shape.push_back(step.count);
      numbered.view.strides.push_back(step.piece);
    }
    memory.claims.push_back(numbered);
    memory.instances.push_back(instance);
  }
  return true;
}

class PlaceCheck {
 public:
  PlaceCheck(const Layout& layout, bool is_target, Faults& faults)
      : layout_(layout), is_target_(is_target), faults_(faults) {}

  void run();

 private:
  // The names of one memory, its owner first, and their instances.
  struct Storage {
    std::vector<int> parameters;
    std::vector<int> instances;
  };
  std::vector<Storage> storages() const;
  std::vector<std::int64_t> signature(const Storage& storage) const;
  std::vector<int> roles_on(const Storage& storage, int rank) const;
  std::optional<Memory> memory_on(const Storage& storage, int rank) const;
  void check(const Storage& storage, int rank);
  bool add_instance(Memory& memory, const Storage& storage, int instance, int rank);
  void fault(std::string what, const Storage& storage, int rank, std::string facts) {
    faults_.add(Fault{std::move(what),
                      {},
                      at(layout_.parameters, storage.parameters[0]).name,
                      is_target_ ? rank : -1,
                      std::move(facts)});
  }
  std::string owner_of(int instance) const {
    if (instance < 0) return "a reserve";
    return at(layout_.tensors, at(layout_.instances, instance).tensor).name;
  }

  const Layout& layout_;
  bool is_target_;
  Faults& faults_;
};

// A source's names are not tied: a tensor that is read twice from one memory harms nobody.
std::vector<PlaceCheck::Storage> PlaceCheck::storages() const {
  std::vector<Storage> storages(layout_.parameters.size());
  const auto storage_of = [&](int parameter) -> Storage& {
    const int owner = is_target_ ? at(layout_.parameters, parameter).storage : parameter;
    return storages[static_cast<std::size_t>(owner)];
  };
  for (int p = 0; p < static_cast<int>(layout_.parameters.size()); ++p) {
    auto& names = storage_of(p).parameters;
    const bool owns = !is_target_ || at(layout_.parameters, p).storage == p;
    names.insert(owns ? names.begin() : names.end(), p);
  }
  for (int i = 0; i < static_cast<int>(layout_.instances.size()); ++i) {
    storage_of(at(layout_.instances, i).parameter).instances.push_back(i);
  }
  return storages;
}

std::vector<std::int64_t> PlaceCheck::signature(const Storage& storage) const {
  std::vector<std::int64_t> values;
  for (const int p : storage.parameters) {
    values.push_back(at(layout_.parameters, p).parameter_class);
    values.push_back(at(layout_.parameters, p).binding);
  }
  values.push_back(-1);
  for (const int i : storage.instances) {
    const Instance& instance = at(layout_.instances, i);
    for (const std::int64_t value :
         {std::int64_t{instance.layout_class}, std::int64_t{instance.binding}, instance.offset,
          std::int64_t{instance.opaque_reason < 0}}) {
      values.push_back(value);
    }
  }
  return values;
}

std::vector<int> PlaceCheck::roles_on(const Storage& storage, int rank) const {
  std::vector<int> roles;
  for (const int p : storage.parameters) {
    roles.push_back(role_on(layout_, at(layout_.parameters, p).binding, rank));
  }
  for (const int i : storage.instances) {
    roles.push_back(role_on(layout_, at(layout_.instances, i).binding, rank));
  }
  return roles;
}

// The largest of the names that the rank has stands for the memory.
std::optional<Memory> PlaceCheck::memory_on(const Storage& storage, int rank) const {
  Memory memory;
  std::int64_t most = -1;
  std::int64_t bits = 0;
  for (const int p : storage.parameters) {
    const ParameterClass& c =
        at(layout_.parameter_classes, at(layout_.parameters, p).parameter_class);
    bits = std::gcd(bits, std::int64_t{bit_size(c.dtype)});
    const int role = role_on(layout_, at(layout_.parameters, p).binding, rank);
    if (role < 0) continue;
    const std::int64_t size =
        storage_elements(at(c.shape_of_role, role), strides_of(c, role)) * bit_size(c.dtype);
    if (size <= most) continue;
    most = size;
    memory.parameter_class = &c;
    memory.role = role;
  }
  if (most < 0) return std::nullopt;
  for (const int i : storage.instances) {
    const LayoutClass& c = at(layout_.classes, at(layout_.instances, i).layout_class);
    bits = std::gcd(bits, std::int64_t{bit_size(c.dtype)});
  }
  memory.unit_bits = bits;
  const ParameterClass& c = *memory.parameter_class;
  const Shape& shape = at(c.shape_of_role, memory.role);
  const StridedRegion all =
      in_units({shape, {0, strides_of(c, memory.role)}}, bit_size(c.dtype) / memory.unit_bits);
  memory.element_count = volume(whole(all.shape));
  if (memory.element_count > 0) {
    const Space space = Space::plain(all.shape.span());
    memory.digits = digits_of({whole(all.shape), all.view}, space);
  } else {
    memory.digits = Digits{0, 0, 0, {{1, 1, 0, 0}}};
  }
  return memory;
}

bool PlaceCheck::add_instance(Memory& memory, const Storage& storage, int index, int rank) {
  const Instance& instance = at(layout_.instances, index);
  const int role = role_on(layout_, instance.binding, rank);
  if (role < 0) return true;
  const LayoutClass& c = at(layout_.classes, instance.layout_class);
  for (const Piece& piece : at(c.pieces_of_role, role)) {
    if (is_empty(piece.box)) continue;
    StridedRegion region{piece.box.shape, piece.view};
    region.view.offset += instance.offset;
    // Loaders that write the same region are one claim.
    Memory other = memory;
    other.claims.clear();
    other.instances.clear();
    if (memory.element_count == 0 ||
        !claim(other, in_units(region, bit_size(c.dtype) / memory.unit_bits), index)) {
      fault("a piece lies outside its parameter", storage, rank,
            fmt::format("tensor {}, {}", owner_of(index), to_string(region)));
      return false;
    }
    for (const StridedRegion& numbered : other.claims) {
      bool is_known = false;
      for (std::size_t k = 0; instance.opaque_reason >= 0 && k < memory.claims.size(); ++k) {
        is_known = is_known || (memory.claims[k] == numbered && memory.instances[k] >= 0 &&
                                at(layout_.instances, memory.instances[k]).opaque_reason >= 0);
      }
      if (is_known) continue;
      memory.claims.push_back(numbered);
      memory.instances.push_back(index);
    }
  }
  return true;
}

void PlaceCheck::check(const Storage& storage, int rank) {
  std::optional<Memory> memory = memory_on(storage, rank);
  if (!memory) {
    for (const int i : storage.instances) {
      if (role_on(layout_, at(layout_.instances, i).binding, rank) < 0) continue;
      return fault("a tensor lands in a parameter that the rank has not", storage, rank,
                   fmt::format("tensor {}, rank {}", owner_of(i), rank));
    }
    return;
  }
  if (!memory->digits) {
    return fault("the strides of a parameter do not nest", storage, rank, "");
  }
  for (const int i : storage.instances) {
    if (!add_instance(*memory, storage, i, rank)) return;
  }
  const Parameter& owner = at(layout_.parameters, storage.parameters[0]);
  const ParameterClass& c = at(layout_.parameter_classes, owner.parameter_class);
  for (const Reserve& reserve : c.reserves) {
    if (!is_target_ || reserve.role != role_on(layout_, owner.binding, rank)) continue;
    const StridedRegion region = in_units(reserve.region, bit_size(c.dtype) / memory->unit_bits);
    if (!claim(*memory, region, -1)) {
      return fault("a reserve lies outside its parameter", storage, rank,
                   to_string(reserve.region));
    }
  }
  const auto found = find_cover_fault(memory->claims, memory->element_count);
  if (!found || (!is_target_ && found->kind == CoverFault::Kind::hole)) return;
  const auto claimant = [&](int k) { return owner_of(at(memory->instances, k)); };
  if (found->kind == CoverFault::Kind::overlap) {
    return fault("an element of a parameter is claimed twice", storage, rank,
                 fmt::format("element {}, by {} and {}", found->element, claimant(found->first),
                             claimant(found->second)));
  }
  fault(found->kind == CoverFault::Kind::hole ? "an element of a parameter is never claimed"
                                              : "the pieces of a parameter do not nest",
        storage, rank, fmt::format("element {}", found->element));
}

void PlaceCheck::run() {
  std::set<std::vector<std::int64_t>> known;
  for (const Storage& storage : storages()) {
    if (storage.parameters.empty() || !known.insert(signature(storage)).second) continue;
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < layout_.rank_count; ++rank) {
      if (faults_.full()) return;
      if (seen.insert(roles_on(storage, rank)).second) check(storage, rank);
    }
  }
}

}  // namespace

void check_source_places(const Layout& source, Faults& faults) {
  PlaceCheck(source, false, faults).run();
}

void check_target_places(const Layout& target, Faults& faults) {
  PlaceCheck(target, true, faults).run();
}

}  // namespace crossmesh::detail
