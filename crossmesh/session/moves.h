// SPDX-License-Identifier: Apache-2.0
// A rank's part of a schedule as transfers: which bytes of which region go to or come from which
// peer, in the order in which both ends post them. Built once; an update only posts them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "crossmesh/memory/digest.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

// Where a parameter lies, as peers name it.
struct RegionPlace {
  Region region = -1;
  std::int64_t offset_bytes = 0;
};

// Where a source rank's parameters lie and how it stages for one target.
struct SourcePlaces {
  std::vector<RegionPlace> parameters;  // by the source layout's parameters
  Region staging_region = -1;
  std::int64_t staging_offset_bytes = 0;  // of the slots that are this target's
  std::int64_t slot_bytes = 0;
  std::int64_t slot_count = 0;
};

// A range of the transfers with one peer.
struct MoveRange {
  int peer = 0;  // rank on the other side
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// What is posted, and completes, together: a group's direct transfers, or one opaque tensor.
struct MoveBatch {
  int group = 0;
  int opaque_tensor = -1;  // of the source layout; the loader runs when the batch is complete
  std::vector<MoveRange> ranges;
};

// What a transfer moves, as the target's memory sees it.
struct TensorPart {
  int tensor = 0;                // of the source layout
  int numbering = 0;             // into Moves::numberings
  std::int64_t place_bytes = 0;  // there, of the transfer's target

  bool operator==(const TensorPart&) const = default;
};

struct Moves {
  std::map<int, std::vector<Transfer>> transfers_of_peer;  // in posting order
  std::map<int, std::vector<TensorPart>> parts_of_peer;    // of each of these transfers
  std::vector<Numbering> numberings;
  std::vector<MoveBatch> batches;
  std::int64_t bytes = 0;           // source bytes
  std::int64_t bytes_fallback = 0;  // of these, by the fallback
};

// The part of trainer rank `rank`. Transfers name its own regions; the target's are the target's
// business, since the target pulls.
// Throws: unsupported for elements that do not fill whole bytes.
Moves moves_of_source(const Schedule& schedule, int rank, const std::vector<RegionPlace>& places);

// The part of engine rank `rank`, with the places that each source published.
Moves moves_of_target(const Schedule& schedule, int rank, const std::vector<RegionPlace>& places,
                      Region fallback_region, const std::map<int, SourcePlaces>& sources);

}  // namespace crossmesh
