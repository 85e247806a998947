// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/resolve.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/target/detail/live_index.h"

namespace crossmesh {
namespace {

using detail::LiveIndex;
using detail::module_of;

// A mark that says that the elements do not lie as the tensor has them, or nothing.
std::optional<std::string_view> transforming_mark(const LoaderMarks& marks) {
  if (marks.packed_dim) return "packed_dim";
  if (marks.packed_factor) return "packed_factor";
  if (marks.marlin_tile_size) return "marlin_tile_size";
  if (marks.needs_scalar_to_array) return "needs_scalar_to_array";
  if (marks.is_sharded_weight) return "is_sharded_weight";
  if (marks.is_transposed) return "is_transposed";
  return std::nullopt;
}

// How a tensor lies in its parameter, or why it is not known to.
struct Answer {
  std::optional<int> shard_dim;
  std::string reason;
};

Answer refuse(std::string reason) { return {std::nullopt, std::move(reason)}; }

// The declared dimension stands; shapes may only contradict it.
Answer check_shapes(const Shape& whole, const Shape& local, std::optional<int> shard_dim,
                    int shard_count) {
  const auto shapes = [&] {
    return fmt::format("the tensor is {}, the parameter {}", to_string(whole), to_string(local));
  };
  if (whole.size() != local.size()) return refuse(shapes());
  if (shard_dim && *shard_dim >= whole.size()) {
    return refuse(fmt::format("the loader cuts dim {} of {}", *shard_dim, to_string(whole)));
  }
  for (int d = 0; d < whole.size(); ++d) {
    const bool is_cut = shard_dim && d == *shard_dim;
    const std::int64_t expected = is_cut ? checked_mul(local[d], shard_count) : local[d];
    if (whole[d] == expected) continue;
    return refuse(is_cut ? fmt::format("{}, which are not {} shards of dim {}", shapes(),
                                       shard_count, *shard_dim)
                         : shapes());
  }
  return {shard_dim, ""};
}

// The rules of a column or row layer: its owner cuts as the mesh does, along a declared dimension.
Answer resolve_cut(const LiveParameter& parameter, const Shape& whole, int shard_count) {
  const bool is_column = parameter.loader.kind == LoaderKind::column;
  if (!parameter.loader.is_bound) {
    return refuse(
        fmt::format("its {} loader is bound to no layer", name_of(parameter.loader.kind)));
  }
  if (parameter.loader.owner_tp_size != shard_count) {
    return refuse(fmt::format("its layer is cut by {}, the mesh by {}",
                              parameter.loader.owner_tp_size
                                  ? fmt::to_string(*parameter.loader.owner_tp_size)
                                  : "nothing",
                              shard_count));
  }
  const std::optional<std::int64_t>& dim =
      is_column ? parameter.marks.output_dim : parameter.marks.input_dim;
  const std::string_view mark = is_column ? "output_dim" : "input_dim";
  if (!dim) return refuse(fmt::format("it has no {}", mark));
  if (*dim < 0 || *dim > kDimsMax) return refuse(fmt::format("its {} is {}", mark, *dim));
  return check_shapes(whole, parameter.shape, static_cast<int>(*dim), shard_count);
}

Answer resolve_loader(const LiveParameter& parameter, const Shape& whole, int shard_count) {
  switch (parameter.loader.kind) {
    case LoaderKind::default_:
    case LoaderKind::replicated:
      return check_shapes(whole, parameter.shape, std::nullopt, shard_count);
    case LoaderKind::column:
    case LoaderKind::row:
      return resolve_cut(parameter, whole, shard_count);
    case LoaderKind::missing:
      return refuse("it has no loader");
    default:
      return refuse(
          fmt::format("its {} loader is not a plain copy", name_of(parameter.loader.kind)));
  }
}

class Resolver {
 public:
  explicit Resolver(const ResolveRequest& request) : request_(request), index_(request) {}

  Resolution resolve() const {
    Resolution resolution;
    for (const AnnouncedTensor& tensor : request_.tensors) {
      Destination destination;
      destination.name = tensor.name;
      Answer answer = answer_for(tensor);
      if (answer.reason.empty()) {
        destination.is_direct = true;
        destination.parameter = *index_.find(tensor.name);
        destination.shard_dim = answer.shard_dim;
      } else {
        destination.reason = std::move(answer.reason);
      }
      resolution.destinations.push_back(std::move(destination));
    }
    close(resolution);
    return resolution;
  }

