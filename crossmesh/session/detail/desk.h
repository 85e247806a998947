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

  // -- Attempts ----------------------------------------------------------------------------------
  // In an update a failure ends the attempt alone. The coordinator begins one; members ask for one
  // and begin it with the coordinator's start. Messages of older attempts are dropped.
  void enter_call(bool is_update);
  void ask_for_attempt() { asks_ = true; }
  void begin_attempt(Attempt attempt);
  Attempt attempt() const { return attempt_; }

  // Whether a failure now ends the job and not the attempt alone.
  bool is_job_over() const { return job_over_ || !in_update_; }

  // -- Engine ranks that come and go; the coordinator's ------------------------------------------
  // From here on the loss of an engine rank ends its attempt, or none between two of them.
  void let_engines_return() { engines_may_return_ = true; }
  // In this call the loss of such a rank ends no wait, and it is not waited for: it is between
  // updates.
  void expect_return(int rank) { may_end_.insert(rank); }
  void require_returns() { may_end_.clear(); }
  // Throws: peer_lost naming who is absent.
  void require_all();
  const std::set<int>& absent() const { return absent_; }
  Deadline last_loss() const { return last_loss_; }
  std::int64_t loss_count(int rank) const;
  void welcome(int rank);
  // The others are told that this rank waits on purpose.
  void reassure() { progressed_since_alive_ = true; }
  std::int64_t epoch() const { return epoch_; }
  // A returning rank waits until the others come to their next update; 0 for the usual limit.
  std::chrono::milliseconds return_limit() const;
  // A member's: until it takes part in an update, a rank that comes back fails alone.
  void come_back() { is_coming_back_ = true; }
  Error loss_error(int rank, std::string_view what) const;

  // -- Speaking ----------------------------------------------------------------------------------
  void send(int to, MessageKind kind, nlohmann::json body = nlohmann::json::object());
  void send_to_all(MessageKind kind, const nlohmann::json& body = nlohmann::json::object());

  // -- Waiting -----------------------------------------------------------------------------------
  struct Wait {
    std::function<bool()> done;
    std::function<bool()> work = {};             // returns whether anything changed
    std::function<std::string()> describe = {};  // what is missing, for the error
    std::chrono::milliseconds limit{0};          // without progress; 0: the session's timeout
    bool moves = false;                          // `work` advances the transport
  };
  // Throws: aborted, peer_lost or timed_out, naming the rank and the phase.
  void serve(const Wait& wait);

  // The coordinator's: one message of this kind from each of `ranks` that is waited for.
  std::map<int, Message> gather(MessageKind kind, const std::vector<int>& ranks,
                                std::chrono::milliseconds limit = {});
  // A member's: the coordinator's next message of this kind; `work` is done meanwhile.
  Message expect(MessageKind kind, std::chrono::milliseconds limit = {},
                 std::function<bool()> work = {});

  bool has(MessageKind kind, int rank) const;
  Message take(MessageKind kind, int rank);

  // A data connection failed, for a reason that the coordinator may know better: throws what it
  // says within a moment, else `own`.
  [[noreturn]] void await_verdict(const Error& own);

  // Ends the attempt, or the job, for everyone, with this rank's error. Never throws.
  void fail(const Error& error);

  // After it, closed connections are no loss.
  void expect_leaving() { leaving_ = true; }
  std::vector<int> members() const;  // all ranks but the coordinator

 private:
  std::chrono::milliseconds usual_limit() const;
  bool is_stale(const Message& message) const;
  bool is_settled(const Message& failure) const;
  void handle(Message message);
  void handle_join(Message message);
  void handle_abort(const Message& message);
  void handle_failed(const Message& message);
  void read_messages(bool& changed);
  void hear_alive();
  void watch_lifelines();
  void keep_alive(bool changed);
  void give_up(const Wait& wait);
  void note_loss(int rank);
  bool has_ended_well(int rank) const { return may_end_.contains(rank) && absent_.contains(rank); }
  [[noreturn]] void abort_for_losses(std::set<int> lost);

  const SessionOptions& options_;
  Transport& transport_;
  std::optional<Control> control_;
  Phase phase_ = Phase::join;
  Attempt attempt_ = 0;   // the newest that this rank knows of
  bool aborted_ = false;  // that attempt
  bool in_update_ = false;
  bool asks_ = false;  // this member waits for the next attempt to start
  bool job_over_ = false;
  bool engines_may_return_ = false;
  std::set<int> may_end_;
  bool is_coming_back_ = false;
  std::set<int> absent_;
  std::map<int, std::int64_t> loss_count_of_rank_;
  Deadline last_loss_{};
  std::int64_t epoch_ = 0;
  std::map<std::pair<MessageKind, int>, std::vector<Message>> inbox_;
  std::set<int> gone_;  // ranks that said they failed in this attempt
  bool leaving_ = false;
  bool is_told_ = false;  // the failure that this rank met came from, or went to, the others
  std::chrono::steady_clock::time_point last_progress_{};
  std::chrono::steady_clock::time_point last_alive_{};
  bool progressed_since_alive_ = false;
};

// `ready from engine 0 (rank 2), engine 1 (rank 3)`
std::string describe_missing(const Desk& desk, MessageKind kind, const std::vector<int>& ranks);

}  // namespace crossmesh
