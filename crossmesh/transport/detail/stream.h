// SPDX-License-Identifier: Apache-2.0
// The transfers that this rank posted with one peer in one direction, and how far they are. It
// moves nothing and knows no counters.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// Bytes of many transfers are counted up to here: far above what matters, and far below what
// overflows.
inline constexpr std::int64_t kBytesCap = std::int64_t{1} << 60;

class Stream {
 public:
  Attempt attempt() const { return attempt_; }
  std::int64_t posted() const { return posted_; }
  std::int64_t done() const { return done_; }
  // Bytes of all transfers of the attempt, up to some 10^18.
  std::int64_t bytes() const { return bytes_; }
  bool is_stopped() const { return stopped_; }
  bool is_idle() const { return stopped_ || done_ == posted_; }

  // `bytes`: of the transfers at the target.
  // Requires: `attempt` is not older than the stream's, and the stream is idle when it is newer.
  // Returns the first slot.
  std::int64_t append(Attempt attempt, std::span<const Transfer> transfers, std::int64_t bytes,
                      Witness* witness = nullptr);

  // Requires: done() <= slot < posted(), and the stream is not stopped.
  const Transfer& at(std::int64_t slot) const;

  // Who watches the transfer, or null. Requires: as at.
  Witness* witness_of(std::int64_t slot) const;

  // Where the first batch that is not done ends; posted() when all are.
  std::int64_t next_end() const { return parts_.empty() ? posted_ : parts_.front().end_slot; }

  // Raises done() to `done`, at most to posted().
  // Returns whether a batch became done.
  bool finish(std::int64_t done);

  // Ends the attempt where it is, when it is not newer than `attempt`.
  void stop(Attempt attempt);

  Progress progress(const Ticket& ticket) const;

  // Whether an unfinished transfer names the local region. `source` tells which of its two.
  bool names(Region region, bool source) const;

 private:
  struct Part {
    std::int64_t end_slot = 0;
    std::span<const Transfer> transfers;
    Witness* witness = nullptr;
  };

  const Part& part_of(std::int64_t slot) const;

  Attempt attempt_ = 0;
  Attempt stopped_attempt_ = 0;  // the newest that was stopped before it was done
  std::int64_t posted_ = 0;
  std::int64_t done_ = 0;
  std::int64_t bytes_ = 0;
  bool stopped_ = false;
  std::deque<Part> parts_;  // those with an unfinished transfer, in order
};

}  // namespace crossmesh::detail
