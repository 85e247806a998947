// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

Error refusal(const Spec& spec, const SideAxes& side, std::string_view what) {
  return std::move(
      Error(ErrorCode::invalid_argument, fmt::format("read {} mesh: {}", side.side, what))
          .with("spec", spec.text));
}

const MeshAxis* find_axis(const Mesh& mesh, std::string_view name) {
  const auto at = std::ranges::find(mesh.axes, name, &MeshAxis::name);
  return at == mesh.axes.end() ? nullptr : &*at;
}

std::string known_names(const SideAxes& side) {
  std::string names = fmt::format("{}", fmt::join(side.names, ", "));
  for (const std::string_view word : side.words) names += fmt::format(", {}", word);
  return names;
}

}  // namespace

Mesh mesh_of(const Spec& spec, const SideAxes& side) {
  if (!spec.options.empty()) {
    throw refusal(spec, side, "no option is known").with("option", spec.options.front());
  }
  Mesh mesh;
  for (const Axis& axis : spec.axes) {
    if (std::ranges::find(side.words, axis.name) != side.words.end()) continue;
    if (std::ranges::find(side.names, axis.name) == side.names.end()) {
      throw refusal(spec, side, "an axis is not known")
          .with("axis", axis.name)
          .with("known", known_names(side));
    }
    if (find_axis(mesh, axis.name) != nullptr) {
      throw refusal(spec, side, "an axis is repeated").with("axis", axis.name);
    }
    mesh.axes.push_back({axis.name, axis_size(spec, axis.name), 1});
  }
  std::int64_t rank_count = 1;
  for (auto axis = mesh.axes.rbegin(); axis != mesh.axes.rend(); ++axis) {
    axis->stride = static_cast<int>(rank_count);
    rank_count *= axis->size;
    if (rank_count > kRanksMax) {
      throw refusal(spec, side, "too many ranks").with("ranks_max", kRanksMax);
    }
  }
  mesh.rank_count = static_cast<int>(rank_count);
  return mesh;
}

int size_of_axis(const Mesh& mesh, std::string_view name) {
  const MeshAxis* axis = find_axis(mesh, name);
  return axis == nullptr ? 1 : axis->size;
}

int stage_of_layer(std::int64_t layer, std::int64_t layer_count, int stage_count) {
  const std::int64_t fewer = layer_count / stage_count;
  const std::int64_t rest = layer_count % stage_count;
  // Stages [first_longer, last) hold one layer more.
  const std::int64_t last = stage_count - 1;
  const std::int64_t first_longer = last - rest;
  if (layer < first_longer * fewer) return static_cast<int>(layer / fewer);
  const std::int64_t past = layer - first_longer * fewer;
  return static_cast<int>(std::min(first_longer + past / (fewer + 1), last));
}

int coordinate(const Mesh& mesh, std::string_view name, int rank) {
  const MeshAxis* axis = find_axis(mesh, name);
  return axis == nullptr ? 0 : rank / axis->stride % axis->size;
}

}  // namespace crossmesh
