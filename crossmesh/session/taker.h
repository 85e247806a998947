// SPDX-License-Identifier: Apache-2.0
// An engine rank's part of an update: takes its transfers group by group, hands opaque tensors to
// the engine's loader, and knows whether any byte has landed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/session/moves.h"

namespace crossmesh {

class Taker {
 public:
  // `load(tensor of the source layout)` runs the engine's loader over the fallback buffer.
  Taker(Transport& transport, Moves moves, std::function<void(int)> load);

  const Moves& moves() const { return moves_; }

  // `watch(peer)` tells who looks at what that peer gives, or null.
  void begin(Attempt attempt, std::function<Witness*(int)> watch = {});

  // Posts what may be posted, and moves at most about a slice. Returns whether anything changed.
  bool step();
  bool finished() const { return completed_ == moves_.batches.size(); }

  // Whether a byte of this attempt may have been written.
  bool touched() const { return touched_; }

  // Groups that are complete, for the caller that reports or pauses between them.
  std::size_t completed_batches() const { return completed_; }

  // `rank 0: 12 of 40 transfers` for each peer that has not delivered.
  std::string waiting_for() const;

 private:
  bool may_post_next() const;
  void post_next();
  bool complete_next();

  Transport& transport_;
  Moves moves_;
  std::function<void(int)> load_;
  Attempt attempt_ = 0;
  std::function<Witness*(int)> watch_;
  std::vector<std::vector<Ticket>> tickets_of_batch_;
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
  bool touched_ = false;
};

}  // namespace crossmesh
