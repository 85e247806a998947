// SPDX-License-Identifier: Apache-2.0
// How the coordinator takes an engine rank back whose process ended and was started again: it has
// to present the layout and the options of before, and to compile the same schedule. Nothing is
// rebuilt anywhere else. It decides who fits; the session makes the connections.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/session/detail/agreement.h"
#include "crossmesh/session/detail/desk.h"

namespace crossmesh {

class Readmission {
 public:
  // Requires: the references outlive it. `relays_of_rank` is what engine ranks were told of the
  // sources' places.
  Readmission(Desk& desk, const SessionOptions& options, const Schedule& schedule,
              std::string transport, std::map<int, nlohmann::json> relays_of_rank);

  // Answers what absent ranks have said, and fills in their new addresses. Whoever does not fit is
  // sent away. Returns whether anything was said.
  bool answer(std::vector<std::string>& addresses, std::int64_t version);

  // Absent ranks that fit and wait to be let in.
  std::vector<int> waiting() const;

  // Tells the rank where the sources' parameters lie, and the trainers where the rank is.
  void let_in(int rank, const std::string& address);

  // Throws peer_lost naming an absent rank when it has been waited for since `begin` for too long.
  void check_patience(Deadline begin) const;

 private:
  enum class Step { joined, asked_for_layout, compiles, agreed };
  struct Return {
    Step step = Step::joined;
    std::int64_t losses = 0;  // of this rank, when it came
  };

  bool answer_one(int rank, std::vector<std::string>& addresses, std::int64_t version);
  void judge_offer(Return& coming, const Message& offer);
  void send_away(int rank, const Error& error);

  Desk& desk_;
  const SessionOptions& options_;
  const Schedule& schedule_;
  std::string transport_;
  std::map<int, nlohmann::json> relays_of_rank_;
  std::map<int, Return> return_of_rank_;
  Deadline last_word_{};
  std::optional<Error> refusal_;  // the last
};

}  // namespace crossmesh
