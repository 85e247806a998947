// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "crossmesh/schedule/detail/players.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

using detail::source_of;
using detail::target_of;

// Walks a rank's instances in the order of the schedule; what only depends on a class is kept.
class Expander {
 public:
  Expander(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  void take(int index, std::vector<Step>& steps);
  void give(int index, std::vector<Step>& steps);

 private:
  const PlanInstance& instance(int index) const {
    return schedule_.plan.instances[static_cast<std::size_t>(index)];
  }
  Step step(int index, const Copy& copy, int peer) const;
  const std::vector<int>& copies_from(const PlanClass& c, int source_role);
  void give_copy(int index, const Copy& copy, std::vector<Step>& steps) const;

  const Schedule& schedule_;
  int rank_;
  // By class: the copies that each source role gives.
  std::unordered_map<const PlanClass*, std::vector<std::vector<int>>> copies_of_role_;
};

Step Expander::step(int index, const Copy& copy, int peer) const {
  const PlanInstance& i = instance(index);
  const Instance& source = source_of(schedule_.plan, i);
  const Instance& target = target_of(schedule_.plan, i);
  Step step{peer,        index,       source.parameter, target.parameter,
            copy.counts, copy.source, copy.target,      i.opaque};
  step.source.offset += source.offset;
  if (!i.opaque) step.target.offset += target.offset;
  return step;
}

void Expander::take(int index, std::vector<Step>& steps) {
  const PlanInstance& i = instance(index);
  const Plan& plan = schedule_.plan;
  int role = detail::role_of(plan.target, target_of(plan, i).binding, rank_);
  if (role < 0) return;
  if (i.opaque) {
    if (!detail::takes_whole(schedule_, index, rank_)) return;
    role = 0;
  }
  const PlanClass& c = detail::copies_of(schedule_, i);
  const auto r = static_cast<std::size_t>(role);
  for (int k = c.first_copy_of_target_role[r]; k < c.first_copy_of_target_role[r + 1]; ++k) {
    const Copy& copy = c.copies[static_cast<std::size_t>(k)];
    steps.push_back(step(index, copy, holder_of(schedule_, i, copy.source_role, rank_)));
  }
}

const std::vector<int>& Expander::copies_from(const PlanClass& c, int source_role) {
  std::vector<std::vector<int>>& of_role = copies_of_role_[&c];
  const auto role = static_cast<std::size_t>(source_role);
  if (of_role.empty()) {
    int role_count = 0;
    for (const Copy& copy : c.copies) role_count = std::max(role_count, copy.source_role + 1);
    of_role.resize(static_cast<std::size_t>(role_count));
    for (std::size_t k = 0; k < c.copies.size(); ++k) {
      of_role[static_cast<std::size_t>(c.copies[k].source_role)].push_back(static_cast<int>(k));
    }
  }
  if (role >= of_role.size()) of_role.resize(role + 1);
  return of_role[role];
}

// The target ranks whose turn falls on this rank are every holder_count-th of their role.
void Expander::give_copy(int index, const Copy& copy, std::vector<Step>& steps) const {
  const PlanInstance& i = instance(index);
  const Plan& plan = schedule_.plan;
  const RanksOfRole& sources =
      schedule_.source_ranks[static_cast<std::size_t>(source_of(plan, i).binding)];
  const RanksOfRole& targets =
      schedule_.target_ranks[static_cast<std::size_t>(target_of(plan, i).binding)];
  if (i.opaque) {
    for (const int target : targets.ranks) {
      if (holder_of(schedule_, i, copy.source_role, target) != rank_) continue;
      if (!detail::takes_whole(schedule_, index, target)) continue;
      steps.push_back(step(index, copy, target));
    }
    return;
  }
  const int holder_count = detail::players(sources, copy.source_role).count;
  const int mine = sources.position_of_rank[static_cast<std::size_t>(rank_)] -
                   sources.first_of_role[static_cast<std::size_t>(copy.source_role)];
  const int begin =
      (schedule_.rotation[static_cast<std::size_t>(index)] + copy.source_role) % holder_count;
  const detail::RankRange takers = detail::players(targets, copy.target_role);
  for (int turn = (mine - begin + holder_count) % holder_count; turn < takers.count;
       turn += holder_count) {
    steps.push_back(step(index, copy, takers.ranks[turn]));
  }
}

void Expander::give(int index, std::vector<Step>& steps) {
  const PlanInstance& i = instance(index);
  const Plan& plan = schedule_.plan;
  const int role = detail::role_of(plan.source, source_of(plan, i).binding, rank_);
  if (role < 0) return;
  const PlanClass& c = detail::copies_of(schedule_, i);
  for (const int k : copies_from(c, role)) {
    give_copy(index, c.copies[static_cast<std::size_t>(k)], steps);
  }
}

}  // namespace

RankPart expand(const Schedule& schedule, Side side, int rank) {
  RankPart part;
  part.steps_of_group.resize(schedule.groups.size());
  Expander expander(schedule, rank);
  for (std::size_t g = 0; g < schedule.groups.size(); ++g) {
    const Group& group = schedule.groups[g];
    for (int k = group.first; k < group.last; ++k) {
      const int index = schedule.order[static_cast<std::size_t>(k)];
      if (side == Side::source) {
        expander.give(index, part.steps_of_group[g]);
      } else {
        expander.take(index, part.steps_of_group[g]);
      }
    }
  }
  return part;
}

}  // namespace crossmesh
