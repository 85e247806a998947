// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"

namespace crossmesh {
namespace {

template <typename Value>
const Value& at(const std::vector<Value>& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

// Names in the order in which ranks first tell them.
class Names {
 public:
  // The place of the name, and whether it is new.
  std::pair<int, bool> add(const std::string& name) {
    const auto [found, is_new] = index_.emplace(name, static_cast<int>(index_.size()));
    return {found->second, is_new};
  }
  bool has(const std::string& name) const { return index_.contains(name); }

 private:
  std::unordered_map<std::string, int> index_;
};

Error differ(std::string_view what, const std::string& name, int rank) {
  return Error(ErrorCode::mismatch, fmt::format("merge: ranks tell {} differently", what))
      .with("name", name)
      .with("rank", rank);
}

// A parameter as ranks have it.
struct MergedParameter {
  std::string name;
  std::string owner;
  ParameterClass parameter_class;
  std::vector<std::vector<Reserve>> reserves_of_role;
  std::vector<int> role_of_rank;
};

// Pieces of one tensor in one parameter that one space tells.
struct MergedInstance {
  int tensor = 0;
  int parameter = 0;
  int reason = -1;
  std::vector<std::pair<int, const Instance*>> of_rank;
};

class Merger {
 public:
  explicit Merger(std::span<const Layout> layout_of_rank)
      : layouts_(layout_of_rank), interner_(merged_) {}

  Layout merge() {
    merged_.rank_count = static_cast<int>(layouts_.size());
    merged_.replica_of_rank.assign(layouts_.size(), 0);
    if (!layouts_.empty()) merged_.model = layouts_.front().model;
    for (std::size_t rank = 0; rank < layouts_.size(); ++rank) {
      const Layout& layout = layouts_[rank];
      if (layout.rank_count != 1 || layout.model != merged_.model) {
        throw Error(ErrorCode::invalid_argument,
                    "merge: layouts of one rank of one model are merged")
            .with("rank", rank)
            .with("ranks of its layout", layout.rank_count)
            .with("model", layout.model);
      }
      add_tensors(static_cast<int>(rank));
      add_parameters(static_cast<int>(rank));
      add_instances(static_cast<int>(rank));
    }
    for (const MergedParameter& parameter : parameters_) finish(parameter);
    for (const MergedInstance& instance : instances_) finish(instance);
    list_unused();
    check(merged_);
    return std::move(merged_);
  }

 private:
  void add_tensors(int rank) {
    const Layout& layout = layouts_[static_cast<std::size_t>(rank)];
    std::vector<bool> is_direct(layout.tensors.size(), false);
    for (const Instance& instance : layout.instances) {
      if (instance.opaque_reason < 0) is_direct[static_cast<std::size_t>(instance.tensor)] = true;
    }
    tensor_of_rank_.assign(layout.tensors.size(), 0);
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const TensorInfo& tensor = layout.tensors[t];
      const auto [index, is_new] = tensors_.add(tensor.name);
      tensor_of_rank_[t] = index;
      if (is_new) {
        merged_.tensors.push_back(tensor);
        is_dtype_fixed_.push_back(is_direct[t]);
        continue;
      }
      TensorInfo& known = merged_.tensors[static_cast<std::size_t>(index)];
      const std::size_t i = static_cast<std::size_t>(index);
      const bool dtypes_differ = known.dtype != tensor.dtype && is_direct[t] && is_dtype_fixed_[i];
      if (known.shape != tensor.shape || dtypes_differ) {
        throw differ("a tensor", tensor.name, rank)
            .with("dtype there", name_of(tensor.dtype))
            .with("dtype before", name_of(known.dtype))
            .with("shape there", fmt::format("[{}]", fmt::join(tensor.shape, ", ")))
            .with("shape before", fmt::format("[{}]", fmt::join(known.shape, ", ")));
      }
      if (is_direct[t]) known.dtype = tensor.dtype;
      if (is_direct[t]) is_dtype_fixed_[i] = true;
    }
  }

  void add_parameters(int rank) {
    const Layout& layout = layouts_[static_cast<std::size_t>(rank)];
    parameter_of_rank_.assign(layout.parameters.size(), 0);
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      const Parameter& parameter = layout.parameters[p];
      const ParameterClass& c = at(layout.parameter_classes, parameter.parameter_class);
      const std::string& owner = at(layout.parameters, parameter.storage).name;
      const auto [index, is_new] = names_.add(parameter.name);
      parameter_of_rank_[p] = index;
      if (is_new) {
        parameters_.push_back({parameter.name, owner, {c.dtype, {}, {}, {}}, {}, {}});
        parameters_.back().role_of_rank.assign(layouts_.size(), -1);
      }
      MergedParameter& known = parameters_[static_cast<std::size_t>(index)];
      if (known.parameter_class.dtype != c.dtype || known.owner != owner) {
        throw differ("a parameter", parameter.name, rank)
            .with("dtype there", name_of(c.dtype))
            .with("dtype before", name_of(known.parameter_class.dtype))
            .with("owner there", owner)
            .with("owner before", known.owner);
      }
      known.role_of_rank[static_cast<std::size_t>(rank)] = role_of(known, c);
    }
  }

