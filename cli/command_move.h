// SPDX-License-Identifier: Apache-2.0
// What `move` and `rank` share: the flags that say what a job does, and how the outcomes of its
// ranks are printed.
#pragma once

#include <string>
#include <vector>

#include "cli/move.h"

namespace CLI {
class App;
}

namespace crossmesh::cli {

struct MoveCommand {
  MoveOptions options;
  std::string pause;
  std::string floor = "memcpy";
  std::string way = std::string(name_of(ShmWay::automatic));
  std::string digest = std::string(name_of(DigestMode::sampled));
  bool no_floor = false;
  bool json = false;
  FaultWords faults;
};

// Adds the flags, but for --json. Requires: `move` outlives the parse.
void add_move_options(CLI::App& command, MoveCommand& move);

// Puts into `move.options` what the flags say. Throws: invalid_argument where they do not fit.
void finish_options(MoveCommand& move);

// Prints what the job did, or why it failed and how each rank ended. Returns the exit code.
int finish(const MoveCommand& move, const std::vector<RankOutcome>& outcomes);

// `  engine 3: torn`
std::string outcome_line(const RankOutcome& outcome);

}  // namespace crossmesh::cli
