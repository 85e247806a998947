// SPDX-License-Identifier: Apache-2.0
// Look-ups that arrange, expand and totals share.
#pragma once

#include "crossmesh/schedule/schedule.h"

namespace crossmesh::detail {

RanksOfRole ranks_of_role(const Binding& binding);

inline int role_of(const Layout& layout, int binding, int rank) {
  return layout.bindings[static_cast<std::size_t>(binding)]
      .role_of_rank[static_cast<std::size_t>(rank)];
}

inline const Instance& source_of(const Plan& plan, const PlanInstance& instance) {
  return plan.source.instances[static_cast<std::size_t>(instance.source_instance)];
}

inline const Instance& target_of(const Plan& plan, const PlanInstance& instance) {
  return plan.target.instances[static_cast<std::size_t>(instance.target_instance)];
}

// The copies that serve an instance: of its class, or of the whole tensor.
const PlanClass& copies_of(const Schedule& schedule, const PlanInstance& instance);

// The ranks that play `role`; none where the binding has no such role.
struct RankRange {
  const int* ranks = nullptr;
  int count = 0;
};
RankRange players(const RanksOfRole& ranks, int role);

// Whether `rank` takes the whole tensor at this opaque instance: it has the instance, and no
// earlier opaque one of the tensor.
bool takes_whole(const Schedule& schedule, int instance, int rank);

std::int64_t bytes_of_elements(DType dtype, std::int64_t count);
std::int64_t element_count(const Copy& copy);

}  // namespace crossmesh::detail
