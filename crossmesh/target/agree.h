// SPDX-License-Identifier: Apache-2.0
// The destination plans of all ranks, gathered and held against each other before anything is
// joined. Every rank calls the same function on the same values, so all go on, or all stop with
// the same error. It exchanges nothing: the session does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/base/fingerprint.h"
#include "crossmesh/target/resolve.h"

namespace crossmesh {

// How one engine rank takes one tensor.
struct PlannedDestination {
  Destination destination;
  DType dtype = DType::u8;
  Shape shape;        // of the whole tensor
  Shape local_shape;  // of what the rank takes of it
  int shard_index = 0;
  int shard_count = 1;  // 1: whole

  bool operator==(const PlannedDestination&) const = default;
};

// What one rank publishes.
struct PublishedPlan {
  int rank = 0;
  bool is_target = false;  // sources publish no plan, and adopt the others'
  Fingerprint announced;   // of the tensors, in order
  std::string error;       // why it has no plan, or empty
  int rank_count = 1;      // of the engine
  int rank_first = 0;      // of the engine's ranks
  std::vector<PlannedDestination> plan;
};

// Order counts.
Fingerprint fingerprint(const std::vector<AnnouncedTensor>& tensors);

// The plan of engine rank `rank` (from 0). Requires: `resolution` is that of `request`.
PublishedPlan publish(const ResolveRequest& request, const Resolution& resolution, int rank);

struct AgreedPlan {
  std::vector<PlannedDestination> plan;  // of the first engine rank
  Fingerprint digest;                    // of all but the shard indices and reasons

  bool operator==(const AgreedPlan&) const = default;
};

// Throws: aborted with every rank's own error, before anything is compared; invalid_argument for
// no engine rank, no tensor, or one that is announced twice; mismatch naming the tensor, the ranks
// and both values: other tensors, another number of them, other placements or ways, or a geometry
// that is not its rank's.
AgreedPlan agree(const std::vector<PublishedPlan>& plans);

}  // namespace crossmesh
