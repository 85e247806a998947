// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/plan/meet.h"
#include "crossmesh/schedule/detail/players.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

using detail::source_of;
using detail::target_of;

// Instances that differ in nothing but name, place and rotation.
struct Bundle {
  const PlanInstance* example = nullptr;
  std::int64_t count = 0;
  std::map<int, std::int64_t> count_by_rotation;
};

class Counter {
 public:
  explicit Counter(const Schedule& schedule) : schedule_(schedule), plan_(schedule.plan) {
    totals_.egress_bytes.assign(static_cast<std::size_t>(plan_.source.rank_count), 0);
    totals_.ingress_bytes.assign(static_cast<std::size_t>(plan_.target.rank_count), 0);
  }

  Totals count() {
    for (const TensorInfo& tensor : plan_.source.tensors) totals_.bytes_model += byte_count(tensor);
    add_bundles();
    add_opaque();
    add_unique();
    for (const std::int64_t bytes : totals_.ingress_bytes) totals_.bytes_needed += bytes;
    return std::move(totals_);
  }

 private:
  void add_bundles();
  void add(const Bundle& bundle);
  void add_opaque();
  void add_whole(const std::vector<int>& chain, std::int64_t count);
  void add_unique();
  void give(int rank, std::int64_t bytes) {
    totals_.egress_bytes[static_cast<std::size_t>(rank)] += bytes;
  }
  const RanksOfRole& source_ranks(const PlanInstance& instance) const {
    const auto binding = static_cast<std::size_t>(source_of(plan_, instance).binding);
    return schedule_.source_ranks[binding];
  }
  const RanksOfRole& target_ranks(const PlanInstance& instance) const {
    const auto binding = static_cast<std::size_t>(target_of(plan_, instance).binding);
    return schedule_.target_ranks[binding];
  }

  const Schedule& schedule_;
  const Plan& plan_;
  Totals totals_;
};

void Counter::add_bundles() {
  std::map<std::tuple<int, int, int>, Bundle> bundles;  // by (class, both bindings)
  for (std::size_t i = 0; i < plan_.instances.size(); ++i) {
    const PlanInstance& instance = plan_.instances[i];
    if (instance.opaque) continue;
    Bundle& bundle = bundles[{instance.plan_class, source_of(plan_, instance).binding,
                              target_of(plan_, instance).binding}];
    bundle.example = &instance;
    ++bundle.count;
    ++bundle.count_by_rotation[schedule_.rotation[i]];
  }
  for (const auto& [key, bundle] : bundles) add(bundle);
}

void Counter::add(const Bundle& bundle) {
  const PlanInstance& example = *bundle.example;
  const DType dtype = source_dtype(plan_, example);
  const RanksOfRole& sources = source_ranks(example);
  for (const Copy& copy : detail::copies_of(schedule_, example).copies) {
    const detail::RankRange takers = detail::players(target_ranks(example), copy.target_role);
    const detail::RankRange holders = detail::players(sources, copy.source_role);
    const std::int64_t bytes = detail::bytes_of_elements(dtype, detail::element_count(copy));
    totals_.copies += bundle.count * takers.count;
    for (int k = 0; k < takers.count; ++k) {
      totals_.ingress_bytes[static_cast<std::size_t>(takers.ranks[k])] += bundle.count * bytes;
    }
    if (takers.count == 0) continue;
    if (holders.count == 1) {
      give(holders.ranks[0], bundle.count * takers.count * bytes);
      continue;
    }
    for (const auto& [rotation, count] : bundle.count_by_rotation) {
      for (int k = 0; k < takers.count; ++k) {
        give(holders.ranks[(rotation + copy.source_role + k) % holders.count], count * bytes);
      }
    }
  }
}

// Opaque instances of one tensor, in order.
using Chain = std::vector<int>;

