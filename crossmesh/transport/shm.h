// SPDX-License-Identifier: Apache-2.0
// The transport between processes of one host and one user: memfds passed over an abstract Unix
// socket, or memory read where it is. Nothing of it outlives its process, and nothing is on disk
// or in /dev/shm.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "crossmesh/transport/transport.h"
#include "crossmesh/transport/way.h"

namespace crossmesh {

struct ShmOptions {
  std::string session_name;  // 32 lower-case hexadecimal digits; no other session is let in
  int rank = 0;
  // The same on every rank. A way that is forced serves shareable memory too.
  ShmWay way = ShmWay::automatic;
  // Ranks of one process copy from each other's memory where it is, whatever the way to others.
  bool copies_within_process = true;
  // Of the ring for one peer, which is made when something is given through it; rounded down to
  // 16 KiB.
  std::int64_t ring_bytes = std::int64_t{4} << 20;
};

// Private memory can be enrolled, to take into and, but for ShmWay::memfd, to give from. What goes
// through a ring moves only while the source advances. Where the kernel lets a process name one
// other that may attach (Yama's scope 1), that is the nearest ancestor of it and of the first peer
// that connects, such as a launcher, whose descendants may attach too.
// Throws: invalid_argument when the session's name or the rank is none; limit_exceeded when the
// ring is smaller than 16 KiB; io_failed.
std::unique_ptr<Transport> make_shm(const ShmOptions& options);

}  // namespace crossmesh
