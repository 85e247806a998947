// SPDX-License-Identifier: Apache-2.0
// What phases and states are called.
#include <array>

#include "crossmesh/session/session.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 8> kPhases = {"join", "agree",    "ready",  "start",
                                                     "move", "complete", "commit", "leave"};

}  // namespace

std::string_view name_of(Phase phase) { return kPhases[static_cast<std::size_t>(phase)]; }

Phase phase_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (kPhases[i] == name) return static_cast<Phase>(i);
  }
  throw Error(ErrorCode::invalid_argument, "session: no such phase")
      .with("phase", name)
      .with("phases", fmt::format("{}", fmt::join(kPhases, ", ")));
}

std::string to_string(const EngineState& state) {
  return state.kind == EngineState::Kind::torn ? "torn" : fmt::format("whole at {}", state.version);
}

}  // namespace crossmesh
