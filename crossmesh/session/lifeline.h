// SPDX-License-Identifier: Apache-2.0
// One Unix connection per member to the coordinator that carries nothing after the member's rank:
// its end is the death of a process, known at once and to both sides, whoever its parent is.
#pragma once

#include <map>
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
  // Connections of other users, and those that name no rank of the job, are dropped.
  std::vector<int> ended();
  std::vector<int> fds() const;

 private:
  void accept_waiting();

  int rank_count_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> unnamed_;
  std::map<int, FileDescriptor> fd_of_rank_;
};

class Lifeline {
 public:
  // Blocks until the coordinator listens. Throws: timed_out, io_failed.
  Lifeline(const std::string& session, int rank, Deadline deadline);

  // Whether the coordinator's end has closed.
  bool ended() const;
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

}  // namespace crossmesh
