// SPDX-License-Identifier: Apache-2.0
#include "cli/roll.h"

#include <poll.h>

#include <algorithm>
#include <thread>

namespace crossmesh::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// member: hello ( report | nothing )      rank 0: arrived* ( go | refused )
// hello   = { rank, asked } | { rank, refused: error }
// report  = { outcome }
// arrived = { arrived: count }
// go      = { go: true }
// refused = { refused: error }
// error   = { code, text }

// A wait looks around at least this often.
constexpr std::chrono::milliseconds kLookAround{100};
constexpr std::chrono::milliseconds kDialAgain{5};
// Rank 0 knows best who is missing, so it gives up first.
constexpr std::chrono::milliseconds kReasonGrace{100};

std::string address_of(const std::string& session) { return "crossmesh-" + session + "-roll"; }

Json json_of(const Error& error) {
  return {{"code", static_cast<int>(error.code())}, {"text", error.text()}};
}

Error error_of(const Json& json) {
  return Error::from_text(static_cast<ErrorCode>(json.at("code").get<int>()), json.at("text"));
}

std::string title_of(int rank, const RankCounts& counts) {
  if (rank < counts.trainers) return fmt::format("trainer {} (rank {})", rank, rank);
  return fmt::format("engine {} (rank {})", rank - counts.trainers, rank);
}

template <typename Ranks>
std::string titles_of(const Ranks& ranks, const RankCounts& counts) {
  std::vector<std::string> titles;
  for (const int rank : ranks) titles.push_back(title_of(rank, counts));
  return fmt::format("{}", fmt::join(titles, ", "));
}

std::string value_text(const Asked& asked, const std::string& option) {
  if (!asked.contains(option)) return "not given";
  return asked[option].is_string() ? asked[option].get<std::string>() : asked[option].dump();
}

// Throws: mismatch naming the first option in which `other`, that of `rank`, differs.
void check_asked(const Asked& own, int rank, const Asked& other) {
  std::vector<std::string> options;
  for (const Asked& asked : {own, other}) {
    for (const auto& [option, value] : asked.items()) options.push_back(option);
  }
  for (const std::string& option : options) {
    const std::string expected = value_text(own, option);
    const std::string found = value_text(other, option);
    if (expected == found) continue;
    throw Error(ErrorCode::mismatch, "rank: ranks were started with different options")
        .with("option", option)
        .with("rank 0", expected)
        .with(fmt::format("rank {}", rank), found);
  }
}

void wait_for(const std::vector<int>& fds, Clock::time_point deadline) {
  std::vector<pollfd> items;
  for (const int fd : fds) items.push_back({fd, POLLIN, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const auto limit = std::clamp(left, std::chrono::milliseconds(0), kLookAround);
  ::poll(items.data(), items.size(), static_cast<int>(limit.count()));
}

RankOutcome outcome_without_report(int rank, std::string state, Error error) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.title = fmt::format("rank {}", rank);
  outcome.state = std::move(state);
  outcome.error = std::move(error.with("rank", rank));
  return outcome;
}

RankOutcome ended_outcome(int rank) {
  return outcome_without_report(
      rank, "ended", Error(ErrorCode::peer_lost, "rank: the process ended without a word"));
}

// What a rank says of its end; nothing as long as it has said nothing.
std::optional<RankOutcome> outcome_from(LineSocket& socket, int rank) {
  while (const std::optional<Json> line = socket.receive()) {
    if (!line->contains("outcome")) continue;
    try {
      RankOutcome outcome = outcome_from_json(line->at("outcome"));
      if (outcome.rank == rank) return outcome;
    } catch (const nlohmann::json::exception&) {
      // A process of this user that is no rank; it has nothing to say.
    }
    return ended_outcome(rank);
  }
  if (socket.ended()) return ended_outcome(rank);
  return std::nullopt;
}

}  // namespace

// -- rank 0 --------------------------------------------------------------------------------------

Roll::Roll(const std::string& session) : listener_(listen_at(address_of(session))) {}

