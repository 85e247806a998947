// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/target/detail/live_index.h"
#include "crossmesh/target/resolve.h"

namespace crossmesh {
namespace {

// The geometry of a tensor that `shards` roles hold: whole, or a part of `shard_dim` each.
LayoutClass class_of(const AnnouncedTensor& tensor, const Shape& local,
                     std::optional<int> shard_dim, int shards) {
  LayoutClass result{Space::plain(tensor.shape.span()), tensor.dtype, {}};
  for (int role = 0; role < (shard_dim ? shards : 1); ++role) {
    Box box{Index::filled(local.size(), 0), local};
    if (shard_dim) box.origin[*shard_dim] = role * local[*shard_dim];
    result.pieces_of_role.push_back({});
    if (!is_empty(box)) {
      result.pieces_of_role.back().push_back({box, {0, contiguous_strides(local)}});
    }
  }
  return result;
}

class Writer {
 public:
  Writer(const ResolveRequest& request, const Resolution& resolution)
      : request_(request), resolution_(resolution), index_(request), interner_(layout_) {}

  Layout write() {
    layout_.rank_count = request_.rank_count;
    Binding whole;
    Binding cut;
    for (int rank = 0; rank < request_.rank_count; ++rank) {
      layout_.replica_of_rank.push_back(rank / request_.shard_count);
      whole.role_of_rank.push_back(0);
      cut.role_of_rank.push_back(rank % request_.shard_count);
    }
    whole_ = interner_.binding(whole);
    cut_ = interner_.binding(cut);
    find_fed();
    for (const LiveParameter& parameter : request_.parameters) add_parameter(parameter);
    for (std::size_t i = 0; i < request_.tensors.size(); ++i) add_tensor(i);
    return std::move(layout_);
  }

 private:
  // What each tensor feeds, and the parameters that none does.
  void find_fed() {
    is_fed_.resize(request_.parameters.size());
    for (std::size_t i = 0; i < request_.tensors.size(); ++i) {
      const AnnouncedTensor& tensor = request_.tensors[i];
      fed_.push_back(index_.fed_by(tensor));
      if (!fed_.back()) {
        throw Error(ErrorCode::unsupported, "resolve: it is not known what a tensor feeds")
            .with("tensor", tensor.name)
            .with("reason", resolution_.destinations[i].reason)
            .hint("say which parameters its loader writes, or bake");
      }
      for (const int parameter : *fed_.back()) is_fed_[static_cast<std::size_t>(parameter)] = true;
    }
  }

  void add_parameter(const LiveParameter& live) {
    const int number = static_cast<int>(layout_.parameters.size());
    const int first = live.alias_of.empty() ? number : *index_.find(live.alias_of);
    const LiveParameter& owner = request_.parameters[static_cast<std::size_t>(first)];
    ParameterClass value{owner.dtype, {owner.shape}, {}, {}};
    if (first == number && !is_fed_[static_cast<std::size_t>(number)]) {
      const StridedRegion all{owner.shape, {0, contiguous_strides(owner.shape)}};
      value.reserves = {{Reserve::Kind::kept, 0, all, 0, "no announced tensor feeds it"}};
    }
    layout_.parameters.push_back(
        {live.name, interner_.parameter_class(std::move(value)), whole_, first});
  }

  void add_tensor(std::size_t i) {
    const AnnouncedTensor& tensor = request_.tensors[i];
    const Destination& destination = resolution_.destinations[i];
    const int number = static_cast<int>(layout_.tensors.size());
    layout_.tensors.push_back(
        {tensor.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
    if (destination.is_direct) {
      const Shape& local =
          request_.parameters[static_cast<std::size_t>(destination.parameter)].shape;
      const int layout_class = interner_.layout_class(
          class_of(tensor, local, destination.shard_dim, request_.shard_count));
      layout_.instances.push_back({number, destination.parameter, layout_class,
                                   destination.shard_dim ? cut_ : whole_, 0, -1});
      return;
    }
    for (const int parameter : *fed_[i]) add_opaque(number, parameter, destination.reason);
  }

  // Its loader may write anything of the parameter: one box, of which only the place counts.
  void add_opaque(int tensor, int parameter, const std::string& reason) {
    const LiveParameter& live = request_.parameters[static_cast<std::size_t>(parameter)];
    AnnouncedTensor region{"", live.dtype, live.shape, {}};
    const int layout_class = interner_.layout_class(class_of(region, live.shape, {}, 1));
    const auto at = std::find(layout_.reasons.begin(), layout_.reasons.end(), reason);
    const int number = static_cast<int>(at - layout_.reasons.begin());
    if (at == layout_.reasons.end()) layout_.reasons.push_back(reason);
    layout_.instances.push_back({tensor, parameter, layout_class, whole_, 0, number});
  }

  const ResolveRequest& request_;
  const Resolution& resolution_;
  detail::LiveIndex index_;
  std::vector<std::optional<std::vector<int>>> fed_;  // of each tensor
  std::vector<bool> is_fed_;                          // of each parameter
  Layout layout_;
  Interner interner_;
  int whole_ = 0;
  int cut_ = 0;
};

}  // namespace

Layout lay_out(const ResolveRequest& request, const Resolution& resolution) {
  return Writer(request, resolution).write();
}

}  // namespace crossmesh
