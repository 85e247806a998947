// SPDX-License-Identifier: Apache-2.0
// Where a rank waits: one loop that moves bytes, reads messages, watches lifelines and keeps the
// limits. Every wait of a session goes through `serve`, so that every one of them can end.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/session/control.h"
#include "crossmesh/session/session.h"

namespace crossmesh {

class Desk {
 public:
  Desk(const SessionOptions& options, Transport& transport);

  bool is_coordinator() const { return options_.rank == 0; }
  int rank_count() const { return options_.source_count + options_.target_count; }
  int rank() const { return options_.rank; }
  int source_count() const { return options_.source_count; }
  bool is_source(int rank) const { return rank < options_.source_count; }

  void open(Deadline deadline);
  void enter(Phase phase);
  // Errors name `phase` from here on; the caller is not told yet.
  void begin(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }

  // `trainer 1`, `engine 0 (rank 2)`
  std::string title(int rank) const;

  // -- Speaking ----------------------------------------------------------------------------------
  void send(int to, MessageKind kind, nlohmann::json body = nlohmann::json::object());
  void send_to_all(MessageKind kind, const nlohmann::json& body = nlohmann::json::object());

  // -- Waiting -----------------------------------------------------------------------------------
  struct Wait {
    std::function<bool()> done;
    std::function<bool()> work = {};             // returns whether anything changed
    std::function<std::string()> describe = {};  // what is missing, for the error
    std::chrono::milliseconds limit{0};          // without progress; 0: the session's timeout
  };
  // Throws: aborted, peer_lost or timed_out, naming the rank and the phase.
  void serve(const Wait& wait);

  // The coordinator's: one message of this kind from each of `ranks`.
  std::map<int, Message> gather(MessageKind kind, const std::vector<int>& ranks,
                                std::chrono::milliseconds limit = {});
  // A member's: the coordinator's next message of this kind; `work` is done meanwhile.
  Message expect(MessageKind kind, std::chrono::milliseconds limit = {},
                 std::function<bool()> work = {});

  bool has(MessageKind kind, int rank) const;
  Message take(MessageKind kind, int rank);

  // Messages that carry another attempt are dropped from here on; so are older ones that came.
  void set_attempt(Attempt attempt);

  // A data connection failed, for a reason that the coordinator may know better: throws what it
  // says within a moment, else `own`.
  [[noreturn]] void await_verdict(const Error& own);

  // Ends the job for everyone, with this rank's error. Never throws.
  void fail(const Error& error);

  // After it, closed connections are no loss.
  void expect_leaving() { leaving_ = true; }
  std::vector<int> members() const;  // all ranks but the coordinator

 private:
  std::chrono::milliseconds usual_limit() const;
  void handle(Message message);
  void read_messages(bool& changed);
  void hear_alive();
  void watch_lifelines();
  void keep_alive(bool changed);
  void give_up(const Wait& wait);
  [[noreturn]] void abort_for_losses(std::set<int> lost);
  Error loss_error(int rank) const;

  const SessionOptions& options_;
  Transport& transport_;
  std::optional<Control> control_;
  Phase phase_ = Phase::join;
  Attempt attempt_ = 0;
  std::map<std::pair<MessageKind, int>, std::vector<Message>> inbox_;
  std::set<int> gone_;  // ranks that said they failed, or left
  bool leaving_ = false;
  bool ended_ = false;  // an abort was sent or received
  std::chrono::steady_clock::time_point last_progress_{};
  std::chrono::steady_clock::time_point last_alive_{};
  bool progressed_since_alive_ = false;
};

}  // namespace crossmesh
