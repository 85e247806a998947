// SPDX-License-Identifier: Apache-2.0
// A family's table read against one config: which rules apply, layer by layer and expert by expert,
// and what their extents come to. It knows no rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/target/family.h"

namespace crossmesh::detail {

// The number of an extent, and the config key that it comes from.
std::int64_t value_of(Extent extent, const ModelConfig& config);
std::string_view key_of(Extent extent);

bool applies(const Rule& rule, const ModelConfig& config, std::int64_t layer);

// The shape of a rule's tensor; of scales: their number, a block that is cut short has one too.
std::vector<std::int64_t> shape_of(const Rule& rule, const ModelConfig& config);

// The dtype of a rule's tensor where what is not quantised has `plain_dtype`.
DType dtype_of(const Rule& rule, const ModelConfig& config, DType plain_dtype);

inline bool is_per_layer(const Rule& rule) {
  const std::string& name = rule.tensor.empty() ? rule.parameter : rule.tensor;
  return name.find("{}") != std::string::npos;
}

inline bool is_per_expert(const Rule& rule) { return rule.tensor.find("{e}") != std::string::npos; }

inline bool is_routed(const Rule& rule) { return is_per_expert(rule) || rule.stacked_parts > 0; }

// Whether a layer stands after the last that the main model serves.
inline bool is_prediction(const ModelConfig& config, std::int64_t layer) {
  return layer >= config.layers;
}

// Where in a model a rule is read.
struct Site {
  std::int64_t layer = 0;
  std::int64_t expert = 0;
};

// `pattern` with its `{}` and `{e}` replaced by the numbers of layer and expert.
std::string name_at(std::string_view pattern, const Site& site);

// Calls visit(rule, site) for the per-layer rules [first, last) that apply on one layer.
template <typename Visit>
void for_each_rule_of_layer(const Rule* first, const Rule* last, const ModelConfig& config,
                            std::int64_t layer, const Visit& visit) {
  for (const Rule* end = first; first != last; first = end) {
    const bool per_expert = is_per_expert(*first);
    end = first + 1;
    while (per_expert && end != last && is_per_expert(*end)) ++end;
    if (per_expert && !config.is_sparse(layer)) continue;
    for (std::int64_t expert = 0; expert < (per_expert ? config.experts : 1); ++expert) {
      for (const Rule* rule = first; rule != end; ++rule) {
        if (applies(*rule, config, layer)) visit(*rule, Site{layer, expert});
      }
    }
  }
}

// Calls visit(rule, site) for every rule that applies, in checkpoint order: a run of per-layer
// rules once for each layer, those of prediction included, and of these a run of per-expert rules
// once for each expert; every other rule once.
template <typename Visit>
void for_each_rule(const Family& family, const ModelConfig& config, const Visit& visit) {
  const Rule* const end = family.rules.data() + family.rules.size();
  const Rule* last = nullptr;
  for (const Rule* first = family.rules.data(); first != end; first = last) {
    const bool per_layer = is_per_layer(*first);
    last = first + 1;
    while (per_layer && last != end && is_per_layer(*last)) ++last;
    const std::int64_t layers = per_layer ? config.layers + config.prediction_layers : 1;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for_each_rule_of_layer(first, last, config, layer, visit);
    }
  }
}

}  // namespace crossmesh::detail
