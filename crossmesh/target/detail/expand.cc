// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/expand.h"

#include "crossmesh/base/checked.h"

namespace crossmesh::detail {

std::int64_t value_of(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case Extent::hidden:
      return config.hidden;
    case Extent::intermediate:
      return config.intermediate;
    case Extent::query:
      return checked_mul(config.heads, config.head_size);
    case Extent::key_value:
      return checked_mul(config.kv_heads, config.head_size);
    case Extent::head_size:
      return config.head_size;
    case Extent::vocab:
      return config.vocab;
  }
  return 0;
}

std::string_view key_of(Extent extent) {
  switch (extent) {
    case Extent::hidden:
      return "hidden_size";
    case Extent::intermediate:
      return "intermediate_size";
    case Extent::query:
      return "num_attention_heads * head_dim";
    case Extent::key_value:
      return "num_key_value_heads * head_dim";
    case Extent::head_size:
      return "head_dim";
    case Extent::vocab:
      return "vocab_size";
  }
  return "";
}

bool applies(const Rule& rule, const ModelConfig& config) {
  switch (rule.when) {
    case When::always:
      return true;
    case When::attention_bias:
      return config.attention_bias;
    case When::mlp_bias:
      return config.mlp_bias;
    case When::tied:
      return config.tied_embeddings;
    case When::untied:
      return !config.tied_embeddings;
  }
  return false;
}

std::vector<std::int64_t> shape_of(const Rule& rule, const ModelConfig& config) {
  std::vector<std::int64_t> shape;
  for (const Extent extent : rule.shape) shape.push_back(value_of(extent, config));
  return shape;
}

std::string name_in_layer(std::string_view pattern, std::int64_t layer) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  std::string name(pattern.substr(0, at));
  name += std::to_string(layer);
  name += pattern.substr(at + 2);
  return name;
}

}  // namespace crossmesh::detail
