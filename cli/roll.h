// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job that nothing launched together find each other: rank 0 calls the roll
// before the session starts, and gathers what each rank has to say in the end. It is no part of
// the session and carries no weights.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/line_socket.h"
#include "cli/move.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {

// What a rank was asked to do, by the names of the options: `{"--iterations": "3"}`.
using Asked = nlohmann::ordered_json;

// Rank 0's part. Its address is free again when the process ends, whatever ends it.
class Roll {
 public:
  // Listens. Throws: io_failed: another rank 0 runs this session.
  explicit Roll(const std::string& session);

  // Waits for all other ranks, at most `timeout` for the next one, and lets them go on together.
  // Throws: timed_out naming the ranks that did not come; peer_lost naming one that came and ended;
  // mismatch naming the option in which a rank differs; the error with which a rank refused itself.
  // All ranks that came throw it as well.
  void call(const RankCounts& counts, const Asked& asked, std::chrono::milliseconds timeout);

  // Tells all that have come so far that the job is refused. Never throws.
  void refuse(const Error& error);

  // The outcomes of all ranks, this one's first. Waits for those that came, at most `timeout` for
  // the next report. States of ranks without a report: `ended` where the process did, `silent`
  // where it did not, `missing` where it never came, `refused` where it refused itself.
  std::vector<RankOutcome> gather(const RankCounts& counts, const RankOutcome& own,
                                  std::chrono::milliseconds timeout);

 private:
  void accept_waiting();
  bool hear_newcomers(const RankCounts& counts, const Asked& asked);
  void admit(LineSocket socket, const nlohmann::ordered_json& hello, const RankCounts& counts,
             const Asked& asked);
  void check_present(const RankCounts& counts);
  Error missing_error(const RankCounts& counts, std::chrono::milliseconds timeout) const;
  void send_to_all(const nlohmann::ordered_json& line);

  FileDescriptor listener_;
  std::vector<LineSocket> newcomers_;
  std::map<int, LineSocket> socket_of_rank_;
  std::map<int, Error> refusal_of_rank_;
  std::set<int> came_twice_;
};

// Another rank's part.
class RollMember {
 public:
  RollMember(const std::string& session, int rank) : session_(session), rank_(rank) {}

  // Finds rank 0 and waits until all ranks are there, `timeout` for each step.
  // Throws: timed_out, peer_lost; whatever Roll::call throws; invalid_argument where another
  // process came as this rank.
  void join(const Asked& asked, std::chrono::milliseconds timeout);

  // Says how this rank ended. After a failure it waits, at most `timeout`, until rank 0 has
  // gone: a launcher may end the whole job with the first rank that fails, and rank 0 has yet to
  // print. Never throws.
  void report(const RankOutcome& outcome, std::chrono::milliseconds timeout);

 private:
  void find_rank_0(std::chrono::milliseconds timeout);

  std::string session_;
  int rank_;
  std::optional<LineSocket> socket_;
};

// Says that this rank refuses itself, if rank 0 listens already. Never throws.
void report_refusal(const std::string& session, int rank, const Error& error);

}  // namespace crossmesh::cli
