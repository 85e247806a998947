// SPDX-License-Identifier: Apache-2.0
// Which slot of which rank holds which expert, where an instance spreads its experts over the ranks
// of a stage. Ranks count dp * tp_count + tp here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/target/family.h"

namespace crossmesh::detail {

struct Slot {
  int rank = 0;
  std::int64_t index = 0;

  bool operator==(const Slot&) const = default;
};

struct ExpertPlacement {
  std::vector<std::int64_t> slots_of_rank;
  std::vector<std::vector<Slot>> slots_of_expert;

  bool operator==(const ExpertPlacement&) const = default;
};

// All experts on one rank, in their order.
ExpertPlacement place_together(std::int64_t experts);

// A placement for each sparse layer, or one for all. `way` is `linear` or `round_robin`.
// Throws: as lay_out.
std::vector<ExpertPlacement> spread_experts(const ModelConfig& config, const std::string& way,
                                            int rank_count,
                                            const std::vector<std::vector<int>>& expert_of_slot);

}  // namespace crossmesh::detail
