// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/experts.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

ExpertPlacement blank(std::int64_t experts, int rank_count) {
  ExpertPlacement placement;
  placement.slots_of_rank.assign(static_cast<std::size_t>(rank_count), 0);
  placement.slots_of_expert.resize(static_cast<std::size_t>(experts));
  return placement;
}

void add(ExpertPlacement& placement, std::int64_t expert, int rank) {
  std::int64_t& slots = placement.slots_of_rank[static_cast<std::size_t>(rank)];
  placement.slots_of_expert[static_cast<std::size_t>(expert)].push_back({rank, slots++});
}

ExpertPlacement linear(std::int64_t experts, int rank_count) {
  ExpertPlacement placement = blank(experts, rank_count);
  const std::int64_t fewer = experts / rank_count;
  const std::int64_t rest = experts % rank_count;
  std::int64_t expert = 0;
  for (int rank = 0; rank < rank_count; ++rank) {
    for (std::int64_t n = fewer + (rank < rest ? 1 : 0); n > 0; --n) add(placement, expert++, rank);
  }
  return placement;
}

ExpertPlacement round_robin(std::int64_t experts, int rank_count) {
  ExpertPlacement placement = blank(experts, rank_count);
  for (std::int64_t e = 0; e < experts; ++e) add(placement, e, static_cast<int>(e % rank_count));
  return placement;
}

Error refuse_slots(std::string_view what) {
  return Error(ErrorCode::invalid_argument, fmt::format("lay out: {}", what));
}

ExpertPlacement read_row(const std::vector<int>& expert_of_slot, std::int64_t experts,
                         int rank_count) {
  ExpertPlacement placement = blank(experts, rank_count);
  const std::size_t slots = expert_of_slot.size();
  if (slots % static_cast<std::size_t>(rank_count) != 0) {
    throw refuse_slots("the slots of experts do not divide by ranks")
        .with("slots", slots)
        .with("ranks", rank_count);
  }
  const std::size_t slots_per_rank = slots / static_cast<std::size_t>(rank_count);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const int expert = expert_of_slot[slot];
    if (expert < 0 || expert >= experts) {
      throw refuse_slots("a slot holds an expert that there is not")
          .with("slot", slot)
          .with("expert", expert)
          .with("experts", experts);
    }
    add(placement, expert, static_cast<int>(slot / slots_per_rank));
  }
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    if (!placement.slots_of_expert[static_cast<std::size_t>(expert)].empty()) continue;
    throw refuse_slots("no slot holds an expert").with("expert", expert).with("slots", slots);
  }
  return placement;
}

std::vector<ExpertPlacement> read_table(const ModelConfig& config, int rank_count,
                                        const std::vector<std::vector<int>>& expert_of_slot) {
  const auto sparse_layers =
      std::count(config.sparse_layer.begin(), config.sparse_layer.begin() + config.layers, true);
  const auto rows = static_cast<std::int64_t>(expert_of_slot.size());
  if (rows != 1 && rows != sparse_layers) {
    throw refuse_slots("the rows of expert slots are neither one nor one for each sparse layer")
        .with("rows", rows)
        .with("sparse layers", sparse_layers);
  }
  std::vector<ExpertPlacement> placements;
  for (std::size_t row = 0; row < expert_of_slot.size(); ++row) {
    if (expert_of_slot[row].size() != expert_of_slot[0].size()) {
      throw refuse_slots("rows of expert slots differ in length")
          .with("row", row)
          .with("slots", expert_of_slot[row].size())
          .with("slots of row 0", expert_of_slot[0].size());
    }
    placements.push_back(read_row(expert_of_slot[row], config.experts, rank_count));
  }
  return placements;
}

}  // namespace

ExpertPlacement place_together(std::int64_t experts) { return linear(experts, 1); }

std::vector<ExpertPlacement> spread_experts(const ModelConfig& config, const std::string& way,
                                            int rank_count,
                                            const std::vector<std::vector<int>>& expert_of_slot) {
  if (way != "linear" && way != "round_robin") {
    throw Error(ErrorCode::invalid_argument, "lay out: the way to spread experts is not known")
        .with("experts", way)
        .with("known", "linear, round_robin");
  }
  if (config.experts == 0) {
    throw Error(ErrorCode::invalid_argument, "lay out: the model has no experts to spread")
        .with("experts", way)
        .with("model_type", config.model_type);
  }
  if (!expert_of_slot.empty()) return read_table(config, rank_count, expert_of_slot);
  if (config.experts < rank_count) {
    throw Error(ErrorCode::mismatch, "lay out: fewer experts than ranks to spread them over")
        .with("experts", config.experts)
        .with("ranks", rank_count);
  }
  const bool deals = way == "round_robin" && config.expert_groups > 1;
  return {deals ? round_robin(config.experts, rank_count) : linear(config.experts, rank_count)};
}

}  // namespace crossmesh::detail
