// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/m2n_rounds.h"

#include <string_view>
#include <unordered_map>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {

std::vector<ReceiveStep> receive_steps(const std::vector<PlannedName>& plan,
                                       const std::vector<std::string>& requested) {
  using Kind = ReceiveStep::Kind;
  std::unordered_map<std::string_view, int> place;
  for (std::size_t i = 0; i < plan.size(); ++i) place[plan[i].name] = static_cast<int>(i);
  std::vector<ReceiveStep> steps;
  bool has_fallback = false;
  for (const std::string& name : requested) {
    const auto at = place.find(name);
    if (at == place.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("receive: parameter '{}' was not declared at init", name));
    }
    if (plan[static_cast<std::size_t>(at->second)].is_direct) {
      steps.push_back({Kind::reshard_into_live, at->second});
      continue;
    }
    has_fallback = true;
    steps.push_back({Kind::reshard_into_buffer, at->second});
    steps.push_back({Kind::load, at->second});
  }
  if (has_fallback) {
    steps.insert(steps.begin(), {Kind::begin_loading, -1});
    steps.push_back({Kind::end_loading, -1});
  }
  return steps;
}

void check_all_loaded(const std::vector<PlannedName>& plan, const std::vector<ReceiveStep>& steps,
                      int loaded_count) {
  int loads = 0;
  for (const ReceiveStep& step : steps) {
    if (step.kind != ReceiveStep::Kind::load || ++loads <= loaded_count) continue;
    throw Error(ErrorCode::mismatch, "receive: the loader stopped before it took all tensors")
        .with("taken", loaded_count)
        .with("next", plan[static_cast<std::size_t>(step.parameter)].name);
  }
}

int SendRound::take(const std::string& name) {
  if (taken_ == names_.size()) {
    throw Error(ErrorCode::mismatch, "send: the source yielded more tensors than were announced")
        .with("announced", names_.size())
        .with("extra", name);
  }
  if (names_[taken_] != name) {
    throw Error(ErrorCode::mismatch,
                fmt::format("send: the source yielded '{}' at position {}, where '{}' was "
                            "announced; it must iterate in a stable order",
                            name, taken_, names_[taken_]));
  }
  return static_cast<int>(taken_++);
}

void SendRound::finish() const {
  if (taken_ == names_.size()) return;
  throw Error(ErrorCode::mismatch, "send: the source yielded fewer tensors than were announced")
      .with("yielded", taken_)
      .with("announced", names_.size())
      .with("first missing", names_[taken_]);
}

}  // namespace crossmesh::profiles