 private:
  Answer answer_for(const AnnouncedTensor& tensor) const {
    if (!request_.distrust_all.empty()) return refuse(request_.distrust_all);
    if (const LiveParameter* second = index_.alias(tensor.name)) {
      return refuse(fmt::format("a second name of {}", second->alias_of));
    }
    const std::optional<int> at = index_.find(tensor.name);
    if (!at) return refuse("no parameter has its name");
    if (const std::string_view type = index_.distrusted_by(*at); !type.empty()) {
      return refuse(fmt::format("{} transforms what it loads", type));
    }
    if (tensor.feeds && index_.fed_by(tensor) != std::vector<int>{*at}) {
      return refuse("its loader writes another parameter too, or only another");
    }
    const LiveParameter& parameter = request_.parameters[static_cast<std::size_t>(*at)];
    if (parameter.dtype != tensor.dtype) {
      return refuse(fmt::format("the tensor is {}, the parameter {}", name_of(tensor.dtype),
                                name_of(parameter.dtype)));
    }
    if (!parameter.is_contiguous) return refuse("its parameter is not contiguous");
    if (request_.rank_count % request_.shard_count != 0) {
      return refuse(fmt::format("{} ranks are not whole replicas of {} shards", request_.rank_count,
                                request_.shard_count));
    }
    if (const auto mark = transforming_mark(parameter.marks)) {
      return refuse(fmt::format("it is marked {}", *mark));
    }
    return resolve_loader(parameter, tensor.shape, request_.shard_count);
  }

  // Modules that a fallback reaches, and through which tensor.
  void close(Resolution& resolution) const {
    std::unordered_map<std::string_view, std::string_view> tensor_of_module;
    std::string_view unknown;
    for (std::size_t i = 0; i < resolution.destinations.size(); ++i) {
      if (resolution.destinations[i].is_direct) continue;
      const AnnouncedTensor& tensor = request_.tensors[i];
      if (request_.closure == Closure::names) {
        if (index_.find(tensor.name)) tensor_of_module.emplace(module_of(tensor.name), tensor.name);
        continue;
      }
      const std::optional<std::vector<int>> fed = index_.fed_by(tensor);
      if (!fed && unknown.empty()) unknown = tensor.name;
      for (const int parameter : fed.value_or(std::vector<int>())) {
        // One with several names is in several modules.
        for (const std::string_view name : index_.names_of(parameter)) {
          tensor_of_module.emplace(module_of(name), tensor.name);
        }
      }
    }
    for (Destination& destination : resolution.destinations) {
      if (!destination.is_direct) continue;
      const auto reached = tensor_of_module.find(module_of(destination.name));
      if (reached != tensor_of_module.end()) {
        demote(destination, fmt::format("its module is reloaded for {}", reached->second));
      } else if (!unknown.empty()) {
        demote(destination, fmt::format("it is not known what {} feeds", unknown));
      }
    }
  }

  static void demote(Destination& destination, std::string reason) {
    Destination fallback;
    fallback.name = destination.name;
    fallback.reason = std::move(reason);
    fallback.is_demoted = true;
    destination = std::move(fallback);
  }

  const ResolveRequest& request_;
  LiveIndex index_;
};

}  // namespace

Resolution resolve(const ResolveRequest& request) {
  if (request.rank_count < 1 || request.shard_count < 1) {
    throw Error(ErrorCode::invalid_argument, "resolve: an engine has at least one rank and shard")
        .with("ranks", request.rank_count)
        .with("shards", request.shard_count);
  }
  return Resolver(request).resolve();
}

Coverage coverage(const ResolveRequest& request, const Resolution& resolution) {
  Coverage result;
  for (std::size_t i = 0; i < resolution.destinations.size(); ++i) {
    const AnnouncedTensor& tensor = request.tensors[i];
    const std::int64_t bytes =
        bytes_of(tensor.dtype, checked_product(tensor.shape.span())).value_or(0);
    const bool is_direct = resolution.destinations[i].is_direct;
    (is_direct ? result.direct_count : result.fallback_count) += 1;
    result.total_bytes = checked_add(result.total_bytes, bytes);
    if (is_direct) result.direct_bytes += bytes;
  }
  return result;
}

std::string to_string(const Coverage& coverage) {
  const double percent = coverage.total_bytes == 0
                             ? 0.0
                             : 100.0 * static_cast<double>(coverage.direct_bytes) /
                                   static_cast<double>(coverage.total_bytes);
  return fmt::format(
      "{}/{} parameters resharded directly into the model, {} via full-tensor fallback; "
      "direct byte coverage: {}/{} bytes ({:.1f}%)",
      coverage.direct_count, coverage.direct_count + coverage.fallback_count,
      coverage.fallback_count, coverage.direct_bytes, coverage.total_bytes, percent);
}

}  // namespace crossmesh
