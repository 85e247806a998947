// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/detail/prove.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/cover.h"

namespace crossmesh::detail {
namespace {

// All names and instances of one memory.
struct Storage {
  std::vector<int> parameters;  // the owner first
  std::vector<int> instances;
};

std::vector<Storage> storages_of(const Layout& target) {
  std::vector<Storage> storages(target.parameters.size());
  for (std::size_t p = 0; p < target.parameters.size(); ++p) {
    auto& names = storages[static_cast<std::size_t>(target.parameters[p].storage)].parameters;
    names.push_back(static_cast<int>(p));
  }
  for (std::size_t p = 0; p < storages.size(); ++p) {
    auto& names = storages[p].parameters;
    const auto owner = std::find(names.begin(), names.end(), static_cast<int>(p));
    if (owner != names.end()) std::rotate(names.begin(), owner, owner + 1);
  }
  for (std::size_t i = 0; i < target.instances.size(); ++i) {
    const auto p = static_cast<std::size_t>(target.instances[i].parameter);
    storages[static_cast<std::size_t>(target.parameters[p].storage)].instances.push_back(
        static_cast<int>(i));
  }
  return storages;
}

// All that the proof of a storage depends on, names aside.
using Key = std::vector<std::int64_t>;

Key key_of(const Layout& target, const Storage& storage) {
  Key key{static_cast<std::int64_t>(storage.parameters.size())};
  for (const int p : storage.parameters) {
    const Parameter& parameter = target.parameters[static_cast<std::size_t>(p)];
    key.insert(key.end(), {parameter.parameter_class, parameter.binding});
  }
  for (const int i : storage.instances) {
    const Instance& instance = target.instances[static_cast<std::size_t>(i)];
    key.insert(key.end(), {instance.layout_class, instance.binding, instance.offset,
                           instance.opaque_reason >= 0});
  }
  return key;
}

int role_of(const Layout& target, int binding, int rank) {
  return target.bindings[static_cast<std::size_t>(binding)]
      .role_of_rank[static_cast<std::size_t>(rank)];
}

// A region and what it is: an instance, or -1 for a reserve, or -2 for a gap between rows.
struct Claim {
  StridedRegion region;
  int instance = -1;
  std::string_view reserve;
};

// The storage of one rank and what claims parts of it; in units of `unit_bits`.
struct Ground {
  std::int64_t size = 0;
  std::int64_t unit_bits = 1;
  Shape shape;
  Strides strides;
  std::vector<Claim> claims;
};

StridedRegion in_units(const StridedRegion& region, std::int64_t units) {
  if (units == 1) return region;
  StridedRegion scaled = region;
  if (scaled.shape.full()) {
    throw Error(ErrorCode::unsupported, "compile: a reinterpreted view has too many dimensions")
        .with("region", to_string(region));
  }
  scaled.view.offset = checked_mul(region.view.offset, units);
  for (std::int64_t& stride : scaled.view.strides) stride = checked_mul(stride, units);
  scaled.shape.push_back(units);
  scaled.view.strides.push_back(1);
  return scaled;
}

// The elements between the rows of a strided parameter, which its strides step over.
void add_gaps(Ground& ground, std::int64_t units) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // (stride, extent)
  for (int d = 0; d < ground.shape.size(); ++d) {
    if (ground.shape[d] > 1) dims.emplace_back(ground.strides[d], ground.shape[d]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t inner = 1;  // extent of the dimensions so far
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto [stride, extent] = dims[d];
    if (stride > inner) {
      StridedRegion gap{{}, {inner, {}}};
      for (std::size_t o = dims.size(); o-- > d;) {
        gap.shape.push_back(o == d ? extent - 1 : dims[o].second);
        gap.view.strides.push_back(dims[o].first);
      }
      gap.shape.push_back(stride - inner);
      gap.view.strides.push_back(1);
      ground.claims.push_back({in_units(gap, units), -2, {}});
    }
    inner += (extent - 1) * stride;
  }
}

class Prover {
 public:
  explicit Prover(const Layout& target) : target_(target) {}

