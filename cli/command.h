// SPDX-License-Identifier: Apache-2.0
// The commands of `crossmesh`, one file each. A command adds itself to the command line and, when
// it is the one that was asked for, leaves what to run in the Invocation; it runs nothing while
// parsing.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace crossmesh::cli {

// Exit codes of the binary.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// What the command line asked for.
struct Invocation {
  std::function<int()> run;  // returns an exit code, or throws Error
  bool json = false;         // results, and errors too, on standard output as JSON
};

// Each adds one command to `app`. Requires: `invocation` outlives the parse.
void register_synth(CLI::App& app, Invocation& invocation);
void register_read(CLI::App& app, Invocation& invocation);
void register_info(CLI::App& app, Invocation& invocation);
void register_plan(CLI::App& app, Invocation& invocation);
void register_layout(CLI::App& app, Invocation& invocation);
void register_move(CLI::App& app, Invocation& invocation);
void register_rank(CLI::App& app, Invocation& invocation);
void register_verify(CLI::App& app, Invocation& invocation);

}  // namespace crossmesh::cli
