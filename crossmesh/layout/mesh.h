// SPDX-License-Identifier: Apache-2.0
// A side's ranks as coordinates: a rank's number is its coordinates read in the order in which the
// axes are written, the last one fastest. It knows sizes, and not what an axis means.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/layout/spec.h"

namespace crossmesh {

// Ranks of one side, at most.
inline constexpr int kRanksMax = 1'000'000;

struct MeshAxis {
  std::string name;
  int size = 1;
  int stride = 1;  // ranks between neighbours along the axis

  bool operator==(const MeshAxis&) const = default;
};

struct Mesh {
  int rank_count = 1;
  std::vector<MeshAxis> axes;  // in the order written

  bool operator==(const Mesh&) const = default;
};

// The axes that a side takes, and what an error calls the side (`trainer`, `engine`).
struct SideAxes {
  std::string_view side;
  std::span<const std::string_view> names;
  std::span<const std::string_view> words =
      {};  // that look like axes and are none: `experts=linear`
};

// The mesh of a spec without options.
// Throws: invalid_argument: an axis that the side does not take, one that is repeated or not a
// size, an option, or more than kRanksMax ranks.
Mesh mesh_of(const Spec& spec, const SideAxes& side);

// The size of an axis; 1 when the mesh does not have it.
int size_of_axis(const Mesh& mesh, std::string_view name);

// The stage of a layer where pipeline parallelism splits layers evenly, the remainder to the stages
// before the last, going backwards: 8 layers on 3 stages are 3, 3, 2; 7 on 3 are 2, 3, 2.
// Requires: 0 <= layer < layer_count.
int stage_of_layer(std::int64_t layer, std::int64_t layer_count, int stage_count);

// Where `rank` stands along an axis; 0 when the mesh does not have it.
int coordinate(const Mesh& mesh, std::string_view name, int rank);

}  // namespace crossmesh