void Roll::call(const RankCounts& counts, const Asked& asked, std::chrono::milliseconds timeout) {
  try {
    auto deadline = Clock::now() + timeout;
    while (static_cast<int>(socket_of_rank_.size()) + 1 < counts.trainers + counts.engines) {
      accept_waiting();
      if (hear_newcomers(counts, asked)) {
        deadline = Clock::now() + timeout;
        send_to_all({{"arrived", socket_of_rank_.size()}});
        continue;
      }
      check_present(counts);
      if (Clock::now() > deadline) throw missing_error(counts, timeout);
      std::vector<int> fds = {listener_.get()};
      for (const LineSocket& socket : newcomers_) fds.push_back(socket.fd());
      for (const auto& [rank, socket] : socket_of_rank_) fds.push_back(socket.fd());
      wait_for(fds, deadline);
    }
    check_present(counts);
    send_to_all({{"go", true}});
  } catch (const Error& error) {
    refuse(error);
    throw;
  }
}

void Roll::refuse(const Error& error) {
  const Json refused = {{"refused", json_of(error)}};
  send_to_all(refused);
  accept_waiting();
  for (LineSocket& socket : newcomers_) socket.send(refused, Clock::now());
}

void Roll::accept_waiting() {
  while (std::optional<LineSocket> newcomer = accept_from(listener_)) {
    newcomers_.push_back(std::move(*newcomer));
  }
}

// Returns whether a rank was let in.
bool Roll::hear_newcomers(const RankCounts& counts, const Asked& asked) {
  const std::size_t before = socket_of_rank_.size();
  std::vector<LineSocket> newcomers = std::move(newcomers_);
  newcomers_.clear();
  for (LineSocket& socket : newcomers) {
    const std::optional<Json> hello = socket.receive();
    if (hello) {
      try {
        admit(std::move(socket), *hello, counts, asked);
      } catch (const nlohmann::json::exception&) {
        // Anything of this user may dial; what names no rank is dropped.
      }
    } else if (!socket.ended()) {
      newcomers_.push_back(std::move(socket));
    }
  }
  return socket_of_rank_.size() > before;
}

void Roll::admit(LineSocket socket, const Json& hello, const RankCounts& counts,
                 const Asked& asked) {
  const int rank = hello.at("rank");
  const auto turn_away = [&](const Error& error) {
    socket.send({{"refused", json_of(error)}}, Clock::now());
  };
  if (rank < 1 || rank >= counts.trainers + counts.engines) {
    return turn_away(Error(ErrorCode::invalid_argument, "rank: the rank is outside the job")
                         .with("rank", rank)
                         .with("trainer ranks", counts.trainers)
                         .with("engine ranks", counts.engines));
  }
  if (hello.contains("refused")) {
    const Error error = error_of(hello.at("refused"));
    refusal_of_rank_.emplace(rank, error);
    throw error;
  }
  if (const auto other = socket_of_rank_.find(rank); other != socket_of_rank_.end()) {
    came_twice_.insert(rank);
    return turn_away(Error(ErrorCode::invalid_argument, "rank: another process came as this rank")
                         .with("rank", rank)
                         .with("its pid", other->second.peer_pid())
                         .hint("give every process of the job a RANK or --rank of its own"));
  }
  const Asked& other = hello.at("asked");
  socket_of_rank_.emplace(rank, std::move(socket));
  check_asked(asked, rank, other);
}

void Roll::check_present(const RankCounts& counts) {
  for (auto& [rank, socket] : socket_of_rank_) {
    while (socket.receive()) {
    }
    if (!socket.ended()) continue;
    throw Error(ErrorCode::peer_lost, "rank: a process ended before the job began")
        .with("lost", title_of(rank, counts))
        .hint("see what that process printed last");
  }
}

Error Roll::missing_error(const RankCounts& counts, std::chrono::milliseconds timeout) const {
  std::vector<int> missing;
  for (int rank = 1; rank < counts.trainers + counts.engines; ++rank) {
    if (!socket_of_rank_.contains(rank)) missing.push_back(rank);
  }
  Error error(ErrorCode::timed_out, "rank: not every rank has come");
  error.with("missing", titles_of(missing, counts));
  if (!came_twice_.empty()) error.with("came twice", titles_of(came_twice_, counts));
  error.with("seconds since the last one came", static_cast<double>(timeout.count()) / 1000);
  return std::move(error).hint(
      "start it with the same session; --timeout is how long the others wait");
}

