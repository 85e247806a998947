// SPDX-License-Identifier: Apache-2.0
// One rank's own copies, expanded as it does when it agrees: how many there are, and what that
// takes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "crossmesh/schedule/schedule.h"

namespace crossmesh::cli {

struct PartReport {
  std::string side;  // `trainer`, `engine`
  int rank = 0;      // of the side
  std::int64_t copies = 0;
  std::int64_t bytes = 0;  // of the source's dtypes
  std::int64_t peers = 0;  // ranks of the other side
  double seconds = 0;      // to expand it
};

// Throws: invalid_argument when `text` is not `trainer:R` or `engine:R` of a rank that there is.
PartReport part_of(const Schedule& schedule, const std::string& text);

nlohmann::ordered_json json_of(const PartReport& part);
std::string text_of(const PartReport& part);

}  // namespace crossmesh::cli
