// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/ownership.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/groups.h"

namespace crossmesh::profiles {
namespace {

// The ranks of each name, by its place in the list of names.
std::vector<std::vector<int>> owners_by_name(const std::vector<TrainerHoldings>& holdings) {
  const std::vector<std::string>& names = holdings.front().names;
  std::unordered_map<std::string_view, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < names.size(); ++i) places[names[i]].push_back(i);
  std::vector<std::vector<int>> owners(names.size());
  for (std::size_t r = 0; r < holdings.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (holdings[r].holds_all) {
      for (std::vector<int>& ranks : owners) ranks.push_back(rank);
      continue;
    }
    if (holdings[r].held.empty()) {
      throw Error(ErrorCode::invalid_argument, "own: a trainer rank holds no name")
          .with("rank", rank);
    }
    for (const std::string& name : holdings[r].held) {
      const auto at = places.find(name);
      if (at == places.end()) {
        throw Error(ErrorCode::invalid_argument, "own: a held name is not in the metadata")
            .with("name", name)
            .with("rank", rank);
      }
      for (const std::size_t place : at->second) {
        if (owners[place].empty() || owners[place].back() != rank) owners[place].push_back(rank);
      }
    }
  }
  return owners;
}

void check_agreement(const std::vector<TrainerHoldings>& holdings) {
  const std::vector<std::string>& first = holdings.front().names;
  for (std::size_t r = 1; r < holdings.size(); ++r) {
    const std::vector<std::string>& other = holdings[r].names;
    if (other == first) continue;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    throw Error(ErrorCode::mismatch, "own: metadata disagrees across trainer ranks")
        .with("index", a - first.begin())
        .with("rank 0", a == first.end() ? "(nothing)" : *a)
        .with(fmt::format("rank {}", r), b == other.end() ? "(nothing)" : *b);
  }
}

}  // namespace

std::vector<int> producer_block(Fleet fleet, int consumer) {
  const int producers = std::max(fleet.producer_count, 1);
  const int consumers = std::max(fleet.consumer_count, 1);
  if (consumer < 0 || consumer >= consumers) {
    throw Error(ErrorCode::invalid_argument, "assign: no such consumer")
        .with("consumer", consumer)
        .with("consumers", consumers);
  }
  const auto share = [&](int i) {
    return static_cast<int>(static_cast<long long>(i) * producers / consumers);
  };
  if (producers < consumers) return {share(consumer)};
  std::vector<int> block;
  for (int p = share(consumer); p < share(consumer + 1); ++p) block.push_back(p);
  return block;
}

ConsumerIdentity consumer_identity(const EngineRank& rank) {
  const int consumers = rank.consumer_count > 0 ? rank.consumer_count : rank.world_size_across_dp;
  const int per_replica = consumers / std::max(rank.replica_count, 1);
  return {std::max(rank.replica_rank, 0) * per_replica +
              rank.data_parallel_index * rank.world_size + rank.rank,
          per_replica};
}

std::vector<int> live_consumers(const std::vector<int>* live, int consumer_count) {
  std::vector<int> result;
  if (live != nullptr) {
    result = *live;
  } else {
    for (int c = 0; c < consumer_count; ++c) result.push_back(c);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

OwnerClasses owner_classes(const std::vector<TrainerHoldings>& holdings) {
  if (holdings.empty()) throw Error(ErrorCode::invalid_argument, "own: no trainer rank");
  check_agreement(holdings);
  check_group_contiguous(holdings.front().names);
  const std::vector<std::vector<int>> owners = owners_by_name(holdings);
  OwnerClasses result;
  std::map<std::vector<int>, int> number_of;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i].empty()) {
      throw Error(ErrorCode::invalid_argument, "own: no trainer rank holds a name")
          .with("name", holdings.front().names[i]);
    }
    const int next = static_cast<int>(result.owner_sets.size());
    const auto [at, is_new] = number_of.emplace(owners[i], next);
    if (is_new) result.owner_sets.push_back(owners[i]);
    result.class_of_name.push_back(at->second);
  }
  return result;
}

}  // namespace crossmesh::profiles
