// SPDX-License-Identifier: Apache-2.0
// Which rank of which job this process is: as its flags say, or as a launcher such as torchrun
// says in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Flags win. It reads no environment itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/move.h"

namespace crossmesh::cli {

struct RankIdentity {
  std::string session;            // 32 hexadecimal digits
  int rank = 0;                   // among all
  std::optional<int> world_size;  // where it was said
};

struct IdentityFlags {
  std::optional<std::string> session = {};
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
};

// The value of a variable; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const char* variable)>;

// A rank that the environment names needs WORLD_SIZE as well; one that a flag names does not.
// Throws: invalid_argument naming the variable that is missing or no number, or whose rank is
// outside the job; unsupported where LOCAL_WORLD_SIZE says that the job has ranks elsewhere.
RankIdentity identify_rank(const IdentityFlags& flags, const Environment& environment);

// Throws: invalid_argument, with the three numbers, unless the job's size is that of both specs;
// or where the rank is outside of them.
void check_world_size(const RankIdentity& identity, const RankCounts& counts);

}  // namespace crossmesh::cli
