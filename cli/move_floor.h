// SPDX-License-Identifier: Apache-2.0
// The floor of an update on one host: every engine process at once makes one memcpy of as many
// bytes as it needs, from a mapping that another process has just rewritten into touched memory of
// its own.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/session/session.h"

namespace crossmesh::cli {

class MoveFloor {
 public:
  // Every rank makes one, at the same point. `bytes` is what this rank takes in an update; 0 on
  // trainers.
  MoveFloor(Session& session, int rank, int trainer_count, std::int64_t bytes);

  // One round, on every rank. Returns its seconds: from the first rank's begin to the last one's
  // end.
  double measure(Session& session, int round);

 private:
  bool is_trainer() const { return rank_ < trainer_count_; }

  int rank_;
  int trainer_count_;
  std::int64_t bytes_;
  SharedMemory source_;             // an engine's own
  std::vector<Mapping> rewritten_;  // a trainer's views of the engines that it serves
  Mapping target_;
};

}  // namespace crossmesh::cli
