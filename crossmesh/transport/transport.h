// SPDX-License-Identifier: Apache-2.0
// How bytes get from a source rank's regions into a target rank's: peers, regions, slots and
// attempts, and not one tensor. Each back-end decides who moves the bytes: over shared memory the
// target pulls. An endpoint belongs to one thread; it starts none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh {

using Deadline = std::chrono::steady_clock::time_point;

// A number that names one try at one version; it starts at 1 and only grows within a session.
using Attempt = std::uint32_t;

// Memory that a rank offers to read from or lets be written to.
struct Buffer {
  std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
  int shareable_fd = -1;                    // a memfd that holds it, or -1 for private memory
  std::int64_t shareable_offset_bytes = 0;  // where `data` lies in that file
};

// An enrolled buffer: 0, 1, 2, ... in the order of enrolment at its endpoint. Peers name it so too.
using Region = int;

enum class Direction : std::uint8_t { give, take };

// One strided copy from a region of the source to a region of the target. Both ends build the same
// Transfer; the two regions are each their owner's. Where the dtypes differ the bytes are
// converted, once, on the way.
struct Transfer {
  Region source_region = 0;
  Region target_region = 0;
  std::int64_t source_offset_bytes = 0;
  std::int64_t target_offset_bytes = 0;
  LoopNest nest;
  DType source_dtype = DType::u8;
  DType target_dtype = DType::u8;
};

// Looks at bytes that were moved while a cache still holds them.
class Witness {
 public:
  virtual ~Witness() = default;

  // Whether it wants to see this transfer of the batch; it is then moved in smaller parts.
  virtual bool watches(const Transfer& transfer) const = 0;

  // Elements that were just written: `nest` from `source`, if they were read from this process's
  // memory and not converted, to `target_offset_bytes` behind the transfer's. What was read is
  // still there.
  struct Part {
    std::int64_t target_offset_bytes = 0;
    const std::byte* source = nullptr;  // null: read them where they are now
    const std::byte* target = nullptr;
    LoopNest nest;
  };
  virtual void moved(const Transfer& transfer, const Part& part) = 0;
};

// Transfers with one peer, which both ends post in the same order. Slots count the transfers of one
// (peer, direction, attempt) from 0 over all batches.
// The transfers must stay where they are until the ticket is done or the attempt cancelled.
struct Batch {
  int peer = -1;
  Direction direction = Direction::give;
  Attempt attempt = 0;
  std::span<const Transfer> transfers;
  Witness* witness = nullptr;  // of a take batch; it outlives the ticket as the transfers do
  // These very transfers are posted by other attempts as well: they are checked once.
  // Requires: they stay as they are, and where they are, as long as the endpoint lives.
  bool is_lasting = false;
};

struct Ticket {
  int peer = -1;
  Direction direction = Direction::give;
  Attempt attempt = 0;
  std::int64_t first_slot = 0;
  std::int64_t count = 0;
};

// How far a ticket is. A `give` transfer is done when its source may be overwritten, a `take`
// transfer when its bytes are in place.
struct Progress {
  std::int64_t done = 0;
  bool finished = false;
};

// What the scheduler may know of the way to a peer.
struct LinkFacts {
  // `memfd`, `attach` and `ring`, or several of them joined by `+`, as transfers were posted and
  // pulled; the venue's usual way before that. `local` between ranks of one process and in one
  // rank; `pointer` where all ranks are threads.
  std::string way;
  bool same_host = true;
  std::int64_t bytes_pulled = 0;  // by this rank, of the target's bytes
  double bytes_per_second = 0;    // that this rank pulled at; 0 where it was not measured
  std::string why_not_attach;     // to the peer's memory; empty where it was not tried or works
};

class Transport {
 public:
  virtual ~Transport() = default;

  // -- Set-up --------------------------------------------------------------------------------
  virtual std::string_view name() const = 0;

  // Makes memory known to present and later peers.
  // Throws: unsupported when the back-end cannot reach this kind of memory; invalid_argument when
  // the buffer is empty.
  virtual Region enroll(const Buffer& buffer) = 0;

  // Forgets a region; the others, and the other peers' transfers, go on. Nothing reads or writes it
  // after the call. Throws: invalid_argument when an unfinished posted transfer still names it, or
  // there is no such region.
  virtual void retire(Region region) = 0;

  // Where peers reach this endpoint.
  virtual std::string address() const = 0;

  // Both ends call it, for their peers in any order. Blocks until the peer has shown its session
  // and rank, at most to `deadline`. The larger rank dials; the smaller makes no use of `address`.
  // A peer that was lost, or has left, may connect again. To itself a rank is always connected: the
  // call does nothing, and what it gives itself is a local copy, posted in both directions.
  // Throws: timed_out, peer_lost, invalid_argument (another session, another user, another way,
  // connected already), mismatch (another protocol), unsupported (no attaching where it was asked
  // for), each naming the peer.
  virtual void connect(int peer, const std::string& address, Deadline deadline) = 0;

  // Takes leave: the peer loses nothing but unfinished transfers, and no longer reads. Tickets with
  // the peer are void.
  virtual void disconnect(int peer) = 0;

  // -- Moving --------------------------------------------------------------------------------
  // Does not block. With one peer and direction a newer attempt follows an older one that is done
  // or was cancelled. Throws: invalid_argument when a transfer leaves its local region, or the
  // attempt was cancelled here; unsupported when peers cannot reach what is given; peer_lost.
  virtual Ticket post(const Batch& batch) = 0;

  // Moves bytes for at most about `slice_bytes`, and returns whether anything was moved, finished
  // or lost. Does not wait. Requests of every peer are served in turn.
  // Throws: peer_lost (naming the peer) once per lost peer, or per peer that took leave with
  // transfers unfinished; mismatch when a peer's region is smaller than a transfer says, once: the
  // attempt's transfers from that peer stay unfinished, as they do after io_failed when the system
  // does not read the peer's memory. The others go on at the next call.
  virtual bool advance(std::int64_t slice_bytes) = 0;

  // As the last advance saw it. Transfers of one peer, direction and attempt are done in the order
  // of their slots.
  virtual Progress progress(const Ticket& ticket) const = 0;

  // Descriptors that become readable when `advance` may have something to do: what to poll while
  // nothing moves.
  virtual std::vector<int> wake_fds() const = 0;

  // When it returns, no byte of this attempt, or of an earlier one, is read from or written to this
  // rank's regions any more, and late requests of it are dropped. Its tickets never finish.
  // Throws: timed_out naming the peer that is still reading; cancel may be called again.
  virtual void cancel(Attempt attempt, Deadline deadline) = 0;

  // -- Facts ---------------------------------------------------------------------------------
  // Who is connected and has not gone, this rank aside, in order.
  virtual std::vector<int> peers() const = 0;

  virtual LinkFacts facts(int peer) const = 0;
};

}  // namespace crossmesh
