// SPDX-License-Identifier: Apache-2.0
// The transport between processes of one host and one user: memfds passed over an abstract Unix
// socket. Nothing of it outlives its process, and nothing is on disk or in /dev/shm.
#pragma once

#include <memory>
#include <string>

#include "crossmesh/transport/transport.h"

namespace crossmesh {

struct ShmOptions {
  std::string session_name;  // 32 lower-case hexadecimal digits; no other session is let in
  int rank = 0;
};

// Private memory can be enrolled, to take into. To give from it is unsupported.
// Throws: invalid_argument when the session's name or the rank is none; io_failed.
std::unique_ptr<Transport> make_shm(const ShmOptions& options);

}  // namespace crossmesh
