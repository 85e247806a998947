// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/router.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/ownership.h"

namespace crossmesh::profiles {
namespace {

std::vector<int> sorted_once(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

Router::Router(RouterFacts facts) : facts_(std::move(facts)) {
  const int consumers = std::max(facts_.consumer_count, 1);
  width_ =
      facts_.workers_per_replica > 0 ? std::min(facts_.workers_per_replica, consumers) : consumers;
  if (consumers % width_ != 0) {
    throw Error(ErrorCode::invalid_argument,
                "route: the width of a deployment does not divide the consumers")
        .with("workers per replica", width_)
        .with("consumers", consumers);
  }
  all_.resize(static_cast<std::size_t>(std::max(facts_.producer_count, 1)));
  std::iota(all_.begin(), all_.end(), 0);
  for (const std::vector<int>& set : facts_.owner_sets) owner_sets_.push_back(sorted_once(set));
  if (owner_sets_.empty()) owner_sets_.push_back(all_);
  for (std::size_t i = 0; i < facts_.names.size(); ++i) {
    const bool has_class = i < facts_.class_of_name.size();
    class_by_name_[facts_.names[i]] = has_class ? facts_.class_of_name[i] : 0;
  }
  std::size_t at = 0;
  for (const int size : facts_.group_sizes) {
    std::vector<int> group;
    for (int i = 0; i < size && at < facts_.names.size(); ++i, ++at) {
      const std::string_view name = facts_.names[at];
      group_by_name_[name] = static_cast<int>(group_owners_.size());
      const std::size_t owner_class = static_cast<std::size_t>(class_of(name));
      if (owner_class >= owner_sets_.size()) continue;
      group.insert(group.end(), owner_sets_[owner_class].begin(), owner_sets_[owner_class].end());
    }
    group_owners_.push_back(sorted_once(std::move(group)));
  }
}

void Router::validate() const {
  for (std::size_t i = 0; i < owner_sets_.size(); ++i) {
    if (owner_sets_[i].empty()) {
      throw Error(ErrorCode::invalid_argument, "route: an owner set is empty")
          .with("owner class", i);
    }
    for (const int producer : owner_sets_[i]) {
      if (producer < 0 || producer >= static_cast<int>(all_.size())) {
        throw Error(ErrorCode::invalid_argument, "route: a producer is out of range")
            .with("producer", producer)
            .with("producers", all_.size())
            .with("owner class", i);
      }
    }
  }
  for (const std::string& name : facts_.names) owners(name);
}

int Router::class_of(std::string_view name) const {
  const auto at = class_by_name_.find(name);
  return at == class_by_name_.end() ? 0 : at->second;
}

const std::vector<int>& Router::owners(std::string_view name) const {
  const int owner_class = class_of(name);
  if (owner_class < 0 || owner_class >= static_cast<int>(owner_sets_.size())) {
    throw Error(ErrorCode::invalid_argument, "route: a name has no such owner class")
        .with("name", name)
        .with("owner class", owner_class)
        .with("owner classes", owner_sets_.size());
  }
  return owner_sets_[static_cast<std::size_t>(owner_class)];
}

int Router::group_of(std::string_view name) const {
  const auto at = group_by_name_.find(name);
  return at == group_by_name_.end() ? 0 : at->second;
}

const std::vector<int>& Router::group_owners(int group) const {
  if (group_owners_.empty()) return all_;
  return group_owners_.at(static_cast<std::size_t>(group));
}

int Router::producer_for(int consumer, std::string_view name) const {
  const std::vector<int>& own = owners(name);
  if (own.empty()) {
    throw Error(ErrorCode::invalid_argument, "route: a name has no owner")
        .with("name", name)
        .with("owner class", class_of(name));
  }
  if (consumer < 0) {
    throw Error(ErrorCode::invalid_argument, "route: no such consumer").with("consumer", consumer);
  }
  const std::vector<int> block =
      producer_block({static_cast<int>(own.size()), width_}, consumer % width_);
  const std::size_t turn = static_cast<std::size_t>(group_of(name)) % block.size();
  return own[static_cast<std::size_t>(block[turn])];
}

void check_announcement(const RouterFacts& facts) {
  if (facts.producer_count < 1) throw Error(ErrorCode::invalid_argument, "route: no producers");
  if (facts.group_sizes.empty()) {
    throw Error(ErrorCode::invalid_argument, "route: no group sizes")
        .with("names", facts.names.size());
  }
  const long long sum = std::accumulate(facts.group_sizes.begin(), facts.group_sizes.end(), 0LL);
  if (sum != static_cast<long long>(facts.names.size())) {
    throw Error(ErrorCode::invalid_argument, "route: group sizes do not add up to the names")
        .with("sum", sum)
        .with("names", facts.names.size());
  }
  const bool is_default = facts.owner_sets.empty() && facts.class_of_name.empty();
  if (!is_default && facts.class_of_name.size() != facts.names.size()) {
    throw Error(ErrorCode::invalid_argument, "route: the class table is not as long as the names")
        .with("classes", facts.class_of_name.size())
        .with("names", facts.names.size());
  }
}

}  // namespace crossmesh::profiles
