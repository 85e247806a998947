// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism cuts one rule's tensor: a box for each role, by the rule's kind of cut.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "crossmesh/target/family.h"

namespace crossmesh::detail {

// What a rule's tensor gives to each rank of one instance. Consecutive ranks share a role.
struct Slices {
  int ranks_per_role = 1;
  std::vector<Box> box_of_role;  // may be empty: a rank that holds only padding
  Shape local_shape;             // what the rule takes in its parameter, padding included
};

// The ranks that cut a tensor, and the axes that they are along.
struct Cutters {
  std::string_view axes = "tp";
  int count = 1;
};

// Throws: mismatch naming the axes, the extent and both numbers where they do not divide.
Slices cut(const Rule& rule, const ModelConfig& config, const Cutters& cutters);

}  // namespace crossmesh::detail
