// SPDX-License-Identifier: Apache-2.0
// One peer as this rank sees it: its socket, the shared counters, its memory and the transfers
// posted with it. It decides nothing about when to move bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/memory/slice.h"
#include "crossmesh/transport/detail/attach.h"
#include "crossmesh/transport/detail/control_page.h"
#include "crossmesh/transport/detail/enrolment.h"
#include "crossmesh/transport/detail/peer_memory.h"
#include "crossmesh/transport/detail/ring.h"
#include "crossmesh/transport/detail/stream.h"
#include "crossmesh/transport/detail/wire.h"

namespace crossmesh::detail {

enum class PeerState {
  open,
  left,  // it said goodbye
  lost,  // its end of the socket is gone
};

// An announcement that the socket had no room for.
struct Unsent {
  Message message;
  FileDescriptor fd;
};

// How far the take transfer that is being pulled is.
struct Cursor {
  Slices slices;
  std::int64_t next = 0;
};

// What went from or to a peer, and how.
struct Traffic {
  std::uint32_t ways = 0;  // bit i: ShmWay i
  std::int64_t pulled_bytes = 0;
  double pulled_seconds = 0;
};

struct Connection {
  int peer = -1;
  int own_index = 0;     // of this rank in the control page: 0 for the smaller rank
  bool is_own = false;   // the peer is this rank: no socket, and both directions share a lane
  bool is_here = false;  // the peer is another rank of this process
  FileDescriptor socket;
  ControlPagePtr page;
  PeerMemory memory;
  Attachment attachment;
  Access takes = Access::none;     // private memory of the peer
  Access gives = Access::unknown;  // private memory of this rank
  Refusal refusal;                 // of attaching to the peer
  bool packs = false;              // some of what was posted to give goes through a ring
  std::optional<RingWriter> ring_writer;
  std::optional<RingReader> ring_reader;
  Traffic traffic;
  std::deque<Unsent> outbox;
  Stream give;
  Stream take;
  std::optional<Cursor> cursor;
  Attempt refused_attempt = 0;     // of `take`: the peer's memory is not what a transfer says
  std::uint64_t seen_offered = 0;  // what was offered when its messages were last read
  PeerState state = PeerState::open;
  bool had_unfinished = false;  // when the peer went
  bool is_reported = false;

  // Whether shm, too, is read where it is.
  bool is_local() const { return is_own || is_here; }
};

inline Lane& giving_lane(const Connection& c) {
  return c.page->lanes[static_cast<std::size_t>(c.own_index)];
}
inline Lane& taking_lane(const Connection& c) {
  return c.page->lanes[static_cast<std::size_t>(c.is_own ? c.own_index : 1 - c.own_index)];
}

inline void note_way(Connection& c, ShmWay way) {
  c.traffic.ways |= 1u << static_cast<std::uint32_t>(way);
}

// Makes the peer's wake descriptor readable.
void ring(const Connection& connection);

// Sends the announcements, or keeps what the socket has no room for.
void announce(Connection& connection, const std::vector<Announcement>& announcements);

// Sends what was kept. Returns whether nothing is left.
bool flush(Connection& connection);

// Shows the peer all posted transfers, once it can know the regions that they name.
void publish(const Connection& connection);

// Takes over what the peer acknowledged. Returns whether that is more than before.
bool refresh_give(Connection& connection);

// Reads every message that is there. Returns false when the peer has gone.
bool read_messages(Connection& connection);

// Ends all transfers and lets go of the peer's memory.
void close_connection(Connection& connection, PeerState state);

// Forbids reading for `attempt` and those before it.
void withdraw(const Connection& connection, Attempt attempt);

// Whether the peer reads for `attempt` or one before it.
bool is_read(const Connection& connection, Attempt attempt);

// Ends the transfers of `attempt` or one before it that this rank takes.
void stop_taking(Connection& connection, Attempt attempt);

}  // namespace crossmesh::detail
