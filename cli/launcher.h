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
  int pid = 0;
};

struct Launch {
  std::vector<std::string> arguments;  // of each rank, after the binary's name and `rank`
  std::string session;
  int rank_count = 0;
  // Called once every rank has stopped itself (for --pause).
  std::function<void(const std::vector<RankProcess>&)> on_all_stopped;
  // Once a rank has failed, the others have this long to end by themselves.
  std::chrono::milliseconds grace{20'000};
};

// Runs `crossmesh rank ...` once per rank and returns an outcome for each: of a process that died
// without a word, its signal or exit code.
// Throws: io_failed when a process cannot be started.
std::vector<RankOutcome> launch(const Launch& launch);

// The descriptor on which a launched rank reports, from its --report-fd.
void report_outcome(int fd, const RankOutcome& outcome);

}  // namespace crossmesh::cli
