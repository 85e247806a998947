// SPDX-License-Identifier: Apache-2.0
// One Unix connection per member to the coordinator that carries nothing after the member's rank:
// its end is the death of a process, known at once and to both sides, whoever its parent is. It
// also tells which process a rank is: one that starts again has another incarnation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

class LifelineServer {
 public:
  // Listens on an abstract socket named after the session.
  // Throws: io_failed when the name is taken: another coordinator runs this session.
  LifelineServer(const std::string& session, int rank_count);

  // Accepts what waits and returns the ranks whose connection ended since the last call.
  // Connections of other users, and those that name no rank of the job, are dropped. One of a rank
  // whose earlier process lives is refused.
  std::vector<int> ended();
  std::vector<int> fds() const;

  // The number of the process that is, or was last, this rank; nothing before it came.
  std::optional<std::uint64_t> incarnation(int rank) const;
  // The one that it had before it started again.
  std::optional<std::uint64_t> former_incarnation(int rank) const;

  // Accepts what waits; whose connection ended meanwhile is told by the next ended().
  void accept_waiting();

 private:
  void admit(int rank, std::uint64_t incarnation, FileDescriptor fd);

  int rank_count_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> unnamed_;
  std::map<int, FileDescriptor> fd_of_rank_;
  std::map<int, std::uint64_t> incarnation_of_rank_;
  std::map<int, std::uint64_t> former_of_rank_;
  std::vector<int> replaced_;  // ranks whose earlier process ended before it was asked after
};

class Lifeline {
 public:
  // Blocks until the coordinator listens; `on_wait`, if there is one, is called meanwhile.
  // Throws: timed_out, io_failed, and what on_wait throws.
  Lifeline(const std::string& session, int rank, Deadline deadline,
           const std::function<void()>& on_wait = {});

  // Whether the coordinator's end has closed.
  bool ended() const;

  // Whether it closed since another process is this rank.
  bool is_refused() const;

  int fd() const { return fd_.get(); }
  std::uint64_t incarnation() const { return incarnation_; }

 private:
  FileDescriptor fd_;
  std::uint64_t incarnation_ = 0;
};

}  // namespace crossmesh
