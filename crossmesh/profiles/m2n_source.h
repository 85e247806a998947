// SPDX-License-Identifier: Apache-2.0
// A profile of a collective reshard (nccl_m2n): a trainer's distributed tensors as the transport's
// mesh and placements. It says which of them the transport cannot express; crossmesh's own source
// layouts express more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/profiles/m2n_layout.h"

namespace crossmesh::profiles {

// One axis of a distributed tensor: the name of its placement's type, and the dimension of a shard.
struct AxisPlacement {
  std::string type;  // `Replicate`, `Shard`, or another
  std::optional<std::int64_t> shard_dim;
};

// The ranks of a device mesh, row-major.
struct DeviceMesh {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> ranks;
};

struct TrainerTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::optional<DeviceMesh> mesh;  // none: a plain tensor, whole on every rank
  std::vector<AxisPlacement> placements;
};

// Negative dims count from the end. Throws: unsupported for a placement of another type;
// invalid_argument for a dim that the tensor has not.
Placements placements_of(const TrainerTensor& tensor);

// The mesh of all tensors that are cut; (trainers, 1) where none is.
// Throws: unsupported for ranks that are not 0 … n - 1 in order, for other than 1 or 2 axes, and
// for tensors on several meshes; as placements_of.
WireMesh mesh_of(const std::vector<TrainerTensor>& tensors, int trainer_count);

}  // namespace crossmesh::profiles
