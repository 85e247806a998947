// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/schedule/detail/players.h"

#include <algorithm>
#include <numeric>

#include "crossmesh/base/checked.h"

namespace crossmesh::detail {

RanksOfRole ranks_of_role(const Binding& binding) {
  RanksOfRole ranks;
  int role_count = 0;
  for (const int role : binding.role_of_rank) role_count = std::max(role_count, role + 1);
  ranks.first_of_role.assign(static_cast<std::size_t>(role_count) + 1, 0);
  for (const int role : binding.role_of_rank) {
    if (role >= 0) ++ranks.first_of_role[static_cast<std::size_t>(role) + 1];
  }
  std::partial_sum(ranks.first_of_role.begin(), ranks.first_of_role.end(),
                   ranks.first_of_role.begin());
  ranks.ranks.resize(static_cast<std::size_t>(ranks.first_of_role.back()));
  std::vector<int> next = ranks.first_of_role;
  ranks.position_of_rank.reserve(binding.role_of_rank.size());
  for (std::size_t rank = 0; rank < binding.role_of_rank.size(); ++rank) {
    const int role = binding.role_of_rank[rank];
    const int position = role < 0 ? -1 : next[static_cast<std::size_t>(role)]++;
    if (position >= 0) ranks.ranks[static_cast<std::size_t>(position)] = static_cast<int>(rank);
    ranks.position_of_rank.push_back(position);
  }
  return ranks;
}

const PlanClass& copies_of(const Schedule& schedule, const PlanInstance& instance) {
  if (!instance.opaque) {
    return schedule.plan.classes[static_cast<std::size_t>(instance.plan_class)];
  }
  const auto c = static_cast<std::size_t>(source_of(schedule.plan, instance).layout_class);
  return schedule.whole_classes[static_cast<std::size_t>(schedule.whole_of_source_class[c])];
}

RankRange players(const RanksOfRole& ranks, int role) {
  const auto r = static_cast<std::size_t>(role);
  if (r + 1 >= ranks.first_of_role.size()) return {};
  const int first = ranks.first_of_role[r];
  return {ranks.ranks.data() + first, ranks.first_of_role[r + 1] - first};
}

bool takes_whole(const Schedule& schedule, int instance, int rank) {
  const auto has = [&](int i) {
    const Instance& target =
        target_of(schedule.plan, schedule.plan.instances[static_cast<std::size_t>(i)]);
    return role_of(schedule.plan.target, target.binding, rank) >= 0;
  };
  if (!has(instance)) return false;
  for (int i = schedule.earlier_opaque[static_cast<std::size_t>(instance)]; i >= 0;
       i = schedule.earlier_opaque[static_cast<std::size_t>(i)]) {
    if (has(i)) return false;
  }
  return true;
}

std::int64_t bytes_of_elements(DType dtype, std::int64_t count) {
  return checked_mul(count, bit_size(dtype)) / 8;
}

std::int64_t element_count(const Copy& copy) { return checked_product(copy.counts.span()); }

}  // namespace crossmesh::detail
