// SPDX-License-Identifier: Apache-2.0
#include "cli/colocated.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {

std::vector<std::vector<int>> ranks_of_processes(const RankCounts& counts, bool colocate) {
  const int apart = counts.trainers + counts.engines;
  const int processes = colocate ? std::max(counts.trainers, counts.engines) : apart;
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(processes));
  for (int rank = 0; rank < apart; ++rank) {
    const bool is_beside = colocate && rank >= counts.trainers;
    ranks[static_cast<std::size_t>(is_beside ? rank - counts.trainers : rank)].push_back(rank);
  }
  return ranks;
}

PauseGate::PauseGate(int rank_count, std::function<void()> pause)
    : missing_(rank_count), pause_(std::move(pause)) {}

void PauseGate::enter() {
  std::unique_lock lock(mutex_);
  --missing_;
  all_here_.notify_all();
  all_here_.wait(lock, [&] { return missing_ <= 0; });
  // The others wait for the lock meanwhile.
  if (!std::exchange(is_over_, true)) pause_();
}

void PauseGate::leave() {
  const std::lock_guard lock(mutex_);
  --missing_;
  all_here_.notify_all();
}

std::vector<RankOutcome> run_ranks(
    const std::vector<int>& ranks, const RankOptions& options,
    const std::function<std::unique_ptr<Transport>(int rank)>& open_transport,
    const std::function<void(int)>& on_iteration) {
  PauseGate gate(static_cast<int>(ranks.size()), options.on_pause);
  std::vector<RankOutcome> outcomes(ranks.size());
  const auto run = [&](std::size_t i) {
    RankOptions own = options;
    own.rank = ranks[i];
    own.on_pause = [&] { gate.enter(); };
    outcomes[i] = run_rank(
        own, [&] { return open_transport(own.rank); },
        own.rank == 0 ? on_iteration : std::function<void(int)>());
    gate.leave();
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    try {
      threads.emplace_back(run, i);
    } catch (const std::system_error& error) {
      // The ranks that run miss this one, and end.
      outcomes[i].rank = ranks[i];
      outcomes[i].title = fmt::format("rank {}", ranks[i]);
      outcomes[i].error = Error(ErrorCode::io_failed, "move: the system gives no more threads")
                              .with("rank", ranks[i])
                              .with("ranks", ranks.size())
                              .with("system", error.code().message());
      gate.leave();
    }
  }
  if (!ranks.empty()) run(0);
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace crossmesh::cli
