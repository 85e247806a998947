// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/family.h"

#include <algorithm>
#include <array>

#include "crossmesh/base/error.h"
#include "crossmesh/target/detail/expand.h"

namespace crossmesh {
namespace {

// One rule a line, whatever its length. Names and biases are those of the Hugging Face checkpoint
// and of the engine's modules; which biases the engine lacks follows the engine.
// clang-format off
std::vector<Rule> llama_rules() {
  return {
      {"model.embed_tokens.weight", "model.embed_tokens.weight", {Extent::vocab, Extent::hidden}, Cut::vocab},
      {"model.layers.{}.input_layernorm.weight", "model.layers.{}.input_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::query, Extent::hidden}, Cut::heads},
      {"model.layers.{}.self_attn.k_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.q_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::query}, Cut::heads, When::attention_bias},
      {"model.layers.{}.self_attn.k_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads, When::attention_bias},
      {"model.layers.{}.self_attn.v_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads, When::attention_bias},
      {"model.layers.{}.self_attn.o_proj.weight", "model.layers.{}.self_attn.o_proj.weight", {Extent::hidden, Extent::query}, Cut::row},
      {"model.layers.{}.self_attn.o_proj.bias", "model.layers.{}.self_attn.o_proj.bias", {Extent::hidden}, Cut::replicate, When::attention_bias},
      {"model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.post_attention_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.gate_up_proj.bias", {Extent::intermediate}, Cut::column, When::mlp_bias},
      {"model.layers.{}.mlp.up_proj.bias", "model.layers.{}.mlp.gate_up_proj.bias", {Extent::intermediate}, Cut::column, When::mlp_bias},
      {"model.layers.{}.mlp.down_proj.weight", "model.layers.{}.mlp.down_proj.weight", {Extent::hidden, Extent::intermediate}, Cut::row},
      {"model.layers.{}.mlp.down_proj.bias", "model.layers.{}.mlp.down_proj.bias", {Extent::hidden}, Cut::replicate, When::mlp_bias},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}

std::vector<Rule> qwen2_rules() {
  return {
      {"model.embed_tokens.weight", "model.embed_tokens.weight", {Extent::vocab, Extent::hidden}, Cut::vocab},
      {"model.layers.{}.input_layernorm.weight", "model.layers.{}.input_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::query, Extent::hidden}, Cut::heads},
      {"model.layers.{}.self_attn.k_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.q_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::query}, Cut::heads},
      {"model.layers.{}.self_attn.k_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads},
      {"model.layers.{}.self_attn.v_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads},
      {"model.layers.{}.self_attn.o_proj.weight", "model.layers.{}.self_attn.o_proj.weight", {Extent::hidden, Extent::query}, Cut::row},
      {"model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.post_attention_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.down_proj.weight", "model.layers.{}.mlp.down_proj.weight", {Extent::hidden, Extent::intermediate}, Cut::row},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}

std::vector<Rule> qwen3_rules() {
  return {
      {"model.embed_tokens.weight", "model.embed_tokens.weight", {Extent::vocab, Extent::hidden}, Cut::vocab},
      {"model.layers.{}.input_layernorm.weight", "model.layers.{}.input_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::query, Extent::hidden}, Cut::heads},
      {"model.layers.{}.self_attn.k_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.q_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::query}, Cut::heads, When::attention_bias},
      {"model.layers.{}.self_attn.k_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads, When::attention_bias},
      {"model.layers.{}.self_attn.v_proj.bias", "model.layers.{}.self_attn.qkv_proj.bias", {Extent::key_value}, Cut::kv_heads, When::attention_bias},
      {"model.layers.{}.self_attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", {Extent::head_size}, Cut::replicate},
      {"model.layers.{}.self_attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", {Extent::head_size}, Cut::replicate},
      {"model.layers.{}.self_attn.o_proj.weight", "model.layers.{}.self_attn.o_proj.weight", {Extent::hidden, Extent::query}, Cut::row},
      {"model.layers.{}.self_attn.o_proj.bias", "", {Extent::hidden}, Cut::replicate, When::attention_bias},
      {"model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.post_attention_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column},
      {"model.layers.{}.mlp.down_proj.weight", "model.layers.{}.mlp.down_proj.weight", {Extent::hidden, Extent::intermediate}, Cut::row},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}
// clang-format on

}  // namespace

std::span<const Family> families() {
  static const std::array<Family, 4> kFamilies = {{
      {"llama", llama_rules()},
      {"mistral", llama_rules()},
      {"qwen2", qwen2_rules()},
      {"qwen3", qwen3_rules()},
  }};
  return kFamilies;
}

const Family& family_of(const ModelConfig& config) {
  const auto at = std::ranges::find(families(), config.model_type, &Family::model_type);
  if (at == families().end()) {
    throw Error(ErrorCode::unsupported, "find family: the family is not known")
        .with("model_type", config.model_type);
  }
  return *at;
}

std::vector<TensorInfo> tensors_of(const Family& family, const ModelConfig& config) {
  std::vector<TensorInfo> tensors;
  detail::for_each_rule(family, config, [&](const Rule& rule, std::int64_t layer) {
    if (!rule.shares.empty()) return;
    tensors.push_back(
        {detail::name_in_layer(rule.tensor, layer), config.dtype, detail::shape_of(rule, config)});
  });
  return tensors;
}

}  // namespace crossmesh
