// SPDX-License-Identifier: Apache-2.0
// Where a tensor that stacks all experts of a layer lies in the slots of a parameter, rank by rank.
#pragma once

#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/target/detail/cut.h"
#include "crossmesh/target/detail/experts.h"

namespace crossmesh::detail {

struct Stack {
  std::vector<std::int64_t> shape;  // of the tensor: [experts, rows, columns]
  const Slices& slices;             // of one of an expert's parts
  int parts = 1;                    // one below another in the tensor's rows
  bool is_spread = false;           // whole experts by the placement; else slices of all, by rank
};

using PiecesOfRole = std::vector<std::vector<Piece>>;

// The pieces of each rank that experts are cut by or spread over. Boxes of one rank must not meet:
// an expert's second slot on a rank is in the second element, and so on.
std::vector<PiecesOfRole> pieces_of_stack(const Stack& stack, const ExpertPlacement& placement);

}  // namespace crossmesh::detail
