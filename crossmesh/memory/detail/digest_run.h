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

// Of one block, before its factors.
struct BlockSums {
  std::uint64_t keyed = 0;
  std::uint64_t plain = 0;
};

// Equal runs, as far apart as `stride_bytes` in the tensor and `data_stride_bytes` in memory.
struct DigestRows {
  std::int64_t offset_bytes = 0;  // of the first in the tensor
  std::int64_t run_bytes = 0;
  std::int64_t count = 0;
  std::int64_t stride_bytes = 0;
  std::int64_t data_stride_bytes = 0;
};

// Adds up the digest of many runs. A block's factors are found once for the runs that follow each
// other in it, which is what short runs are about.
class RunDigester {
 public:
  // Requires: runs_here(path).
  explicit RunDigester(CpuPath path) : path_(path) {}

  // Requires: offset_bytes >= 0. Any alignment will do.
  // Ensures: every path, and any cutting and order of runs, gives the same sums.
  void add(const std::byte* data, std::int64_t offset_bytes, std::int64_t bytes);

  // Requires: no run lies before the tensor.
  void add_rows(const std::byte* data, const DigestRows& rows);

  Digest finish();

 private:
  void enter(std::int64_t block);

  CpuPath path_;
  std::int64_t block_ = -1;
  BlockSums sums_;  // of `block_`
  Digest digest_;
};

}  // namespace crossmesh::detail