  void prove(const Storage& storage);

 private:
  std::optional<Ground> ground_of(const Storage& storage, int rank) const;
  void add_instance(Ground& ground, int instance, int rank) const;
  void add_reserves(Ground& ground, const Storage& storage, int rank) const;
  [[noreturn]] void fail(const Storage& storage, int rank, const Ground& ground,
                         const CoverFault& fault) const;
  std::string text_of(const Claim& claim) const;
  std::int64_t unit_bits(const Storage& storage) const;

  const Layout& target_;
};

const ParameterClass& class_of(const Layout& target, int parameter) {
  const auto p = static_cast<std::size_t>(parameter);
  const auto c = static_cast<std::size_t>(target.parameters[p].parameter_class);
  return target.parameter_classes[c];
}

// The largest number of bits that divides an element of every dtype in the storage.
std::int64_t Prover::unit_bits(const Storage& storage) const {
  std::int64_t bits = 0;
  for (const int p : storage.parameters) {
    bits = std::gcd(bits, std::int64_t{bit_size(class_of(target_, p).dtype)});
  }
  for (const int i : storage.instances) {
    const auto c = target_.instances[static_cast<std::size_t>(i)].layout_class;
    bits =
        std::gcd(bits, std::int64_t{bit_size(target_.classes[static_cast<std::size_t>(c)].dtype)});
  }
  return bits;
}

void Prover::add_instance(Ground& ground, int instance_index, int rank) const {
  const Instance& instance = target_.instances[static_cast<std::size_t>(instance_index)];
  const int role = role_of(target_, instance.binding, rank);
  if (role < 0) return;
  const LayoutClass& c = target_.classes[static_cast<std::size_t>(instance.layout_class)];
  const std::int64_t units = bit_size(c.dtype) / ground.unit_bits;
  for (const Piece& piece : c.pieces_of_role[static_cast<std::size_t>(role)]) {
    if (is_empty(piece.box)) continue;
    StridedRegion region{piece.box.shape, piece.view};
    region.view.offset = checked_add(region.view.offset, instance.offset);
    Claim claim{in_units(region, units), instance_index, {}};
    const bool is_known =
        instance.opaque_reason >= 0 &&
        std::any_of(ground.claims.begin(), ground.claims.end(), [&](const Claim& other) {
          return other.region == claim.region && other.instance >= 0 &&
                 target_.instances[static_cast<std::size_t>(other.instance)].opaque_reason >= 0;
        });
    if (!is_known) ground.claims.push_back(std::move(claim));
  }
}

void Prover::add_reserves(Ground& ground, const Storage& storage, int rank) const {
  const Parameter& owner = target_.parameters[static_cast<std::size_t>(storage.parameters[0])];
  const int role = role_of(target_, owner.binding, rank);
  const ParameterClass& c = class_of(target_, storage.parameters[0]);
  const std::int64_t units = bit_size(c.dtype) / ground.unit_bits;
  for (const Reserve& reserve : c.reserves) {
    if (reserve.role != role) continue;
    ground.claims.push_back({in_units(reserve.region, units), -1, reserve.reason});
  }
}

std::optional<Ground> Prover::ground_of(const Storage& storage, int rank) const {
  Ground ground;
  ground.unit_bits = unit_bits(storage);
  bool is_here = false;
  std::int64_t units = 1;
  for (const int p : storage.parameters) {
    const int role =
        role_of(target_, target_.parameters[static_cast<std::size_t>(p)].binding, rank);
    if (role < 0) continue;
    const ParameterClass& c = class_of(target_, p);
    const Shape& shape = c.shape_of_role[static_cast<std::size_t>(role)];
    const Strides strides = c.strides_of_role.empty()
                                ? contiguous_strides(shape)
                                : c.strides_of_role[static_cast<std::size_t>(role)];
    const std::int64_t size =
        checked_mul(storage_elements(shape, strides), bit_size(c.dtype) / ground.unit_bits);
    if (is_here && size <= ground.size) continue;
    is_here = true;
    units = bit_size(c.dtype) / ground.unit_bits;
    ground.size = size;
    ground.shape = shape;
    ground.strides = strides;
  }
  for (const int i : storage.instances) add_instance(ground, i, rank);
  if (!is_here && ground.claims.empty()) return std::nullopt;
  if (ground.size > 0) add_gaps(ground, units);
  add_reserves(ground, storage, rank);
  return ground;
}

std::string Prover::text_of(const Claim& claim) const {
  if (claim.instance == -2) return "a gap between rows";
  if (claim.instance == -1) return fmt::format("a reserve ({})", claim.reserve);
  const Instance& instance = target_.instances[static_cast<std::size_t>(claim.instance)];
  return target_.tensors[static_cast<std::size_t>(instance.tensor)].name;
}

void Prover::fail(const Storage& storage, int rank, const Ground& ground,
                  const CoverFault& fault) const {
  const auto code =
      fault.kind == CoverFault::Kind::intractable ? ErrorCode::unsupported : ErrorCode::mismatch;
  std::string summary;
  switch (fault.kind) {
    case CoverFault::Kind::outside:
      summary = "compile: a piece lies outside its parameter";
      break;
    case CoverFault::Kind::overlap:
      summary = "compile: an element is filled twice";
      break;
    case CoverFault::Kind::hole:
      summary = "compile: an element is never filled";
      break;
    case CoverFault::Kind::intractable:
      summary = "compile: the strides of a parameter's pieces do not nest";
      break;
  }
  Error error(code, std::move(summary));
  error.with("parameter", target_.parameters[static_cast<std::size_t>(storage.parameters[0])].name);
  error.with("rank", rank);
  error.with("shape", to_string(ground.shape));
  const bool is_plain =
      bit_size(class_of(target_, storage.parameters[0]).dtype) == ground.unit_bits;
  if (fault.kind != CoverFault::Kind::intractable) {
    error.with("element", is_plain
                              ? fmt::format("{}", fault.element)
                              : fmt::format("{} (of {} bits)", fault.element, ground.unit_bits));
  }
  if (fault.kind == CoverFault::Kind::hole) {
    error.with("filled", fmt::format("{} of {}", fault.count, ground.size));
    throw error;
  }
  for (const int claim : {fault.first, fault.second}) {
    if (claim >= 0) error.with("by", text_of(ground.claims[static_cast<std::size_t>(claim)]));
  }
  throw error;
}

void Prover::prove(const Storage& storage) {
  std::set<std::vector<int>> proven;  // by the roles that a rank plays in all that is involved
  for (int rank = 0; rank < target_.rank_count; ++rank) {
    std::vector<int> roles;
    for (const int p : storage.parameters) {
      const int binding = target_.parameters[static_cast<std::size_t>(p)].binding;
      roles.push_back(role_of(target_, binding, rank));
    }
    for (const int i : storage.instances) {
      roles.push_back(
          role_of(target_, target_.instances[static_cast<std::size_t>(i)].binding, rank));
    }
    if (!proven.insert(std::move(roles)).second) continue;
    const std::optional<Ground> ground = ground_of(storage, rank);
    if (!ground) continue;
    std::vector<StridedRegion> regions;
    for (const Claim& claim : ground->claims) regions.push_back(claim.region);
    if (const auto fault = find_cover_fault(regions, ground->size)) {
      fail(storage, rank, *ground, *fault);
    }
  }
}

}  // namespace

void prove_coverage(const Layout& target) {
  std::set<Key> proven;
  Prover prover(target);
  for (const Storage& storage : storages_of(target)) {
    if (storage.parameters.empty()) continue;
    if (!proven.insert(key_of(target, storage)).second) continue;
    prover.prove(storage);
  }
}

}  // namespace crossmesh::detail
