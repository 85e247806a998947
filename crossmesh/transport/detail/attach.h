// SPDX-License-Identifier: Apache-2.0
// Reads the memory of another process by process_vm_readv, where the system lets it. Each read
// takes a word along that only the right process has, so that a pid that was given to another
// process is noticed.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "crossmesh/geometry/loop_nest.h"
#include "crossmesh/transport/refusal.h"

namespace crossmesh::detail {

// A word of a process by which others tell it from every other process; address 0 is none.
struct Token {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

// A process and the word that it showed.
struct Attachment {
  pid_t process = 0;
  Token token;
};

// What one read came to: all bytes, or why not.
struct ReadOutcome {
  std::int64_t wanted_bytes = 0;
  std::int64_t read_bytes = 0;  // -1 when nothing could be read
  int error = 0;                // of the system, when nothing could be read
  bool is_other_process = false;

  bool is_whole() const { return read_bytes == wanted_bytes && !is_other_process; }
};

// Reads runs of equal nests: `source` is an address of the other process. Runs that touch are
// read as one; IOV_MAX of them in one call. Ends at the first call that does not read all.
// Requires: equal element sizes.
ReadOutcome read_runs(const Attachment& other, std::uint64_t source, std::byte* target,
                      const LoopNest& nest);

// Why memory of the other process cannot be read here; empty when a read of its word succeeds.
Refusal refusal_of(const Attachment& other);

// Whether it is this process, and none that was forked from it or forked it.
bool is_this_process(const Attachment& other);

// The process at the other end of a connected local socket; 0 when this process cannot see it.
pid_t process_behind(int socket);

// Whether a process has to name the one process that may attach to it (Yama's scope 1).
bool must_allow_attach();

// Names it, in place of the one named before. Its descendants may attach too.
void allow_attach(pid_t process);

// Two processes, and how the system's tree hangs together: 0 is the parent of what is not seen.
struct Kinship {
  pid_t own = 0;
  pid_t peer = 0;
  std::function<pid_t(pid_t)> parent_of;
};

// Which process to name for the peer: the nearest one that both descend from, such as a launcher,
// so that the other ranks need no naming; or the peer, where that would be the first process.
// Source: Yama in the kernel's documentation.
pid_t process_to_allow(const Kinship& kinship);

// As /proc tells; 0 where it does not.
pid_t parent_of(pid_t process);

}  // namespace crossmesh::detail
