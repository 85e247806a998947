// SPDX-License-Identifier: Apache-2.0
// A process that is more than one rank: which ranks share one under --colocate, and how they run
// and pause there. What ranks of one process give each other stays in it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cli/move.h"

namespace crossmesh::cli {

// The ranks of each process: one each; or, where `colocate`, trainer i and engine i share process
// i, and those that are left have one to themselves.
std::vector<std::vector<int>> ranks_of_processes(const RankCounts& counts, bool colocate);

// Ranks of one process pause together: it is stopped and continued as a whole.
class PauseGate {
 public:
  // `pause` is called once, in the thread of one rank, when none is missing; it returns when the
  // process goes on.
  PauseGate(int rank_count, std::function<void()> pause);

  // A rank has come to the phase of --pause. Blocks until all have, or have ended, and `pause`
  // has returned.
  void enter();

  // A rank has ended and will not come.
  void leave();

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int missing_;
  bool is_over_ = false;
  std::function<void()> pause_;
};

// Runs ranks of one process, each in a thread, and returns their outcomes in the same order.
// `options.rank` is not looked at; `on_pause` is called as by PauseGate. `on_iteration` is called
// by rank 0.
std::vector<RankOutcome> run_ranks(
    const std::vector<int>& ranks, const RankOptions& options,
    const std::function<std::unique_ptr<Transport>(int rank)>& open_transport,
    const std::function<void(int)>& on_iteration = {});

}  // namespace crossmesh::cli