void Counter::add_opaque() {
  std::map<int, Chain> chain_of_tensor;
  for (std::size_t i = 0; i < plan_.instances.size(); ++i) {
    if (!plan_.instances[i].opaque) continue;
    chain_of_tensor[target_of(plan_, plan_.instances[i]).tensor].push_back(static_cast<int>(i));
  }
  // Tensors whose chains agree in all but the names are counted together.
  std::map<std::vector<int>, std::pair<const Chain*, std::int64_t>> chains;
  for (const auto& [tensor, chain] : chain_of_tensor) {
    std::vector<int> key;
    for (const int i : chain) {
      const PlanInstance& instance = plan_.instances[static_cast<std::size_t>(i)];
      const Instance& source = source_of(plan_, instance);
      key.insert(key.end(),
                 {source.layout_class, source.binding, target_of(plan_, instance).binding,
                  schedule_.rotation[static_cast<std::size_t>(i)]});
    }
    auto& [example, count] = chains[std::move(key)];
    example = &chain;
    ++count;
  }
  for (const auto& [key, entry] : chains) add_whole(*entry.first, entry.second);
}

void Counter::add_whole(const Chain& chain, std::int64_t count) {
  for (const int i : chain) {
    const PlanInstance& instance = plan_.instances[static_cast<std::size_t>(i)];
    const PlanClass& c = detail::copies_of(schedule_, instance);
    const DType dtype = source_dtype(plan_, instance);
    for (const int target : target_ranks(instance).ranks) {
      if (!detail::takes_whole(schedule_, i, target)) continue;
      for (const Copy& copy : c.copies) {
        const std::int64_t bytes =
            count * detail::bytes_of_elements(dtype, detail::element_count(copy));
        give(holder_of(schedule_, instance, copy.source_role, target), bytes);
        totals_.ingress_bytes[static_cast<std::size_t>(target)] += bytes;
        totals_.bytes_fallback += bytes;
        totals_.copies += count;
      }
    }
  }
}

// What a tensor's instances want together; by (source class, target class, binding, opaque).
using Wants = std::vector<std::array<int, 4>>;

void Counter::add_unique() {
  std::vector<std::vector<int>> instances_of_tensor(plan_.target.tensors.size());
  for (std::size_t i = 0; i < plan_.instances.size(); ++i) {
    const auto tensor = static_cast<std::size_t>(target_of(plan_, plan_.instances[i]).tensor);
    instances_of_tensor[tensor].push_back(static_cast<int>(i));
  }
  std::map<Wants, std::int64_t> bytes_of;
  for (const auto& instances : instances_of_tensor) {
    if (instances.empty()) continue;
    Wants wants;
    for (const int i : instances) {
      const PlanInstance& instance = plan_.instances[static_cast<std::size_t>(i)];
      const Instance& target = target_of(plan_, instance);
      if (target_ranks(instance).ranks.empty()) continue;
      wants.push_back({source_of(plan_, instance).layout_class, target.layout_class, target.binding,
                       instance.opaque});
    }
    std::sort(wants.begin(), wants.end());
    wants.erase(std::unique(wants.begin(), wants.end()), wants.end());
    const auto [at, is_new] = bytes_of.emplace(wants, 0);
    if (is_new && !wants.empty()) {
      const auto& source = plan_.source.classes[static_cast<std::size_t>(wants[0][0])];
      const bool is_whole =
          std::any_of(wants.begin(), wants.end(), [](const auto& want) { return want[3] != 0; });
      std::vector<WantedClass> wanted;
      for (const auto& [s, c, binding, opaque] : wants) {
        wanted.push_back({&plan_.target.classes[static_cast<std::size_t>(c)],
                          &plan_.target.bindings[static_cast<std::size_t>(binding)]});
      }
      at->second = detail::bytes_of_elements(
          source.dtype,
          is_whole ? checked_product(tensor_shape(source.space).span()) : wanted_elements(wanted));
    }
    totals_.bytes_unique += at->second;
  }
}

}  // namespace

Totals totals(const Schedule& schedule) { return Counter(schedule).count(); }

}  // namespace crossmesh
