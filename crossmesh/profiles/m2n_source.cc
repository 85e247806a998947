// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/m2n_source.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

int code_of(const TrainerTensor& tensor, const AxisPlacement& placement) {
  if (placement.type == "Replicate") return kReplicate;
  if (placement.type != "Shard" || !placement.shard_dim) {
    throw Error(ErrorCode::unsupported,
                fmt::format("describe: nccl_m2n cannot express a {} placement", placement.type))
        .with("parameter", tensor.name);
  }
  const std::int64_t rank = static_cast<std::int64_t>(tensor.shape.size());
  const std::int64_t dim = *placement.shard_dim;
  if (dim < -rank || dim >= rank) {
    throw Error(ErrorCode::invalid_argument, "describe: a shard's dim is not one of its tensor")
        .with("parameter", tensor.name)
        .with("dim", dim)
        .with("rank", rank);
  }
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

// (n, 1) for one axis.
WireMesh wire_mesh_of(const TrainerTensor& tensor) {
  const DeviceMesh& mesh = *tensor.mesh;
  for (std::size_t i = 0; i < mesh.ranks.size(); ++i) {
    if (mesh.ranks[i] == static_cast<std::int64_t>(i)) continue;
    throw Error(ErrorCode::unsupported,
                "describe: a device mesh must be the contiguous rank interval from 0, in order")
        .with("parameter", tensor.name)
        .with("ranks", fmt::format("[{}]", fmt::join(mesh.ranks, ", ")));
  }
  if (mesh.dims.size() == 1) return wire_mesh({mesh.dims[0], 1}, 0);
  if (mesh.dims.size() == 2) return wire_mesh(mesh.dims, 0);
  throw Error(
      ErrorCode::unsupported,
      fmt::format("describe: nccl_m2n takes 1-D and 2-D device meshes, not {}-D", mesh.dims.size()))
      .with("parameter", tensor.name);
}

}  // namespace

Placements placements_of(const TrainerTensor& tensor) {
  if (!tensor.mesh) return std::nullopt;
  std::vector<int> codes;
  for (const AxisPlacement& placement : tensor.placements) {
    codes.push_back(code_of(tensor, placement));
  }
  const bool is_whole =
      std::all_of(codes.begin(), codes.end(), [](int code) { return code == kReplicate; });
  if (is_whole) return std::nullopt;
  if (codes.size() == 1) codes.push_back(kReplicate);
  return codes;
}

WireMesh mesh_of(const std::vector<TrainerTensor>& tensors, int trainer_count) {
  std::optional<WireMesh> result;
  const TrainerTensor* first = nullptr;
  for (const TrainerTensor& tensor : tensors) {
    if (!placements_of(tensor)) continue;
    const WireMesh mesh = wire_mesh_of(tensor);
    if (!result) {
      result = mesh;
      first = &tensor;
    } else if (*result != mesh) {
      const auto text = [](const WireMesh& m) {
        return fmt::format("[{}, {}]", m.dims[0], m.dims[1]);
      };
      throw Error(ErrorCode::unsupported, "describe: parameters span several device meshes")
          .with(first->name, text(*result))
          .with(tensor.name, text(mesh));
    }
  }
  return result.value_or(WireMesh{{trainer_count, 1}, 0});
}

}  // namespace crossmesh::profiles
