// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/family.h"

#include <algorithm>
#include <array>
#include <unordered_set>

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

std::vector<Rule> mixtral_rules() {
  return {
      {"model.embed_tokens.weight", "model.embed_tokens.weight", {Extent::vocab, Extent::hidden}, Cut::vocab},
      {"model.layers.{}.input_layernorm.weight", "model.layers.{}.input_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::query, Extent::hidden}, Cut::heads},
      {"model.layers.{}.self_attn.k_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.qkv_proj.weight", {Extent::key_value, Extent::hidden}, Cut::kv_heads},
      {"model.layers.{}.self_attn.o_proj.weight", "model.layers.{}.self_attn.o_proj.weight", {Extent::hidden, Extent::query}, Cut::row},
      {"model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.post_attention_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.block_sparse_moe.gate.weight", "model.layers.{}.block_sparse_moe.gate.weight", {Extent::experts, Extent::hidden}, Cut::replicate},
      {"model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", "model.layers.{}.block_sparse_moe.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", "model.layers.{}.block_sparse_moe.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", "model.layers.{}.block_sparse_moe.experts.routed_experts.w2_weight", {Extent::hidden, Extent::expert_intermediate}, Cut::row, When::sparse},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}

std::vector<Rule> qwen3_moe_rules() {
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
      {"model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column, When::dense},
      {"model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column, When::dense},
      {"model.layers.{}.mlp.down_proj.weight", "model.layers.{}.mlp.down_proj.weight", {Extent::hidden, Extent::intermediate}, Cut::row, When::dense},
      {"model.layers.{}.mlp.gate.weight", "model.layers.{}.mlp.gate.weight", {Extent::experts, Extent::hidden}, Cut::replicate, When::sparse},
      {"model.layers.{}.mlp.experts.{e}.gate_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.mlp.experts.{e}.up_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.mlp.experts.{e}.down_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w2_weight", {Extent::hidden, Extent::expert_intermediate}, Cut::row, When::sparse},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}

// Where queries are compressed too, both compressing projections are one parameter, which tp does
// not cut. Only checkpoints with attention_bias have the biases, and the engine has none of them.
std::vector<Rule> deepseek_rules() {
  return {
      {"model.embed_tokens.weight", "model.embed_tokens.weight", {Extent::vocab, Extent::hidden}, Cut::vocab},
      {"model.layers.{}.embed_tokens.weight", "", {Extent::vocab, Extent::hidden}, Cut::replicate, When::prediction},
      {"model.layers.{}.enorm.weight", "", {Extent::hidden}, Cut::replicate, When::prediction},
      {"model.layers.{}.hnorm.weight", "", {Extent::hidden}, Cut::replicate, When::prediction},
      {"model.layers.{}.eh_proj.weight", "", {Extent::hidden, Extent::twice_hidden}, Cut::replicate, When::prediction},
      {"model.layers.{}.input_layernorm.weight", "model.layers.{}.input_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.self_attn.q_a_proj.weight", "model.layers.{}.self_attn.fused_qkv_a_proj.weight", {Extent::query_rank, Extent::hidden}, Cut::replicate, When::query_rank},
      {"model.layers.{}.self_attn.q_a_proj.bias", "", {Extent::query_rank}, Cut::replicate, When::query_rank_bias},
      {"model.layers.{}.self_attn.q_a_layernorm.weight", "model.layers.{}.self_attn.q_a_layernorm.weight", {Extent::query_rank}, Cut::replicate, When::query_rank},
      {"model.layers.{}.self_attn.q_b_proj.weight", "model.layers.{}.self_attn.q_b_proj.weight", {Extent::query, Extent::query_rank}, Cut::heads, When::query_rank},
      {"model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.q_proj.weight", {Extent::query, Extent::hidden}, Cut::heads, When::no_query_rank},
      {"model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", "model.layers.{}.self_attn.fused_qkv_a_proj.weight", {Extent::latent_and_rotary, Extent::hidden}, Cut::replicate, When::query_rank},
      {"model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", {Extent::latent_and_rotary, Extent::hidden}, Cut::replicate, When::no_query_rank},
      {"model.layers.{}.self_attn.kv_a_proj_with_mqa.bias", "", {Extent::latent_and_rotary}, Cut::replicate, When::attention_bias},
      {"model.layers.{}.self_attn.kv_a_layernorm.weight", "model.layers.{}.self_attn.kv_a_layernorm.weight", {Extent::latent}, Cut::replicate},
      {"model.layers.{}.self_attn.kv_b_proj.weight", "model.layers.{}.self_attn.kv_b_proj.weight", {Extent::plain_and_value, Extent::latent}, Cut::heads},
      {"", "model.layers.{}.self_attn.mla_attn.W_UK_T", {Extent::heads, Extent::plain_head_size, Extent::latent}, Cut::heads, When::always, "", "computed from kv_b_proj.weight"},
      {"", "model.layers.{}.self_attn.mla_attn.W_UV", {Extent::heads, Extent::latent, Extent::value_head_size}, Cut::heads, When::always, "", "computed from kv_b_proj.weight"},
      {"model.layers.{}.self_attn.o_proj.weight", "model.layers.{}.self_attn.o_proj.weight", {Extent::hidden, Extent::value}, Cut::row},
      {"model.layers.{}.self_attn.o_proj.bias", "", {Extent::hidden}, Cut::replicate, When::attention_bias},
      {"model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.post_attention_layernorm.weight", {Extent::hidden}, Cut::replicate},
      {"model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column, When::dense},
      {"model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.gate_up_proj.weight", {Extent::intermediate, Extent::hidden}, Cut::column, When::dense},
      {"model.layers.{}.mlp.down_proj.weight", "model.layers.{}.mlp.down_proj.weight", {Extent::hidden, Extent::intermediate}, Cut::row, When::dense},
      {"model.layers.{}.mlp.gate.weight", "model.layers.{}.mlp.gate.weight", {Extent::experts, Extent::hidden}, Cut::replicate, When::sparse},
      {"model.layers.{}.mlp.gate.e_score_correction_bias", "model.layers.{}.mlp.gate.e_score_correction_bias", {Extent::experts}, Cut::replicate, When::router_bias},
      {"model.layers.{}.mlp.experts.{e}.gate_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.mlp.experts.{e}.up_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w13_weight", {Extent::expert_intermediate, Extent::hidden}, Cut::column, When::sparse},
      {"model.layers.{}.mlp.experts.{e}.down_proj.weight", "model.layers.{}.mlp.experts.routed_experts.w2_weight", {Extent::hidden, Extent::expert_intermediate}, Cut::row, When::sparse},
      {"model.layers.{}.mlp.shared_experts.gate_proj.weight", "model.layers.{}.mlp.shared_experts.gate_up_proj.weight", {Extent::shared_intermediate, Extent::hidden}, Cut::column, When::shared_experts},
      {"model.layers.{}.mlp.shared_experts.up_proj.weight", "model.layers.{}.mlp.shared_experts.gate_up_proj.weight", {Extent::shared_intermediate, Extent::hidden}, Cut::column, When::shared_experts},
      {"model.layers.{}.mlp.shared_experts.down_proj.weight", "model.layers.{}.mlp.shared_experts.down_proj.weight", {Extent::hidden, Extent::shared_intermediate}, Cut::row, When::shared_experts},
      {"model.layers.{}.shared_head.norm.weight", "", {Extent::hidden}, Cut::replicate, When::prediction},
      {"model.layers.{}.shared_head.head.weight", "", {Extent::vocab, Extent::hidden}, Cut::replicate, When::prediction},
      {"model.norm.weight", "model.norm.weight", {Extent::hidden}, Cut::replicate},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::untied},
      {"lm_head.weight", "lm_head.weight", {Extent::vocab, Extent::hidden}, Cut::vocab, When::tied, "model.embed_tokens.weight"},
  };
}
// clang-format on

// Each linear weight is followed by the scales of its blocks, which fuse and stack as it does.
std::vector<Rule> with_scales(const std::vector<Rule>& rules) {
  std::vector<Rule> all;
  for (const Rule& rule : rules) {
    all.push_back(rule);
    if (!is_linear(rule)) continue;
    Rule scales = rule;
    scales.tensor += "_scale_inv";
    if (!rule.parameter.empty()) scales.parameter += "_scale_inv";
    scales.holds_scales = true;
    all.push_back(std::move(scales));
  }
  return all;
}

// The same with a layer's experts in two tensors. Of mixtral, the router goes by another name too.
std::vector<Rule> with_stacked_experts(const std::vector<Rule>& rules) {
  constexpr std::string_view kOther = "block_sparse_moe.";
  std::vector<Rule> all;
  for (Rule rule : rules) {
    const std::size_t other = rule.tensor.find(kOther);
    if (other != std::string::npos) rule.tensor.replace(other, kOther.size(), "mlp.");
    if (detail::is_per_expert(rule)) {
      rule.tensor.resize(rule.tensor.find("{e}"));
      rule.tensor += rule.cut == Cut::column ? "gate_up_proj" : "down_proj";
      if (!all.empty() && all.back().tensor == rule.tensor) {
        ++all.back().stacked_parts;
        continue;
      }
      rule.stacked_parts = 1;
    }
    all.push_back(std::move(rule));
  }
  return all;
}

// The tensors of the served layers' experts.
std::vector<std::string> expert_tensors_of(const ModelConfig& config, ExpertForm form) {
  std::vector<std::string> names;
  detail::for_each_rule(
      family_of(config, form), config, [&](const Rule& rule, const detail::Site& site) {
        if (detail::is_routed(rule) && !detail::is_prediction(config, site.layer)) {
          names.push_back(detail::name_at(rule.tensor, site));
        }
      });
  return names;
}

}  // namespace

bool is_linear(const Rule& rule) {
  const auto has = [&](Extent extent) {
    return std::ranges::find(rule.shape, extent) != rule.shape.end();
  };
  return rule.shape.size() == 2 && !rule.holds_scales && rule.when != When::prediction &&
         !has(Extent::vocab) && !has(Extent::experts);
}

std::span<const Family> families() {
  static const std::array<Family, 8> kFamilies = {{
      {"llama", with_scales(llama_rules())},
      {"mistral", with_scales(llama_rules())},
      {"mixtral", with_scales(mixtral_rules())},
      {"qwen2", with_scales(qwen2_rules())},
      {"qwen3", with_scales(qwen3_rules())},
      {"qwen3_moe", with_scales(qwen3_moe_rules())},
      {"deepseek_v2", with_scales(deepseek_rules())},
      {"deepseek_v3", with_scales(deepseek_rules())},
  }};
  return kFamilies;
}

const Family& family_of(const ModelConfig& config, ExpertForm form) {
  static const std::array<Family, 4> kStacked = {{
      {"mixtral", with_scales(with_stacked_experts(mixtral_rules()))},
      {"qwen3_moe", with_scales(with_stacked_experts(qwen3_moe_rules()))},
      {"deepseek_v2", with_scales(with_stacked_experts(deepseek_rules()))},
      {"deepseek_v3", with_scales(with_stacked_experts(deepseek_rules()))},
  }};
  if (form == ExpertForm::stacked) {
    const auto stacked = std::ranges::find(kStacked, config.model_type, &Family::model_type);
    if (stacked != kStacked.end()) return *stacked;
  }
  const auto at = std::ranges::find(families(), config.model_type, &Family::model_type);
  if (at == families().end()) {
    throw Error(ErrorCode::unsupported, "find family: the family is not known")
        .with("model_type", config.model_type);
  }
  return *at;
}

ExpertForm expert_form_of(const ModelConfig& config, const Catalog& catalog) {
  if (config.experts == 0) return ExpertForm::each;
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : catalog.tensors) names.insert(tensor.name);
  const auto first_of = [&](const std::vector<std::string>& wanted) {
    return std::ranges::find_if(wanted,
                                [&](const std::string& name) { return names.contains(name); });
  };
  const std::vector<std::string> each = expert_tensors_of(config, ExpertForm::each);
  const std::vector<std::string> stacked = expert_tensors_of(config, ExpertForm::stacked);
  const auto one = first_of(each);
  const auto stack = first_of(stacked);
  if (one != each.end() && stack != stacked.end()) {
    throw Error(ErrorCode::mismatch, "find experts: the checkpoint has them twice")
        .with("one by one", *one)
        .with("stacked", *stack);
  }
  if (one == each.end() && stack == stacked.end() && !each.empty()) {
    throw Error(ErrorCode::mismatch, "find experts: the checkpoint has none of them")
        .with("missing", each.front())
        .with("or", stacked.front());
  }
  return stack != stacked.end() ? ExpertForm::stacked : ExpertForm::each;
}

std::vector<TensorInfo> tensors_of(const Family& family, const ModelConfig& config) {
  std::vector<TensorInfo> tensors;
  detail::for_each_rule(family, config, [&](const Rule& rule, const detail::Site& site) {
    if (!rule.shares.empty() || !rule.derived.empty()) return;
    tensors.push_back({detail::name_at(rule.tensor, site),
                       detail::dtype_of(rule, config, config.dtype),
                       detail::shape_of(rule, config)});
  });
  return tensors;
}

}  // namespace crossmesh
