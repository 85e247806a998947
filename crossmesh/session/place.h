// SPDX-License-Identifier: Apache-2.0
// Lays the parameters of one rank side by side in one piece of memory, for callers that have no
// places of their own. It allocates nothing and fills nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/session/session.h"

namespace crossmesh {

struct Placement {
  std::vector<ParameterPlace> places;  // by parameter, all in buffer 0; -1 where the rank has none
  std::int64_t bytes = 0;              // of the memory, paddings included
  std::int64_t bytes_held = 0;         // of the parameters alone
};

// Tied parameters share their owner's place. Every place is aligned to a cache line.
// Requires: 0 <= rank < layout.rank_count, a rank of this layout's side.
// Throws: unsupported for a parameter that does not end on a byte.
Placement place_parameters(const Layout& layout, int rank);

// Bytes of a parameter's storage on a rank. Requires: has_parameter.
// Throws: as place_parameters.
std::int64_t parameter_bytes(const Layout& layout, int rank, int parameter);

}  // namespace crossmesh
