// SPDX-License-Identifier: Apache-2.0
// What an update is measured beside, on one host: every engine process at once makes plain copies
// from a mapping that another process has just rewritten into touched memory of its own. Nothing is
// planned, announced or acknowledged.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/session/session.h"

namespace crossmesh::cli {

class Floor {
 public:
  virtual ~Floor() = default;

  // One round, on every rank at the same point. Returns its seconds: from the first rank's begin to
  // the last one's end.
  double measure(Session& session, int round);

 private:
  virtual void rewrite(int round) = 0;  // a trainer's part
  virtual bool copies() const = 0;      // whether this rank has any copy to make
  virtual void copy() = 0;
};

// One memcpy of as many bytes as this engine rank takes in an update: no move can do with less.
class MemcpyFloor : public Floor {
 public:
  // Every rank makes one, at the same point. `bytes` is 0 on trainers.
  MemcpyFloor(Session& session, int rank, int trainer_count, std::int64_t bytes);

 private:
  void rewrite(int round) override;
  bool copies() const override { return target_.bytes() > 0; }
  void copy() override;

  SharedMemory source_;             // an engine's own
  std::vector<Mapping> rewritten_;  // a trainer's views of the engines that it serves
  Mapping target_;
};

// The very runs of the update, in a plain loop with a memcpy for each: what a program that knows
// them all, and does nothing else, would need.
class RunsFloor : public Floor {
 public:
  // `memory` is the rank's own, in one buffer. Trainers' weights are overwritten by each round.
  // Throws: unsupported where the schedule stages, converts or moves whole tensors.
  RunsFloor(Session& session, int rank, int trainer_count, const ParameterMemory& memory);

 private:
  struct Copy {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    LoopNest nest;
  };

  void rewrite(int round) override;
  bool copies() const override { return !copies_.empty(); }
  void copy() override;

  Buffer weights_;                // a trainer's own
  std::vector<Mapping> sources_;  // by trainer
  Mapping target_;
  std::vector<Copy> copies_;
};

}  // namespace crossmesh::cli
