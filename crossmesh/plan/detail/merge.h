// SPDX-License-Identifier: Apache-2.0
// Copies in their shortest form: no loop that does nothing, no two copies where one does.
#pragma once

#include <vector>

#include "crossmesh/plan/plan.h"

namespace crossmesh::detail {

// A copy and the pieces that it lies in; copies of other pieces are never merged with it.
struct Draft {
  Copy copy;
  int source_piece = 0;
  int target_piece = 0;
};

// Drops dimensions of extent 1 and merges dimensions that continue each other on both sides.
Copy canonical(const Copy& copy);

// Merges copies that continue each other.
// Requires: one target role. Ensures: ordered by source role, then by place in the target.
std::vector<Copy> merged(std::vector<Draft> drafts);

}  // namespace crossmesh::detail
