// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism cuts one rule's tensor: a box for each role, by the rule's kind of cut.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/target/family.h"

namespace crossmesh::detail {

// What a rule's tensor gives to each rank of one instance. Consecutive ranks share a role.
struct Slices {
  int ranks_per_role = 1;
  std::vector<Box> box_of_role;  // may be empty: a rank that holds only padding
  Shape local_shape;             // what the rule takes in its parameter, padding included
};

// Throws: mismatch naming the axis, the extent and both numbers where `tp` does not divide.
Slices cut(const Rule& rule, const ModelConfig& config, int tp);

}  // namespace crossmesh::detail
