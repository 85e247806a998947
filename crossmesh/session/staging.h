// SPDX-License-Identifier: Apache-2.0
// The packed route: how a pair's transfers are laid into bounded slots on the source, by one rule
// that both ends compute alone. It moves no bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/session/moves.h"

namespace crossmesh {

// A part of a transfer that lies packed in a slot.
struct StagedSlice {
  std::int64_t transfer = 0;             // of the pair
  std::int64_t packed_offset_bytes = 0;  // from the start of the slot; a multiple of 16
  std::int64_t source_offset_bytes = 0;  // added to the transfer's
  std::int64_t target_offset_bytes = 0;
  LoopNest nest;  // of the slice, source to target
};

// What is packed, posted and acknowledged together.
struct Chunk {
  std::vector<StagedSlice> slices;
  std::int64_t bytes = 0;  // of the slot that are used
};

// Cuts transfers into chunks of at most `slot_bytes`. Chunk k lies in slot k mod slot_count.
// Ensures: the slices of all chunks, in order, visit every transfer's elements once, in order.
// Throws: limit_exceeded when one element is larger than a slot.
std::vector<Chunk> stage(const std::vector<Transfer>& transfers, std::int64_t slot_bytes);

// The same moves as transfers out of staging, for the target that pulls them.
Moves staged_moves(const Moves& moves, const std::map<int, SourcePlaces>& sources);

// How a source's staging is divided among the targets that it serves.
struct StagingShare {
  std::int64_t slot_bytes = 0;
  std::int64_t slot_count = 0;  // of each peer
};

// Two slots for each peer so that one is packed while the other is read; one where memory is
// scarce. Throws: limit_exceeded naming the rank, the bound and the number that would do.
StagingShare share_staging(std::int64_t staging_bytes_max, int peer_count, int rank);

}  // namespace crossmesh
