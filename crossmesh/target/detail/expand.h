// SPDX-License-Identifier: Apache-2.0
// A family's table read against one config: which rules apply, layer by layer, and what their
// extents come to. It knows no rank.
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

bool applies(const Rule& rule, const ModelConfig& config);

std::vector<std::int64_t> shape_of(const Rule& rule, const ModelConfig& config);

inline bool is_per_layer(const Rule& rule) {
  return rule.tensor.find("{}") != std::string_view::npos;
}

// `pattern` with its `{}` replaced by the layer's number.
std::string name_in_layer(std::string_view pattern, std::int64_t layer);

// Calls visit(rule, layer) for every rule that applies, in checkpoint order: a run of per-layer
// rules once for each layer, every other rule once, with layer 0.
template <typename Visit>
void for_each_rule(const Family& family, const ModelConfig& config, const Visit& visit) {
  const std::vector<Rule>& rules = family.rules;
  for (std::size_t first = 0, last = 0; first < rules.size(); first = last) {
    const bool per_layer = is_per_layer(rules[first]);
    last = first + 1;
    while (per_layer && last < rules.size() && is_per_layer(rules[last])) ++last;
    for (std::int64_t layer = 0; layer < (per_layer ? config.layers : 1); ++layer) {
      for (std::size_t r = first; r < last; ++r) {
        if (applies(rules[r], config)) visit(rules[r], layer);
      }
    }
  }
}

}  // namespace crossmesh::detail
