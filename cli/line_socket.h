// SPDX-License-Identifier: Apache-2.0
// Lines of JSON between processes of one user and one host, over an abstract Unix socket: nothing
// of it is on disk or outlives its process. Reading never waits; who waits polls `fd`.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "crossmesh/memory/arena.h"

namespace crossmesh::cli {

// One end of a connection.
class LineSocket {
 public:
  explicit LineSocket(FileDescriptor fd) : fd_(std::move(fd)) {}

  // Sends one line, and waits for room until `deadline`. Returns whether all of it went.
  bool send(const nlohmann::ordered_json& line, std::chrono::steady_clock::time_point deadline);

  // The next line, if it has come. What is no JSON object, or is too long for a line, ends the
  // connection.
  std::optional<nlohmann::ordered_json> receive();

  // Whether the other end has closed, or spoke nonsense. Lines that came before are still received.
  bool ended() const { return ended_; }

  int fd() const { return fd_.get(); }
  int peer_pid() const;

 private:
  FileDescriptor fd_;
  std::string text_;
  bool ended_ = false;
};

// Throws: io_failed where the system refuses, as where another process listens at `address`.
FileDescriptor listen_at(const std::string& address);

// The next connection that waits, if one does; those of other users are dropped.
std::optional<LineSocket> accept_from(const FileDescriptor& listener);

// Nothing where no process of this user listens at `address`.
// Throws: io_failed where the system gives no socket.
std::optional<LineSocket> dial(const std::string& address);

}  // namespace crossmesh::cli
