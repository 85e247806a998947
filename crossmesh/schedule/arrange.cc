// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/plan/meet.h"
#include "crossmesh/schedule/detail/players.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

using detail::source_of;
using detail::target_of;

void group_by_layer(Schedule& schedule) {
  const Plan& plan = schedule.plan;
  std::vector<std::string_view> names;
  names.reserve(plan.instances.size());
  for (const PlanInstance& instance : plan.instances) {
    const auto tensor = static_cast<std::size_t>(target_of(plan, instance).tensor);
    names.push_back(plan.target.tensors[tensor].name);
  }
  LayerGroups layers = layerwise_groups(names);
  std::vector<int> next(layers.names.size() + 1, 0);
  for (const int group : layers.group_of_name) ++next[static_cast<std::size_t>(group) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (std::size_t g = 0; g < layers.names.size(); ++g) {
    schedule.groups.push_back({std::move(layers.names[g]), next[g], next[g + 1]});
  }
  schedule.order.resize(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto group = static_cast<std::size_t>(layers.group_of_name[i]);
    schedule.order[static_cast<std::size_t>(next[group]++)] = static_cast<int>(i);
  }
}

std::int64_t tensor_bytes(const Plan& plan, const PlanInstance& instance) {
  const auto c = static_cast<std::size_t>(source_of(plan, instance).layout_class);
  const LayoutClass& layout_class = plan.source.classes[c];
  return detail::bytes_of_elements(layout_class.dtype,
                                   checked_product(tensor_shape(layout_class.space).span()));
}

// Meets the classes of opaque tensors with the whole tensor, and bounds the fallback.
void add_opaque(Schedule& schedule) {
  const Plan& plan = schedule.plan;
  schedule.whole_of_source_class.assign(plan.source.classes.size(), -1);
  schedule.earlier_opaque.assign(plan.instances.size(), -1);
  std::unordered_map<int, int> last_of_tensor;
  const PlanInstance* largest = nullptr;
  for (std::size_t i = 0; i < plan.instances.size(); ++i) {
    const PlanInstance& instance = plan.instances[i];
    if (!instance.opaque) continue;
    const auto c = static_cast<std::size_t>(source_of(plan, instance).layout_class);
    if (schedule.whole_of_source_class[c] < 0) {
      schedule.whole_of_source_class[c] = static_cast<int>(schedule.whole_classes.size());
      schedule.whole_classes.push_back(meet_whole(plan.source.classes[c]));
    }
    const auto [last, is_first] =
        last_of_tensor.emplace(target_of(plan, instance).tensor, static_cast<int>(i));
    if (!is_first) schedule.earlier_opaque[i] = std::exchange(last->second, static_cast<int>(i));
    if (largest == nullptr || tensor_bytes(plan, instance) > tensor_bytes(plan, *largest)) {
      largest = &instance;
    }
  }
  if (largest == nullptr) return;
  const std::int64_t needed = tensor_bytes(plan, *largest);
  if (needed <= schedule.options.fallback_bytes_max) return;
  const auto tensor = static_cast<std::size_t>(target_of(plan, *largest).tensor);
  throw Error(ErrorCode::limit_exceeded, "arrange: an opaque tensor is larger than the fallback")
      .with("tensor", plan.target.tensors[tensor].name)
      .with("tensor bytes", needed)
      .with("fallback_bytes_max", schedule.options.fallback_bytes_max)
      .hint("set fallback_bytes_max to the tensor's bytes or more");
}

void bound_staging(Schedule& schedule) {
  if (schedule.options.route == Route::direct && schedule.whole_classes.empty()) return;
  const std::int64_t bytes_max = schedule.options.staging_bytes_max;
  if (bytes_max < kStagingBytesMin) {
    throw Error(ErrorCode::limit_exceeded, "arrange: the staging bound is too small")
        .with("staging_bytes_max", bytes_max)
        .with("needed", kStagingBytesMin);
  }
  // Slots of about 1 MiB keep peers apart; four of a small bound keep them overlapped.
  constexpr std::int64_t kSlotBytes = std::int64_t{1} << 20;
  constexpr std::int64_t kFourSlotsFrom = std::int64_t{64} << 10;
  const std::int64_t few = bytes_max >= kFourSlotsFrom ? 4 : 2;
  const std::int64_t count = std::clamp<std::int64_t>(bytes_max / kSlotBytes, few, 64);
  schedule.staging_slot_count = static_cast<int>(count);
  schedule.staging_slot_bytes = bytes_max / count / 16 * 16;
}

// What instances of one class and one pair of bindings ask of holders.
struct Demand {
  int holder_count = 1;              // the most that any source role has
  std::int64_t bytes = 0;            // over all target ranks
  std::vector<std::int64_t> shares;  // by holder, where the choice begins with holder 0
};

Demand demand_of(const Schedule& schedule, const PlanInstance& instance) {
  const Plan& plan = schedule.plan;
  const Instance& source = source_of(plan, instance);
  const RanksOfRole& holders = schedule.source_ranks[static_cast<std::size_t>(source.binding)];
  const RanksOfRole& takers =
      schedule.target_ranks[static_cast<std::size_t>(target_of(plan, instance).binding)];
  Demand demand;
  for (std::size_t role = 0; role + 1 < holders.first_of_role.size(); ++role) {
    demand.holder_count = std::max(demand.holder_count,
                                   holders.first_of_role[role + 1] - holders.first_of_role[role]);
  }
  const auto modulus = static_cast<std::size_t>(demand.holder_count);
  demand.shares.assign(modulus, 0);
  const PlanClass& c = detail::copies_of(schedule, instance);
  const DType dtype = source_dtype(plan, instance);
  std::vector<std::int64_t> bytes_of_role(c.first_copy_of_target_role.size() - 1, 0);
  for (const Copy& copy : c.copies) {
    bytes_of_role[static_cast<std::size_t>(copy.target_role)] +=
        detail::bytes_of_elements(dtype, detail::element_count(copy));
  }
  for (std::size_t role = 0; role < bytes_of_role.size(); ++role) {
    const int count = instance.opaque ? static_cast<int>(takers.ranks.size())
                                      : detail::players(takers, static_cast<int>(role)).count;
    for (int k = 0; k < count; ++k) {
      demand.shares[static_cast<std::size_t>(k) % modulus] += bytes_of_role[role];
      demand.bytes += bytes_of_role[role];
    }
  }
  return demand;
}

// The rotation after which the busiest holder is least busy.
int best_rotation(const std::vector<std::int64_t>& load, const Demand& demand) {
  const std::size_t count = demand.shares.size();
  const auto least = static_cast<std::size_t>(
      std::min_element(load.begin(), load.begin() + demand.holder_count) - load.begin());
  const auto most = static_cast<std::size_t>(
      std::max_element(demand.shares.begin(), demand.shares.end()) - demand.shares.begin());
  // Trying all costs the square; past a few holders the peak goes to the least busy one.
  if (count > 16) return static_cast<int>((least + count - most) % count);
  std::size_t best = 0;
  std::pair<std::int64_t, std::int64_t> best_cost;  // the peak; what those asked most had before
  for (std::size_t rotation = 0; rotation < count; ++rotation) {
    std::pair<std::int64_t, std::int64_t> cost;
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t before = load[(rotation + k) % count];
      cost.first = std::max(cost.first, before + demand.shares[k]);
      if (demand.shares[k] == demand.shares[most]) cost.second += before;
    }
    if (rotation > 0 && cost >= best_cost) continue;
    best = rotation;
    best_cost = cost;
  }
  return static_cast<int>(best);
}

