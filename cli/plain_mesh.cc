// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_mesh.h"

#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/mesh.h"

namespace crossmesh::cli {
namespace {

constexpr std::string_view kAxes[] = {"replicas", "pp", "dp", "tp"};

PlainSpread spread_named(const Spec& spec, const std::string& word) {
  if (word == "linear") return PlainSpread::linear;
  if (word == "round_robin") return PlainSpread::round_robin;
  throw Error(ErrorCode::invalid_argument, "read engine mesh: experts are spread in no such way")
      .with("spec", spec.text)
      .with("experts", word)
      .with("known", "linear, round_robin");
}

}  // namespace

PlainEngine plain_engine_of_rank(const Spec& spec, int rank) {
  PlainEngine engine;
  Spec ranks = spec;
  std::erase_if(ranks.axes, [&](const Axis& axis) {
    if (axis.name != "experts") return false;
    engine.spread = spread_named(spec, axis.value);
    return true;
  });
  const Mesh mesh = mesh_of(ranks, {"engine", kAxes});
  engine.pp = size_of_axis(mesh, "pp");
  engine.pp_rank = coordinate(mesh, "pp", rank);
  engine.dp = size_of_axis(mesh, "dp");
  engine.dp_rank = coordinate(mesh, "dp", rank);
  engine.tp = size_of_axis(mesh, "tp");
  engine.tp_rank = coordinate(mesh, "tp", rank);
  return engine;
}

}  // namespace crossmesh::cli
