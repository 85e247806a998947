// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/expand.h"

#include <algorithm>

#include "crossmesh/base/checked.h"

namespace crossmesh::detail {

std::int64_t value_of(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case Extent::hidden:
      return config.hidden;
    case Extent::twice_hidden:
      return checked_mul(2, config.hidden);
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
    case Extent::experts:
      return config.experts;
    case Extent::expert_intermediate:
      return config.expert_intermediate;
    case Extent::shared_intermediate:
      return checked_mul(config.shared_experts, config.expert_intermediate);
    case Extent::query_rank:
      return config.query_rank;
    case Extent::latent:
      return config.latent;
    case Extent::latent_and_rotary:
      return config.latent + config.rotary_head_size;
    case Extent::heads:
      return config.heads;
    case Extent::plain_head_size:
      return config.plain_head_size;
    case Extent::value_head_size:
      return config.value_head_size;
    case Extent::plain_and_value:
      return checked_mul(config.heads, config.plain_head_size + config.value_head_size);
    case Extent::value:
      return checked_mul(config.heads, config.value_head_size);
  }
  return 0;
}

std::string_view key_of(Extent extent) {
  switch (extent) {
    case Extent::hidden:
      return "hidden_size";
    case Extent::twice_hidden:
      return "2 * hidden_size";
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
    case Extent::experts:
      return "number of experts";
    case Extent::expert_intermediate:
      return "experts' intermediate size";
    case Extent::shared_intermediate:
      return "n_shared_experts * moe_intermediate_size";
    case Extent::query_rank:
      return "q_lora_rank";
    case Extent::latent:
      return "kv_lora_rank";
    case Extent::latent_and_rotary:
      return "kv_lora_rank + qk_rope_head_dim";
    case Extent::heads:
      return "num_attention_heads";
    case Extent::plain_head_size:
      return "qk_nope_head_dim";
    case Extent::value_head_size:
      return "v_head_dim";
    case Extent::plain_and_value:
      return "num_attention_heads * (qk_nope_head_dim + v_head_dim)";
    case Extent::value:
      return "num_attention_heads * v_head_dim";
  }
  return "";
}

bool applies(const Rule& rule, const ModelConfig& config, std::int64_t layer) {
  if (rule.holds_scales && config.scale_block == 0) return false;
  const bool is_sparse = config.is_sparse(layer);
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
    case When::dense:
      return !is_sparse;
    case When::sparse:
      return is_sparse;
    case When::shared_experts:
      return is_sparse && config.shared_experts > 0;
    case When::router_bias:
      return is_sparse && config.router_bias;
    case When::query_rank:
      return config.query_rank > 0;
    case When::query_rank_bias:
      return config.query_rank > 0 && config.attention_bias;
    case When::no_query_rank:
      return config.query_rank == 0;
    case When::prediction:
      return is_prediction(config, layer);
  }
  return false;
}

std::vector<std::int64_t> shape_of(const Rule& rule, const ModelConfig& config) {
  std::vector<std::int64_t> shape;
  for (const Extent extent : rule.shape) {
    const std::int64_t size = value_of(extent, config);
    shape.push_back(rule.holds_scales ? ceil_div(size, config.scale_block) : size);
  }
  if (rule.stacked_parts > 0) {
    shape[0] = checked_mul(rule.stacked_parts, shape[0]);
    shape.insert(shape.begin(), config.experts);
  }
  return shape;
}

DType dtype_of(const Rule& rule, const ModelConfig& config, DType plain_dtype) {
  if (rule.holds_scales || rule.when == When::router_bias) return DType::f32;
  return config.scale_block > 0 && is_linear(rule) ? DType::f8_e4m3 : plain_dtype;
}

std::string name_at(std::string_view pattern, const Site& site) {
  std::string name;
  name.reserve(pattern.size() + 8);
  for (std::size_t at = 0; at < pattern.size();) {
    const std::size_t brace = std::min(pattern.find('{', at), pattern.size());
    name += pattern.substr(at, brace - at);
    if (brace == pattern.size()) break;
    const std::size_t end = pattern.find('}', brace);
    name += std::to_string(end == brace + 1 ? site.layer : site.expert);
    at = end + 1;
  }
  return name;
}

}  // namespace crossmesh::detail
