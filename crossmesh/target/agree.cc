// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/agree.h"

#include <algorithm>
#include <set>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

std::string way_of(const PlannedDestination& planned) {
  const Destination& destination = planned.destination;
  if (!destination.is_direct) return "fallback";
  if (!destination.shard_dim) return "direct, whole";
  return fmt::format("direct, dim {} in {}", *destination.shard_dim, planned.shard_count);
}

void check_errors(const std::vector<PublishedPlan>& plans) {
  Error all(ErrorCode::aborted, "agree: ranks have no plan");
  bool has_error = false;
  for (const PublishedPlan& published : plans) {
    if (published.error.empty()) continue;
    has_error = true;
    all.with(fmt::format("rank {}:", published.rank), published.error);
  }
  if (has_error) throw all;
}

void check_announced(const std::vector<PublishedPlan>& plans) {
  for (const PublishedPlan& published : plans) {
    if (published.announced == plans[0].announced) continue;
    throw Error(ErrorCode::mismatch, "agree: ranks announce other tensors")
        .with(fmt::format("rank {}", plans[0].rank), to_string(plans[0].announced))
        .with(fmt::format("rank {}", published.rank), to_string(published.announced));
  }
}

Error of_tensor(std::string_view what, const PublishedPlan& published, std::size_t i) {
  return Error(ErrorCode::mismatch, fmt::format("agree: {}", what))
      .with("tensor", published.plan[i].destination.name)
      .with("rank", published.rank);
}

// What a rank says that it takes is the part of the tensor that its place has.
void check_geometry(const PublishedPlan& published) {
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < published.plan.size(); ++i) {
    const PlannedDestination& planned = published.plan[i];
    if (!seen.insert(planned.destination.name).second) {
      throw Error(ErrorCode::invalid_argument, "agree: a tensor is announced twice")
          .with("tensor", planned.destination.name);
    }
    Shape expected = planned.shape;
    int index = 0;
    if (const std::optional<int>& dim = planned.destination.shard_dim) {
      if (*dim >= planned.shape.size() || planned.shard_count < 1 ||
          planned.shape[*dim] % planned.shard_count != 0) {
        throw of_tensor("a tensor is not cut evenly", published, i).with("way", way_of(planned));
      }
      expected[*dim] = planned.shape[*dim] / planned.shard_count;
      index = (published.rank - published.rank_first) % planned.shard_count;
    }
    if (planned.shard_index == index && planned.local_shape == expected) continue;
    throw of_tensor("a rank takes a part that is not its own", published, i)
        .with("shard", planned.shard_index)
        .with("expected shard", index)
        .with("shape", to_string(planned.local_shape))
        .with("expected shape", to_string(expected));
  }
}

void check_same(const PublishedPlan& first, const PublishedPlan& other) {
  if (first.plan.size() != other.plan.size() || first.rank_count != other.rank_count ||
      first.rank_first != other.rank_first) {
    const auto text = [](const PublishedPlan& p) {
      return fmt::format("{} tensors on {} ranks from {}", p.plan.size(), p.rank_count,
                         p.rank_first);
    };
    throw Error(ErrorCode::mismatch, "agree: engine ranks plan for other engines")
        .with(fmt::format("rank {}", first.rank), text(first))
        .with(fmt::format("rank {}", other.rank), text(other));
  }
  for (std::size_t i = 0; i < first.plan.size(); ++i) {
    const PlannedDestination& a = first.plan[i];
    const PlannedDestination& b = other.plan[i];
    const bool is_same = a.destination.name == b.destination.name && a.dtype == b.dtype &&
                         a.shape == b.shape && a.shard_count == b.shard_count &&
                         a.destination.is_direct == b.destination.is_direct &&
                         a.destination.shard_dim == b.destination.shard_dim;
    if (is_same) continue;
    const auto text = [](const PlannedDestination& p) {
      return fmt::format("{} {} {}: {}", p.destination.name, name_of(p.dtype), to_string(p.shape),
                         way_of(p));
    };
    throw Error(ErrorCode::mismatch, "agree: engine ranks plan one tensor in different ways")
        .with("index", i)
        .with(fmt::format("rank {}", first.rank), text(a))
        .with(fmt::format("rank {}", other.rank), text(b));
  }
}

Fingerprint digest_of(const PublishedPlan& published) {
  FingerprintBuilder builder;
  builder.add(published.announced).add(published.rank_count).add(published.rank_first);
  for (const PlannedDestination& planned : published.plan) {
    builder.add(planned.destination.name)
        .add(planned.destination.is_direct)
        .add(planned.destination.shard_dim.value_or(-1))
        .add(static_cast<std::int64_t>(planned.dtype))
        .add(planned.shape.span())
        .add(planned.shard_count);
  }
  return builder.finish();
}

}  // namespace

Fingerprint fingerprint(const std::vector<AnnouncedTensor>& tensors) {
  FingerprintBuilder builder;
  for (const AnnouncedTensor& tensor : tensors) {
    builder.add(tensor.name).add(static_cast<std::int64_t>(tensor.dtype)).add(tensor.shape.span());
  }
  return builder.finish();
}

PublishedPlan publish(const ResolveRequest& request, const Resolution& resolution, int rank) {
  PublishedPlan published;
  published.rank = rank;
  published.is_target = true;
  published.announced = fingerprint(request.tensors);
  published.rank_count = request.rank_count;
  for (std::size_t i = 0; i < resolution.destinations.size(); ++i) {
    const AnnouncedTensor& tensor = request.tensors[i];
    PlannedDestination planned{
        resolution.destinations[i], tensor.dtype, tensor.shape, tensor.shape, 0, 1};
    if (planned.destination.shard_dim) {
      const std::size_t parameter = static_cast<std::size_t>(planned.destination.parameter);
      planned.local_shape = request.parameters[parameter].shape;
      planned.shard_count = request.shard_count;
      planned.shard_index = rank % request.shard_count;
    }
    published.plan.push_back(std::move(planned));
  }
  return published;
}

AgreedPlan agree(const std::vector<PublishedPlan>& plans) {
  check_errors(plans);
  const auto first =
      std::find_if(plans.begin(), plans.end(), [](const PublishedPlan& p) { return p.is_target; });
  if (first == plans.end()) {
    throw Error(ErrorCode::invalid_argument, "agree: no engine rank published a plan")
        .with("ranks", plans.size());
  }
  if (first->plan.empty()) {
    throw Error(ErrorCode::invalid_argument, "agree: no tensor is planned")
        .with("rank", first->rank);
  }
  check_announced(plans);
  for (const PublishedPlan& published : plans) {
    if (!published.is_target) continue;
    check_same(*first, published);
    check_geometry(published);
  }
  return {first->plan, digest_of(*first)};
}

}  // namespace crossmesh
