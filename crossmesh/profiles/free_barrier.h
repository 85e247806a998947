// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: which groups a producer still serves in one update, and when each
// is let go: when every engine rank that lives has signalled that it is done. A value that never
// waits: what would block returns nothing, and its caller asks again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace crossmesh::profiles {

// What a trainer may hold beside the group that it gathers next. `lookahead` below 0 is taken as 0.
bool may_gather(int unfreed_count, int lookahead);

// Whether nothing at all has moved for too long. Progress of any kind counts, so a slow update that
// moves never trips.
struct ProgressWatch {
  static constexpr std::int64_t kTimeoutMs = 300'000;

  std::int64_t timeout_ms = kTimeoutMs;
  std::int64_t last_ms = 0;

  bool is_stalled(std::int64_t now_ms) const { return now_ms - last_ms >= timeout_ms; }
};
std::string stall_text(const ProgressWatch& watch, std::int64_t now_ms);

class FreeBarrier {
 public:
  // A new update: nothing of the one before counts, neither names, signals nor its error. Returns
  // its number, which signals carry. `live_count` below 1 is taken as 1.
  int begin(int live_count);

  // Serves a group's names from now on. Never waits: a group of which every signal came early is
  // let go at once. Throws: invalid_argument for a group that is already served.
  void publish(int group, const std::vector<std::string>& names);

  // One engine rank is done with a group. Signals of another update are dropped; early ones count.
  void signal(int update, int group);

  // Wakes everyone with an error.
  void fail(std::string why);

  // The groups that were let go since the last call, in order; nothing where there are none yet.
  // Throws: aborted, with the reason, after fail.
  std::optional<std::vector<int>> take_freed();

  // The same, once nothing is in flight. Ensures: after fail it returns and does not throw.
  std::optional<std::vector<int>> finish();

  // Whether a name can be pulled. Throws: aborted after fail.
  bool serves(const std::string& name) const;

  std::vector<int> in_flight() const;
  int signal_count(int group) const;
  const std::optional<std::string>& error() const { return error_; }

 private:
  void release_if_done(int group);

  int update_ = 0;
  int live_count_ = 1;
  std::map<int, std::vector<std::string>> names_of_group_;  // in flight
  std::multiset<std::string> served_;
  std::map<int, int> signals_;
  std::vector<int> freed_;
  std::optional<std::string> error_;
};

}  // namespace crossmesh::profiles
