// SPDX-License-Identifier: Apache-2.0
// From which holder, in which order, within which memory: a plan cut into groups (about a decoder
// layer each) that both sides walk in the same order. Each rank expands only its own part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/fingerprint.h"
#include "crossmesh/plan/plan.h"

namespace crossmesh {

enum class Route : std::uint8_t {
  direct,  // straight from the source's parameter
  packed,  // through bounded staging on the source
};

struct ScheduleOptions {
  Route route = Route::direct;
  std::int64_t staging_bytes_max = std::int64_t{64} << 20;   // per source rank
  std::int64_t fallback_bytes_max = std::int64_t{4} << 30;   // per target rank
};

// Plan instances that are acquired, moved and released together.
struct Group {
  std::string name;
  int first = 0;  // into Schedule::order
  int last = 0;   // one past

  bool operator==(const Group&) const = default;
};

struct Schedule {
  Plan plan;
  ScheduleOptions options;
  std::vector<int> order;  // plan instances, group by group
  std::vector<Group> groups;
  std::int64_t staging_slot_bytes = 0;  // of the packed route; a multiple of 16
  int staging_slot_count = 0;
};

// Groups a plan's instances by decoder layer, bounds the staging and fixes the holders.
// Throws: limit_exceeded naming the bound, the tensor and the number that would do.
Schedule arrange(Plan plan, const ScheduleOptions& options = {});

// Names by decoder layer: the first segment of a name that consists of digits is its layer number,
// what stands before it the stack. Names without one go before or after all layers.
// Returns the group of each name, numbered in order. Ensures: no group is empty.
struct LayerGroups {
  std::vector<std::string> names;  // of the groups: `model.layers.3`, `before`, `after`
  std::vector<int> group_of_name;
};
LayerGroups layerwise_groups(const std::vector<std::string_view>& names);

// The rank that serves a copy to `target_rank`: one of the source ranks that play `source_role` in
// the source instance's binding, rotated so that replicas share the work. The same on every rank.
int holder_of(const Schedule& schedule, const PlanInstance& instance, int source_role,
              int target_rank);

// -- One rank's part -----------------------------------------------------------------------------

// One copy that a rank gives or takes, with both ends' places. In elements of each side's dtype,
// offsets from the start of the parameter (of the whole tensor's buffer when `whole_tensor`).
struct Step {
  int peer = 0;             // a target rank when giving, a source rank when taking
  int instance = 0;         // of the plan
  int source_parameter = 0;
  int target_parameter = 0;
  Shape counts;
  View source;
  View target;
  bool whole_tensor = false;  // opaque: the target is the fallback buffer of the whole tensor
};

// Steps in the order in which a pair of ranks performs them, group by group.
struct RankPart {
  std::vector<std::vector<Step>> steps_of_group;
};

enum class Side : std::uint8_t { source, target };
// Ensures: for ranks s and t, the steps with peer t in expand(source, s) are those with peer s in
// expand(target, t), in the same order.
RankPart expand(const Schedule& schedule, Side side, int rank);

// The source dtype and target dtype of a step's elements.
DType source_dtype(const Plan& plan, const PlanInstance& instance);
DType target_dtype(const Plan& plan, const PlanInstance& instance);

// -- Totals --------------------------------------------------------------------------------------

struct Totals {
  std::int64_t bytes_model = 0;     // one copy of the checkpoint
  std::int64_t bytes_unique = 0;    // distinct wanted source bytes
  std::int64_t bytes_needed = 0;    // source bytes, summed over target ranks
  std::int64_t bytes_fallback = 0;  // of these, by the fallback
  std::vector<std::int64_t> egress_bytes;   // by source rank
  std::vector<std::int64_t> ingress_bytes;  // by target rank
  std::int64_t copies = 0;
};

// Ensures: equals the sums over every rank's expanded part; costs classes times ranks, not names
// times ranks.
Totals totals(const Schedule& schedule);

// Of the plan, the holders, the order and the bounds: equal on every rank before the first byte.
Fingerprint fingerprint(const Schedule& schedule);

std::string explain(const Schedule& schedule);

}  // namespace crossmesh