  static int role_of(MergedParameter& known, const ParameterClass& c) {
    ParameterClass& all = known.parameter_class;
    for (std::size_t role = 0; role < all.shape_of_role.size(); ++role) {
      if (all.shape_of_role[role] == c.shape_of_role[0] &&
          all.strides_of_role[role] == c.strides_of_role[0] &&
          known.reserves_of_role[role] == c.reserves) {
        return static_cast<int>(role);
      }
    }
    const int role = static_cast<int>(all.shape_of_role.size());
    all.shape_of_role.push_back(c.shape_of_role[0]);
    all.strides_of_role.push_back(c.strides_of_role[0]);
    known.reserves_of_role.push_back(c.reserves);
    for (Reserve reserve : c.reserves) {
      reserve.role = role;
      all.reserves.push_back(std::move(reserve));
    }
    return role;
  }

  void add_instances(int rank) {
    const Layout& layout = layouts_[static_cast<std::size_t>(rank)];
    std::map<std::tuple<int, int, int, int>, int> occurrences;
    for (const Instance& instance : layout.instances) {
      const LayoutClass& c = at(layout.classes, instance.layout_class);
      int reason = -1;
      if (instance.opaque_reason >= 0) {
        const std::string& text = at(layout.reasons, instance.opaque_reason);
        const auto [index, is_new] = reasons_.add(text);
        if (is_new) merged_.reasons.push_back(text);
        reason = index;
      }
      const std::string space = fmt::format("{} {}", to_string(c.space), name_of(c.dtype));
      const std::tuple key{at(tensor_of_rank_, instance.tensor),
                           at(parameter_of_rank_, instance.parameter), reason,
                           spaces_.add(space).first};
      const int occurrence = occurrences[key]++;
      const auto [found, is_new] = instance_of_key_.emplace(
          std::tuple_cat(key, std::tuple(occurrence)), static_cast<int>(instances_.size()));
      if (is_new) {
        instances_.push_back({std::get<0>(key), std::get<1>(key), reason, {}});
      }
      instances_[static_cast<std::size_t>(found->second)].of_rank.emplace_back(rank, &instance);
    }
  }

  void finish(const MergedParameter& parameter) {
    const int owner = names_.add(parameter.owner).first;
    merged_.parameters.push_back({parameter.name,
                                  interner_.parameter_class(parameter.parameter_class),
                                  interner_.binding({parameter.role_of_rank}), owner});
  }

  void finish(const MergedInstance& instance) {
    std::int64_t offset = instance.of_rank.front().second->offset;
    for (const auto& [rank, of_rank] : instance.of_rank) offset = std::min(offset, of_rank->offset);
    LayoutClass c;
    Binding binding;
    binding.role_of_rank.assign(layouts_.size(), -1);
    for (const auto& [rank, of_rank] : instance.of_rank) {
      const LayoutClass& own =
          at(layouts_[static_cast<std::size_t>(rank)].classes, of_rank->layout_class);
      c.space = own.space;
      c.dtype = own.dtype;
      std::vector<Piece> pieces = own.pieces_of_role[0];
      for (Piece& piece : pieces) piece.view.offset += of_rank->offset - offset;
      const auto role = std::find(c.pieces_of_role.begin(), c.pieces_of_role.end(), pieces);
      binding.role_of_rank[static_cast<std::size_t>(rank)] =
          static_cast<int>(role - c.pieces_of_role.begin());
      if (role == c.pieces_of_role.end()) c.pieces_of_role.push_back(std::move(pieces));
    }
    merged_.instances.push_back({instance.tensor, instance.parameter,
                                 interner_.layout_class(std::move(c)),
                                 interner_.binding(std::move(binding)), offset, instance.reason});
  }

  void list_unused() {
    Names listed;
    for (const Layout& layout : layouts_) {
      for (const Unused& unused : layout.unused) {
        if (!listed.add(unused.name).second) continue;
        if (!tensors_.has(unused.name)) merged_.unused.push_back(unused);
      }
    }
  }

  std::span<const Layout> layouts_;
  Layout merged_;
  Interner interner_;
  Names tensors_;
  Names names_;
  Names reasons_;
  Names spaces_;
  std::vector<bool> is_dtype_fixed_;  // of merged tensors: pieces say in which dtype they lie
  std::vector<int> tensor_of_rank_;
  std::vector<int> parameter_of_rank_;
  std::vector<MergedParameter> parameters_;
  std::vector<MergedInstance> instances_;
  std::map<std::tuple<int, int, int, int, int>, int> instance_of_key_;
};

}  // namespace

Layout merge(std::span<const Layout> layout_of_rank) { return Merger(layout_of_rank).merge(); }

}  // namespace crossmesh
