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
  std::int64_t staging_bytes_max = std::int64_t{64} << 20;  // per source rank
  std::int64_t fallback_bytes_max = std::int64_t{4} << 30;  // per target rank
};

// Plan instances that are acquired, moved and released together.
struct Group {
  std::string name;
  int first = 0;  // into Schedule::order
  int last = 0;   // one past

  bool operator==(const Group&) const = default;
};

// A binding the other way round: the ranks that play each role, in ascending order.
struct RanksOfRole {
  std::vector<int> first_of_role;     // into `ranks`; size: roles + 1
  std::vector<int> ranks;             // those of role 0, then those of role 1, ...
  std::vector<int> position_of_rank;  // into `ranks`, or -1

  bool operator==(const RanksOfRole&) const = default;
};

struct Schedule {
  Plan plan;
  ScheduleOptions options;
  std::vector<int> order;  // plan instances, group by group
  std::vector<Group> groups;
  std::int64_t staging_slot_bytes = 0;  // of packed and opaque tensors; a multiple of 16
  int staging_slot_count = 0;           // both 0 where nothing is staged

  // Set by `arrange`, so that a rank expands its part at the cost of that part.
  std::vector<RanksOfRole> source_ranks;   // by source binding
  std::vector<RanksOfRole> target_ranks;   // by target binding
  std::vector<int> rotation;               // by plan instance: where its choice of holders begins
  std::vector<int> earlier_opaque;         // by plan instance: the one before of its tensor, or -1
  std::vector<PlanClass> whole_classes;    // source classes met with the whole tensor
  std::vector<int> whole_of_source_class;  // by source class, or -1 where no opaque tensor has it
};

// Staging of one source rank, at least: two slots of 64 bytes.
inline constexpr std::int64_t kStagingBytesMin = 128;

// Groups a plan's instances by decoder layer, bounds the staging and fixes the holders, so that
// the busiest source rank gives little more than the mean.
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
  int peer = 0;      // a target rank when giving, a source rank when taking
  int instance = 0;  // of the plan
  int source_parameter = 0;
  int target_parameter = 0;
  Shape counts;
  View source;
  View target;
  bool whole_tensor = false;  // opaque: the target is the fallback buffer of the whole tensor
};

// Steps in the order in which a pair of ranks performs them, group by group. An opaque tensor goes
// whole, once to each rank that has any of its opaque instances, at the first of these.
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

// In bytes of the source's dtypes.
struct Totals {
  std::int64_t bytes_model = 0;             // one copy of the checkpoint
  std::int64_t bytes_unique = 0;            // distinct wanted source bytes
  std::int64_t bytes_needed = 0;            // source bytes, summed over target ranks
  std::int64_t bytes_fallback = 0;          // of these, by the fallback
  std::vector<std::int64_t> egress_bytes;   // by source rank
  std::vector<std::int64_t> ingress_bytes;  // by target rank
  std::int64_t copies = 0;                  // steps, over all target ranks

  bool operator==(const Totals&) const = default;
};

// Ensures: equals the sums over every rank's expanded part; costs classes times ranks, not names
// times ranks.
Totals totals(const Schedule& schedule);

// Of the plan, the holders, the order and the bounds: equal on every rank before the first byte.
Fingerprint fingerprint(const Schedule& schedule);

std::string explain(const Schedule& schedule);

}  // namespace crossmesh
