// SPDX-License-Identifier: Apache-2.0
// Whether a batch may be posted, and what it comes to. Batches that are posted in every attempt are
// looked at once: of a model with many tensors that takes as long as a part of their copies.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "crossmesh/base/error.h"
#include "crossmesh/transport/detail/connection.h"
#include "crossmesh/transport/detail/roster.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// What a batch comes to.
struct BatchFacts {
  std::int64_t bytes = 0;  // at the target, up to kBytesCap
  std::uint32_t ways = 0;  // of what is given; bit i: ShmWay i
  bool packs = false;      // some of it goes through the ring
};

// An error that names the peer, this rank, the attempt and the slot.
Error slot_error(ErrorCode code, std::string_view what, const Roster& roster, const Batch& batch,
                 std::int64_t slot);

class BatchChecker {
 public:
  // Of a batch whose first transfer gets `first_slot`. Throws: as Transport::post.
  BatchFacts check(const Roster& roster, const Connection& connection, const Batch& batch,
                   std::int64_t first_slot);

 private:
  // Where lasting transfers lie, and whose they are.
  using Key = std::tuple<int, Direction, const Transfer*, std::size_t>;
  // What the facts depend on beside the transfers.
  struct Ground {
    std::int64_t enrolment_changes = 0;
    Access gives = Access::unknown;
    bool is_local = false;

    bool operator==(const Ground&) const = default;
  };
  struct Known {
    Ground ground;
    BatchFacts facts;
  };

  std::map<Key, Known> known_;
};

}  // namespace crossmesh::detail