void Roll::send_to_all(const Json& line) {
  // A rank that takes in nothing is missed soon enough.
  for (auto& [rank, socket] : socket_of_rank_) socket.send(line, Clock::now());
}

std::vector<RankOutcome> Roll::gather(const RankCounts& counts, const RankOutcome& own,
                                      std::chrono::milliseconds timeout) {
  std::map<int, RankOutcome> outcome_of_rank = {{0, own}};
  auto deadline = Clock::now() + timeout;
  std::vector<int> waiting;
  do {
    waiting.clear();
    for (auto& [rank, socket] : socket_of_rank_) {
      if (outcome_of_rank.contains(rank)) continue;
      if (auto outcome = outcome_from(socket, rank)) {
        outcome_of_rank.emplace(rank, std::move(*outcome));
        deadline = Clock::now() + timeout;
      } else {
        waiting.push_back(socket.fd());
      }
    }
    if (!waiting.empty()) wait_for(waiting, deadline);
  } while (!waiting.empty() && Clock::now() < deadline);

  std::vector<RankOutcome> outcomes;
  for (int rank = 0; rank < counts.trainers + counts.engines; ++rank) {
    if (const auto known = outcome_of_rank.find(rank); known != outcome_of_rank.end()) {
      outcomes.push_back(known->second);
    } else if (const auto refusal = refusal_of_rank_.find(rank);
               refusal != refusal_of_rank_.end()) {
      outcomes.push_back({rank, fmt::format("rank {}", rank), "refused", refusal->second, {}});
    } else if (socket_of_rank_.contains(rank)) {
      outcomes.push_back(outcome_without_report(
          rank, "silent",
          Error(ErrorCode::timed_out, "rank: the process does not say how it ended")));
    } else {
      outcomes.push_back(outcome_without_report(
          rank, "missing", Error(ErrorCode::timed_out, "rank: the process did not come")));
    }
  }
  return outcomes;
}

// -- the others ----------------------------------------------------------------------------------

void RollMember::find_rank_0(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!(socket_ = dial(address_of(session_)))) {
    if (Clock::now() > deadline) {
      throw Error(ErrorCode::timed_out, "rank: rank 0 does not answer")
          .with("rank", rank_)
          .with("session", session_)
          .with("seconds", static_cast<double>(timeout.count()) / 1000)
          .hint("start rank 0 with the same session; --timeout is how long the others wait");
    }
    std::this_thread::sleep_for(kDialAgain);
  }
}

void RollMember::join(const Asked& asked, std::chrono::milliseconds timeout) {
  find_rank_0(timeout);
  const auto patience = timeout + timeout / 4 + kReasonGrace;
  auto deadline = Clock::now() + patience;
  socket_->send({{"rank", rank_}, {"asked", asked}}, deadline);
  while (true) {
    if (const std::optional<Json> line = socket_->receive()) {
      if (line->contains("go")) return;
      if (line->contains("refused")) throw error_of(line->at("refused"));
      deadline = Clock::now() + patience;
    } else if (socket_->ended()) {
      throw Error(ErrorCode::peer_lost, "rank: rank 0 ended before the job began")
          .with("rank", rank_)
          .with("session", session_)
          .hint("see what rank 0 printed last");
    } else if (Clock::now() > deadline) {
      throw Error(ErrorCode::timed_out, "rank: rank 0 does not let this rank in")
          .with("rank", rank_)
          .with("session", session_)
          .hint("rank 0 is stopped, or its job has begun without this process");
    } else {
      wait_for({socket_->fd()}, deadline);
    }
  }
}

void RollMember::report(const RankOutcome& outcome, std::chrono::milliseconds timeout) {
  if (!socket_) return;
  const auto deadline = Clock::now() + timeout;
  socket_->send({{"outcome", to_json(outcome)}}, deadline);
  while (outcome.error && !socket_->ended() && Clock::now() < deadline) {
    if (!socket_->receive()) wait_for({socket_->fd()}, deadline);
  }
}

void report_refusal(const std::string& session, int rank, const Error& error) {
  try {
    if (auto socket = dial(address_of(session))) {
      socket->send({{"rank", rank}, {"refused", json_of(error)}}, Clock::now());
    }
  } catch (const Error&) {
    // Rank 0 misses this rank in time.
  }
}

}  // namespace crossmesh::cli
