// SPDX-License-Identifier: Apache-2.0
// What this machine can do for crossmesh, as `crossmesh info` tells it: processor, memory, limits,
// ways to move bytes, and why not. It reads the system's own files and measures for a moment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace crossmesh::cli {

struct TransportFacts {
  std::string name;
  bool available = false;
  std::string why;  // what it does, or why it is not there
};

struct Machine {
  std::string processor;
  int cores = 0;         // that this process may use
  int cores_online = 0;  // of the machine
  std::vector<std::string> features;
  std::string copy_path;  // kernels that are used: `avx512`
  std::int64_t memory_bytes = 0;
  std::int64_t memory_available_bytes = 0;
  std::int64_t page_bytes = 0;
  std::string transparent_huge_pages;         // `always`, `madvise`, `never` or `unknown`
  std::string transparent_huge_pages_shared;  // of memfd segments
  std::vector<TransportFacts> transports;
  std::optional<std::int64_t> open_files_max;    // nothing: no limit
  std::optional<std::int64_t> locked_bytes_max;  // nothing: no limit
  std::optional<std::int64_t> dev_shm_bytes;     // nothing: not mounted
  std::string ptrace_scope;                      // what the kernel says, or `unknown`
  std::string user_namespaces;
};

Machine inspect_machine();

// Bytes per second of one thread, best of a few rounds between buffers larger than the caches.
// Units: bytes per second, each byte counted once.
struct CopyRates {
  double memcpy = 0;     // the C library's
  double streaming = 0;  // crossmesh's kernel for long runs
  std::int64_t buffer_bytes = 0;
};
// Throws: out_of_memory.
CopyRates measure_copy_rates();

}  // namespace crossmesh::cli
