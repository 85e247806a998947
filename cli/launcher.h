// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a job as processes of this host and gathers what each has to say. It only
// launches: ranks find out about each other's death by themselves.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cli/move.h"

namespace crossmesh::cli {

struct RankProcess {
  int rank = 0;
  int pid = 0;  // ranks may share one
};

struct Launch {
  std::vector<std::string> arguments;  // of each rank, after the binary's name and `rank`
  std::string session;
  std::vector<std::vector<int>> ranks;  // of each process: one or two
  // Called once every rank has come to the phase of --pause, and is stopped there.
  std::function<void(const std::vector<RankProcess>&)> on_all_stopped;
  // Once a rank has failed, the others have this long to end by themselves; none at all when all
  // that are left are stopped, and not by --pause.
  std::chrono::milliseconds grace{20'000};
};

// Runs `crossmesh rank ...` once per process and returns an outcome for each rank, by rank: of a
// process that died without a word, its signal or exit code, and the state `ended`; of one that had
// to be killed, the state `killed`. A second rank of a process is named by --beside.
// A process that reports a restart is killed and started again, with --returns.
// Throws: io_failed when a process cannot be started.
std::vector<RankOutcome> launch(const Launch& launch);

// -- On the side of a launched rank; `fd` is its --report-fd -------------------------------------

// Says how a rank of this process ended. Each is told once the last has ended.
void report_outcome(int fd, const RankOutcome& outcome);

// Says that every rank of this process has come to the phase of --pause, and waits there for
// SIGCONT. The launcher stops the process once all are there; until then what it has sent still
// leaves it. Requires: hold_continue_signal was called before any thread started.
void report_pause(int fd);

// Asks to be killed and started again, and waits for that.
[[noreturn]] void report_restart(int fd);
void hold_continue_signal();

}  // namespace crossmesh::cli
