// SPDX-License-Identifier: Apache-2.0
// A profile of a collective reshard (nccl_m2n): what a worker and a trainer decide before they
// join, and the rows by which the first worker tells the others how tensors are cut. All of it is
// local: a bad plan is an error of the call that brings it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/profiles/m2n_init.h"
#include "crossmesh/profiles/m2n_layout.h"
#include "crossmesh/target/resolve.h"

namespace crossmesh::profiles {

// What a worker knows of its model.
struct WorkerModel {
  std::vector<LiveParameter> parameters;
  std::vector<LiveModule> modules;
  std::vector<std::string> distrusted_types;
  std::optional<std::string> quantization;  // any, an empty name too, distrusts all
  int pipeline_stages = 1;
  Closure closure = Closure::names;  // the transport's, which knows no feeds
};

struct WorkerPlan {
  ResolveRequest request;
  Resolution resolution;
  std::vector<Placements> placements;
  std::vector<Reshard> reshards;
  bool uses_fallback = false;
};

// Throws: as wire_mesh, transferable_dtype, wire_layout, check_layout and check_plan_limits, the
// first parameter that is wrong first; invalid_argument where the source mesh is not the trainers.
WorkerPlan plan_worker(const WorkerInit& init, const WorkerModel& model);

// -- Rows: two codes for each parameter, or twice kReplicatedRow
// -----------------------------------

inline constexpr int kReplicatedRow = kReplicate - 1;
using Row = std::array<int, 2>;

// What the first worker publishes. Throws: invalid_argument where it has not `count` of them.
std::vector<Row> rows_of(const std::optional<std::vector<Placements>>& own, std::size_t count);
// A row with one kReplicatedRow stays as it is, and fails when it is used.
std::vector<Placements> placements_of(const std::vector<Row>& rows);
// Throws: mismatch naming the first parameter of which another worker thinks otherwise.
void check_same_rows(const std::vector<std::string>& names, const std::vector<Placements>& own,
                     const std::vector<Placements>& received);

// -- Trainer -------------------------------------------------------------------------------------

struct SourceParameter {
  std::string name;
  std::string dtype_name;
  std::vector<std::int64_t> shape;
  Placements placements;
};

struct TrainerFacts {
  int trainer_count = 1;
  std::vector<std::int64_t> source_mesh_dims;
  std::vector<std::int64_t> destination_mesh_dims;
  std::vector<SourceParameter> parameters;
};

// Each parameter's layouts on both sides, given the rows that workers published.
// Throws: as plan_worker; mismatch for another number of rows. The shard limits are the workers'
// to check.
std::vector<Reshard> plan_trainer(const TrainerFacts& facts, const std::vector<Row>& rows);

}  // namespace crossmesh::profiles