// Largest instances first, so that small ones even out what they leave.
void choose_rotations(Schedule& schedule) {
  const Plan& plan = schedule.plan;
  std::map<std::tuple<const PlanClass*, int, int>, Demand> demands;
  std::vector<const Demand*> demand_of_instance;
  demand_of_instance.reserve(plan.instances.size());
  for (const PlanInstance& instance : plan.instances) {
    const std::tuple key(&detail::copies_of(schedule, instance), source_of(plan, instance).binding,
                         target_of(plan, instance).binding);
    auto at = demands.find(key);
    if (at == demands.end()) at = demands.emplace(key, demand_of(schedule, instance)).first;
    demand_of_instance.push_back(&at->second);
  }
  std::vector<int> by_bytes(plan.instances.size());
  std::iota(by_bytes.begin(), by_bytes.end(), 0);
  std::stable_sort(by_bytes.begin(), by_bytes.end(), [&](int a, int b) {
    return demand_of_instance[static_cast<std::size_t>(a)]->bytes >
           demand_of_instance[static_cast<std::size_t>(b)]->bytes;
  });
  schedule.rotation.assign(plan.instances.size(), 0);
  std::map<int, std::vector<std::int64_t>> load_of_binding;
  for (const int i : by_bytes) {
    const Demand& demand = *demand_of_instance[static_cast<std::size_t>(i)];
    if (demand.holder_count == 1) continue;
    const auto count = static_cast<std::size_t>(demand.holder_count);
    auto& load =
        load_of_binding[source_of(plan, plan.instances[static_cast<std::size_t>(i)]).binding];
    load.resize(count, 0);
    const int rotation = best_rotation(load, demand);
    schedule.rotation[static_cast<std::size_t>(i)] = rotation;
    for (std::size_t k = 0; k < count; ++k) {
      load[(static_cast<std::size_t>(rotation) + k) % count] += demand.shares[k];
    }
  }
}

}  // namespace

DType source_dtype(const Plan& plan, const PlanInstance& instance) {
  const auto c = static_cast<std::size_t>(source_of(plan, instance).layout_class);
  return plan.source.classes[c].dtype;
}

DType target_dtype(const Plan& plan, const PlanInstance& instance) {
  const auto c = static_cast<std::size_t>(target_of(plan, instance).layout_class);
  return plan.target.classes[c].dtype;
}

Schedule arrange(Plan plan, const ScheduleOptions& options) {
  Schedule schedule;
  schedule.plan = std::move(plan);
  schedule.options = options;
  for (const Binding& binding : schedule.plan.source.bindings) {
    schedule.source_ranks.push_back(detail::ranks_of_role(binding));
  }
  for (const Binding& binding : schedule.plan.target.bindings) {
    schedule.target_ranks.push_back(detail::ranks_of_role(binding));
  }
  group_by_layer(schedule);
  add_opaque(schedule);
  bound_staging(schedule);
  choose_rotations(schedule);
  return schedule;
}

int holder_of(const Schedule& schedule, const PlanInstance& instance, int source_role,
              int target_rank) {
  const Plan& plan = schedule.plan;
  const Instance& target = target_of(plan, instance);
  const auto holders = detail::players(
      schedule.source_ranks[static_cast<std::size_t>(source_of(plan, instance).binding)],
      source_role);
  const RanksOfRole& takers = schedule.target_ranks[static_cast<std::size_t>(target.binding)];
  int turn = takers.position_of_rank[static_cast<std::size_t>(target_rank)];
  if (!instance.opaque) {
    const int role = detail::role_of(plan.target, target.binding, target_rank);
    turn -= takers.first_of_role[static_cast<std::size_t>(role)];
  }
  const int rotation = schedule.rotation[static_cast<std::size_t>(instance.target_instance)];
  return holders.ranks[(rotation + source_role + turn) % holders.count];
}

}  // namespace crossmesh
