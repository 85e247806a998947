// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/m2n_plan.h"

#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

WireMesh source_mesh(const std::vector<std::int64_t>& dims, int trainers) {
  const WireMesh mesh = wire_mesh(dims, 0);
  if (mesh.size() != trainers) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("plan: the source mesh covers {} ranks, but there are {} trainer ranks",
                            mesh.size(), trainers));
  }
  return mesh;
}

Error named(Error error, const std::string& name) {
  return std::move(error.with("parameter", name));
}

WireLayout source_layout(const WireMesh& mesh, const SourceParameter& parameter) {
  WireLayout layout =
      wire_layout(mesh, parameter.placements,
                  fmt::format("plan: parameter '{}' source placements", parameter.name));
  try {
    check_layout(layout, parameter.shape, "source");
  } catch (const Error& error) {
    throw named(error, parameter.name);
  }
  return layout;
}

WireLayout destination_layout(const WireMesh& mesh, const Placements& placements,
                              const SourceParameter& parameter) {
  WireLayout layout = wire_layout(
      mesh, placements, fmt::format("plan: parameter '{}' destination placements", parameter.name));
  try {
    check_layout(layout, parameter.shape, "destination");
  } catch (const Error& error) {
    throw named(error, parameter.name);
  }
  return layout;
}

std::string distrust(const WorkerModel& model) {
  if (model.quantization) return fmt::format("the engine is quantised: {}", *model.quantization);
  if (model.pipeline_stages != 1) {
    return fmt::format("the engine has {} pipeline stages", model.pipeline_stages);
  }
  return "";
}

Placements placements_of(const Destination& destination) {
  if (!destination.shard_dim) return std::nullopt;
  return std::vector<int>{kReplicate, *destination.shard_dim};
}

}  // namespace

WorkerPlan plan_worker(const WorkerInit& init, const WorkerModel& model) {
  const WireMesh sources = source_mesh(init.source_mesh_dims, init.rank_offset);
  const WireMesh workers = wire_mesh(init.destination_mesh_dims, init.rank_offset);
  WorkerPlan plan;
  plan.request.parameters = model.parameters;
  plan.request.modules = model.modules;
  plan.request.distrusted_types = model.distrusted_types;
  plan.request.rank_count = workers.size();
  plan.request.shard_count = workers.dims[1];
  plan.request.distrust_all = distrust(model);
  plan.request.closure = model.closure;
  std::vector<SourceParameter> parameters;
  for (std::size_t i = 0; i < init.names.size(); ++i) {
    parameters.push_back(
        {init.names[i], init.dtype_names[i], init.shapes[i], init.source_placements[i]});
    const DType dtype = transferable_dtype(init.names[i], init.dtype_names[i], init.shapes[i]);
    plan.reshards.push_back({source_layout(sources, parameters.back()), {}});
    plan.request.tensors.push_back({init.names[i], dtype, Shape(init.shapes[i]), {}});
  }
  plan.resolution = resolve(plan.request);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Destination& destination = plan.resolution.destinations[i];
    plan.placements.push_back(placements_of(destination));
    plan.uses_fallback = plan.uses_fallback || !destination.is_direct;
    plan.reshards[i].destination =
        destination_layout(workers, plan.placements.back(), parameters[i]);
    check_plan_limits(plan.reshards[i], parameters[i].name);
  }
  return plan;
}

std::vector<Row> rows_of(const std::optional<std::vector<Placements>>& own, std::size_t count) {
  if (!own || own->size() != count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("publish: the first worker must give {} destination placements", count))
        .with("given", own ? own->size() : 0);
  }
  std::vector<Row> rows;
  for (const Placements& placements : *own) {
    if (placements) check_placements(*placements, "publish: a row");
    rows.push_back(placements ? Row{(*placements)[0], (*placements)[1]}
                              : Row{kReplicatedRow, kReplicatedRow});
  }
  return rows;
}

std::vector<Placements> placements_of(const std::vector<Row>& rows) {
  std::vector<Placements> result;
  for (const Row& row : rows) {
    const bool is_whole = row == Row{kReplicatedRow, kReplicatedRow};
    result.push_back(is_whole ? Placements() : std::vector<int>{row[0], row[1]});
  }
  return result;
}

void check_same_rows(const std::vector<std::string>& names, const std::vector<Placements>& own,
                     const std::vector<Placements>& received) {
  if (own.size() != received.size() || own.size() != names.size()) {
    throw Error(ErrorCode::mismatch, "plan: the published rows are not as many as the parameters")
        .with("rows", received.size())
        .with("parameters", names.size());
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] == received[i]) continue;
    throw Error(ErrorCode::mismatch,
                fmt::format("plan: inference workers resolved different nccl_m2n destinations "
                            "(first mismatch: '{}')",
                            names[i]));
  }
}

std::vector<Reshard> plan_trainer(const TrainerFacts& facts, const std::vector<Row>& rows) {
  const WireMesh sources = source_mesh(facts.source_mesh_dims, facts.trainer_count);
  std::vector<Reshard> reshards;
  for (const SourceParameter& parameter : facts.parameters) {
    transferable_dtype(parameter.name, parameter.dtype_name, parameter.shape);
    reshards.push_back({source_layout(sources, parameter), {}});
  }
  const WireMesh workers = wire_mesh(facts.destination_mesh_dims, facts.trainer_count);
  if (rows.size() != facts.parameters.size()) {
    throw Error(ErrorCode::mismatch, "plan: the published rows are not as many as the parameters")
        .with("rows", rows.size())
        .with("parameters", facts.parameters.size());
  }
  const std::vector<Placements> placements = placements_of(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    reshards[i].destination = destination_layout(workers, placements[i], facts.parameters[i]);
  }
  return reshards;
}

}  // namespace crossmesh::profiles
