// SPDX-License-Identifier: Apache-2.0
// Moves bytes with one peer for a moment: pulls what it offers, or packs for a peer that cannot
// reach this rank's memory. Whose turn it is, it does not decide.
#pragma once

#include <cstdint>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/detail/connection.h"
#include "crossmesh/transport/detail/enrolment.h"
#include "crossmesh/transport/detail/roster.h"

namespace crossmesh::detail {

struct Turn {
  bool did_something = false;
  std::int64_t bytes = 0;
};

// What turns need besides a connection.
struct Bench {
  Roster* roster = nullptr;
  const Enrolment* enrolment = nullptr;
  std::int64_t ring_bytes = 0;  // of the ring for one peer
  Mapping buffer;               // for what cannot be read straight into place; made when needed
};

// How the peer takes from a region of this rank; `automatic` at an address that both share.
ShmWay way_of(const Enrolment& enrolment, const Connection& connection, Region region);

// Pulls transfers that the peer offered into this rank's memory, for about `turn_bytes`.
// Throws: mismatch when the peer's memory is not what a transfer says; io_failed when the system
// does not read it. Nothing more of that attempt is pulled.
Turn pull_turn(Bench& bench, Connection& connection, std::int64_t turn_bytes);

// Packs transfers that this rank gives, if the peer takes them through a ring, for about
// `turn_bytes`. Throws: out_of_memory, io_failed when there is no ring and none can be made.
Turn pack_turn(Bench& bench, Connection& connection, std::int64_t turn_bytes);

}  // namespace crossmesh::detail
