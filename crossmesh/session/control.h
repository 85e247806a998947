// SPDX-License-Identifier: Apache-2.0
// The control plane of one rank: messages over ZeroMQ on an abstract ipc socket, and the lifelines
// beside them. Members speak with the coordinator (rank 0) only. It waits, it decides nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/session/message.h"
#include "crossmesh/session/session.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

class Control {
 public:
  // Rank 0 binds; the others connect, at most until `deadline`.
  Control(const SessionOptions& options, Deadline deadline);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  bool is_coordinator() const { return rank_ == 0; }

  // From a member, `to` is 0. A message to a rank that is gone is dropped, and so is one that
  // `options.is_lost` picks.
  void send(int to, MessageKind kind, nlohmann::json body = nlohmann::json::object());

  // The next message, if one has come. On the coordinator malformed messages, and those of a
  // process that no rank is any more, are dropped and counted: anything of this user may connect.
  std::optional<Message> receive();

  // Ranks whose process ended since the last call; on a member only rank 0 is watched.
  std::vector<int> lost();

  // A member's: whether the coordinator sent it away since another process is this rank.
  bool is_refused() const;

  // Sleeps until a message, a lifeline or one of `fds` wakes, or `deadline`.
  void wait(std::span<const int> fds, Deadline deadline);

  std::int64_t malformed_count() const { return malformed_count_; }

 private:
  struct Sockets;
  bool is_from(const std::string& id, int rank);
  bool is_last_word(const std::string& id, const Message& message) const;

  int rank_;
  std::function<bool(std::string_view, int)> is_lost_;
  std::int64_t malformed_count_ = 0;
  std::unique_ptr<Sockets> sockets_;
};

}  // namespace crossmesh
