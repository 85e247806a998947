// SPDX-License-Identifier: Apache-2.0
// A profile of a collective reshard (nccl_m2n): meshes of two axes, placements as codes, and the
// limits of the kernels beneath. Asked for by name: crossmesh's own plans know none of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh::profiles {

inline constexpr int kReplicate = -1;  // the code of an axis along which a tensor repeats
inline constexpr int kTensorDimsMax = 3;
inline constexpr int kSourceShardsMax = 16;       // that feed one destination shard
inline constexpr int kDestinationShardsMax = 64;  // that one source shard feeds

// Ranks start_rank … start_rank + dims[0] * dims[1], the second axis fastest.
struct WireMesh {
  std::array<int, 2> dims = {1, 1};
  int start_rank = 0;

  int size() const { return dims[0] * dims[1]; }
  bool operator==(const WireMesh&) const = default;
};
// Throws: invalid_argument for other than 2 positive dims, or a negative start.
WireMesh wire_mesh(const std::vector<std::int64_t>& dims, std::int64_t start_rank);

// For each axis the tensor dimension that it shards, or kReplicate. Nothing: the whole tensor on
// every rank, which is never spelled as two kReplicate.
using Placements = std::optional<std::vector<int>>;

// Throws: invalid_argument, beginning with `context`: not 2 codes, a code below kReplicate, no
// sharded axis, or two.
void check_placements(const std::vector<int>& placements, std::string_view context);

// A mesh and codes that a kernel takes: a replicated tensor lies on one axis, sharded by the other
// of size 1, which changes nothing.
struct WireLayout {
  WireMesh mesh;
  std::array<int, 2> placements = {kReplicate, 0};

  bool operator==(const WireLayout&) const = default;
};
// Throws: as check_placements.
WireLayout wire_layout(const WireMesh& mesh, const Placements& placements,
                       std::string_view context);

int shard_count(const WireLayout& layout);

// Throws: invalid_argument where a code is past the tensor's dims, or a shard uneven. `side` is
// what a text calls the layout: source or destination.
void check_layout(const WireLayout& layout, const std::vector<std::int64_t>& shape,
                  std::string_view side);

// Throws: limit_exceeded naming the parameter and the limit.
struct Reshard {
  WireLayout source;
  WireLayout destination;
};
void check_plan_limits(const Reshard& reshard, std::string_view name);

// The dtype by its torch name, where the transport carries it and the rank.
// Throws: unsupported naming the parameter: a name of no dtype, a dtype without a kernel, or a
// tensor with other than 1 to 3 dims.
DType transferable_dtype(std::string_view name, std::string_view dtype_name,
                         const std::vector<std::int64_t>& shape);

}  // namespace crossmesh::profiles
