// SPDX-License-Identifier: Apache-2.0
// Copies that bypass the cache. Several places are walked in lockstep, a cache line each, which
// keeps more reads of memory in flight than one long line of addresses does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "crossmesh/memory/cpu_path.h"

namespace crossmesh::detail {

inline constexpr std::int64_t kLineBytes = 64;

struct Lane {
  const std::byte* source;
  std::byte* target;
};

// Rows that are copied together.
inline constexpr std::size_t kRowLanes = 8;
using RowLanes = std::array<Lane, kRowLanes>;

// Copies one run of any size and alignment.
// Requires: stream_fence before anyone else may look at the target.
void stream_run(CpuPath path, Lane run, std::int64_t bytes);

// Copies equal runs of `bytes` each in lockstep. Requires: as stream_run.
void stream_rows(CpuPath path, const RowLanes& rows, std::int64_t bytes);

// Orders all streamed stores before later stores.
void stream_fence();

}  // namespace crossmesh::detail
