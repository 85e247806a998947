// SPDX-License-Identifier: Apache-2.0
// What a run of a tensor's bytes adds to its digest, on each instruction set. The keys are
// constants, the same on every rank of every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "crossmesh/memory/cpu_path.h"
#include "crossmesh/memory/digest.h"

namespace crossmesh::detail {

// Words of four bytes that share a factor.
inline constexpr std::int64_t kDigestBlockWords = 1024;

// The key of each word of a block: odd, and no two the same.
std::span<const std::uint32_t> digest_keys();

// The odd factors of a block, one for each sum.
struct DigestFactors {
  std::uint64_t keyed = 0;
  std::uint64_t plain = 0;
};
DigestFactors digest_factors(std::int64_t block);

// Requires: runs_here(path), offset_bytes >= 0. Any alignment will do.
// Ensures: every path gives the same sums.
Digest digest_run(CpuPath path, const std::byte* data, std::int64_t offset_bytes,
                  std::int64_t bytes);

}  // namespace crossmesh::detail
