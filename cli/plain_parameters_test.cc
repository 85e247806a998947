// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_parameters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/plain_config.h"
#include "cli/plain_mesh.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<std::int64_t>;

// hidden 10, 4 heads of 3, 2 KV heads, 5 experts of 8, vocabulary 70, 3 layers.
Json with_experts(const char* model_type) {
  return {{"model_type", model_type},
          {"hidden_size", 10},
          {"intermediate_size", 8},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 3},
          {"vocab_size", 70},
          {"num_local_experts", 5},
          {"moe_intermediate_size", 8}};
}

// The same with heads of 2 + 1 for queries and keys and 3 for values, ranks 6 and 7.
Json with_latent(const char* model_type) {
  return {{"model_type", model_type},
          {"hidden_size", 10},
          {"intermediate_size", 12},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"vocab_size", 70},
          {"q_lora_rank", 6},
          {"kv_lora_rank", 7},
          {"qk_nope_head_dim", 2},
          {"qk_rope_head_dim", 1},
          {"v_head_dim", 3},
          {"n_routed_experts", 5},
          {"moe_intermediate_size", 8},
          {"n_shared_experts", 2},
          {"first_k_dense_replace", 1},
          {"n_group", 5},
          {"topk_method", "noaux_tc"}};
}

std::vector<PlainParameter> parameters_of(const Json& config, PlainEngine engine) {
  const std::string text = config.dump();
  engine.config_json = text;
  return plain_parameters(engine);
}

std::string list_of(const std::vector<PlainParameter>& parameters, const std::string& layer = "") {
  std::string text;
  for (const PlainParameter& parameter : parameters) {
    const bool skipped = parameter.name.starts_with("model.layers.") &&
                         !parameter.name.starts_with("model.layers." + layer + ".");
    if (!layer.empty() && skipped) continue;
    text += fmt::format("{} [{}]", parameter.name, fmt::join(parameter.shape, ", "));
    if (parameter.storage != parameter.name) text += " = " + parameter.storage;
    text += "\n";
  }
  return text;
}

// `tensor[rows] at column -> target row`, a line each.
std::string parts_of(const std::vector<PlainParameter>& parameters, const std::string& name) {
  std::string text;
  for (const PlainParameter& parameter : parameters) {
    if (parameter.name != name) continue;
    for (const PlainPart& part : parameter.parts) {
      text += fmt::format("{} [{}] rows {}+{} column {} to {}\n", part.tensor,
                          fmt::join(part.tensor_shape, ", "), part.source_row, part.rows,
                          part.source_column, part.target_row);
    }
  }
  return text;
}

TEST(PlainParameters, mixtral_lists_its_experts_and_their_router) {
  EXPECT_EQ(list_of(parameters_of(with_experts("mixtral"), {.tp = 2}), "1"),
            "model.embed_tokens.weight [64, 10]\n"
            "model.layers.1.self_attn.qkv_proj.weight [12, 10]\n"
            "model.layers.1.self_attn.o_proj.weight [10, 6]\n"
            "model.layers.1.block_sparse_moe.gate.weight [5, 10]\n"
            "model.layers.1.block_sparse_moe.experts.routed_experts.w13_weight [5, 8, 10]\n"
            "model.layers.1.block_sparse_moe.experts.routed_experts.w2_weight [5, 10, 4]\n"
            "model.layers.1.input_layernorm.weight [10]\n"
            "model.layers.1.post_attention_layernorm.weight [10]\n"
            "model.norm.weight [10]\n"
            "lm_head.weight [64, 10]\n");
}

TEST(PlainParameters, qwen3_moe_is_dense_where_its_config_says) {
  Json config = with_experts("qwen3_moe");
  config["decoder_sparse_step"] = 2;
  config["num_hidden_layers"] = 6;
  config["mlp_only_layers"] = {3};
  const PlainConfig plain = read_plain_config(config.dump());
  std::vector<bool> sparse;
  for (int layer = 0; layer < 6; ++layer) sparse.push_back(has_experts(plain, layer));
  EXPECT_EQ(sparse, (std::vector<bool>{false, true, false, false, false, true}));
  const auto parameters = parameters_of(config, {.tp = 2});
  EXPECT_EQ(list_of(parameters, "3"),
            "model.embed_tokens.weight [64, 10]\n"
            "model.layers.3.self_attn.qkv_proj.weight [12, 10]\n"
            "model.layers.3.self_attn.o_proj.weight [10, 6]\n"
            "model.layers.3.self_attn.q_norm.weight [3]\n"
            "model.layers.3.self_attn.k_norm.weight [3]\n"
            "model.layers.3.mlp.gate_up_proj.weight [8, 10]\n"
            "model.layers.3.mlp.down_proj.weight [10, 4]\n"
            "model.layers.3.input_layernorm.weight [10]\n"
            "model.layers.3.post_attention_layernorm.weight [10]\n"
            "model.norm.weight [10]\n"
            "lm_head.weight [64, 10]\n");
}

TEST(PlainParameters, deepseek_lists_latent_attention_shared_experts_and_the_bias) {
  for (const char* model : {"deepseek_v2", "deepseek_v3", "kimi_k2"}) {
    const auto parameters = parameters_of(with_latent(model), {.tp = 2, .tp_rank = 1});
    EXPECT_EQ(list_of(parameters, "1"),
              "model.embed_tokens.weight [64, 10]\n"
              "model.layers.1.self_attn.fused_qkv_a_proj.weight [14, 10]\n"
              "model.layers.1.self_attn.q_a_layernorm.weight [6]\n"
              "model.layers.1.self_attn.q_b_proj.weight [6, 6]\n"
              "model.layers.1.self_attn.kv_a_layernorm.weight [7]\n"
              "model.layers.1.self_attn.kv_b_proj.weight [10, 7]\n"
              "model.layers.1.self_attn.o_proj.weight [10, 6]\n"
              "model.layers.1.mlp.gate.weight [5, 10]\n"
              "model.layers.1.mlp.gate.e_score_correction_bias [5]\n"
              "model.layers.1.mlp.experts.routed_experts.w13_weight [5, 8, 10]\n"
              "model.layers.1.mlp.experts.routed_experts.w2_weight [5, 10, 4]\n"
              "model.layers.1.mlp.shared_experts.gate_up_proj.weight [16, 10]\n"
              "model.layers.1.mlp.shared_experts.down_proj.weight [10, 8]\n"
              "model.layers.1.input_layernorm.weight [10]\n"
              "model.layers.1.post_attention_layernorm.weight [10]\n"
              "model.norm.weight [10]\n"
              "lm_head.weight [64, 10]\n");
    const std::string attention = "model.layers.1.self_attn.";
    EXPECT_EQ(parts_of(parameters, attention + "fused_qkv_a_proj.weight"),
              attention + "q_a_proj.weight [6, 10] rows 0+6 column 0 to 0\n" + attention +
                  "kv_a_proj_with_mqa.weight [8, 10] rows 0+8 column 0 to 6\n");
    EXPECT_EQ(parts_of(parameters, attention + "q_b_proj.weight"),
              attention + "q_b_proj.weight [12, 6] rows 6+6 column 0 to 0\n");
    EXPECT_EQ(parts_of(parameters, attention + "kv_b_proj.weight"),
              attention + "kv_b_proj.weight [20, 7] rows 10+10 column 0 to 0\n");
    EXPECT_EQ(parts_of(parameters, attention + "o_proj.weight"),
              attention + "o_proj.weight [10, 12] rows 0+10 column 6 to 0\n");
    // The first layer is dense.
    EXPECT_EQ(parts_of(parameters, "model.layers.0.mlp.down_proj.weight"),
              "model.layers.0.mlp.down_proj.weight [10, 12] rows 0+10 column 6 to 0\n");
  }
}

TEST(PlainParameters, only_the_bias_of_a_router_has_another_dtype) {
  for (const PlainParameter& one :
       parameters_of(with_latent("deepseek_v3"), {.dtype = DType::f16})) {
    const bool is_bias = one.name.ends_with(".mlp.gate.e_score_correction_bias");
    EXPECT_EQ(one.dtype, is_bias ? DType::f32 : DType::f16) << one.name;
  }
}

TEST(PlainParameters, deepseek_v2_may_project_queries_at_once_and_share_no_expert) {
  Json config = with_latent("deepseek_v2");
  config["q_lora_rank"] = nullptr;
  config["n_shared_experts"] = nullptr;
  config["topk_method"] = "greedy";
  EXPECT_EQ(list_of(parameters_of(config, {.tp = 2}), "2"),
            "model.embed_tokens.weight [64, 10]\n"
            "model.layers.2.self_attn.kv_a_proj_with_mqa.weight [8, 10]\n"
            "model.layers.2.self_attn.q_proj.weight [6, 10]\n"
            "model.layers.2.self_attn.kv_a_layernorm.weight [7]\n"
            "model.layers.2.self_attn.kv_b_proj.weight [10, 7]\n"
            "model.layers.2.self_attn.o_proj.weight [10, 6]\n"
            "model.layers.2.mlp.gate.weight [5, 10]\n"
            "model.layers.2.mlp.experts.routed_experts.w13_weight [5, 8, 10]\n"
            "model.layers.2.mlp.experts.routed_experts.w2_weight [5, 10, 4]\n"
            "model.layers.2.input_layernorm.weight [10]\n"
            "model.layers.2.post_attention_layernorm.weight [10]\n"
            "model.norm.weight [10]\n"
            "lm_head.weight [64, 10]\n");
}

// -- Experts -------------------------------------------------------------------------------------

constexpr const char* kExperts = "model.layers.1.mlp.experts.";

// The experts in the slots of a rank's w13, from the tensors that feed them.
Numbers slots_of(const Json& config, const PlainEngine& engine) {
  Numbers experts;
  const auto parameters = parameters_of(config, engine);
  for (const PlainParameter& parameter : parameters) {
    if (parameter.name != std::string(kExperts) + "routed_experts.w13_weight") continue;
    for (std::size_t slot = 0; slot < parameter.parts.size(); slot += 2) {
      const std::string& tensor = parameter.parts[slot].tensor;
      experts.push_back(std::stoll(tensor.substr(std::string(kExperts).size())));
    }
    EXPECT_EQ(parameter.shape[0], static_cast<std::int64_t>(experts.size()));
  }
  return experts;
}

TEST(PlainParameters, spread_experts_over_dp_and_tp_with_the_remainder_first) {
  const auto spread = [](const Json& config, PlainSpread way, int dp, int tp) {
    std::vector<Numbers> ranks;
    for (int rank = 0; rank < dp * tp; ++rank) {
      ranks.push_back(slots_of(
          config, {.dp = dp, .dp_rank = rank / tp, .tp = tp, .tp_rank = rank % tp, .spread = way}));
    }
    return ranks;
  };
  using Ranks = std::vector<Numbers>;
  const Json grouped = with_latent("deepseek_v3");
  EXPECT_EQ(spread(grouped, PlainSpread::linear, 1, 2), (Ranks{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(spread(grouped, PlainSpread::linear, 2, 2), (Ranks{{0, 1}, {2}, {3}, {4}}));
  EXPECT_EQ(spread(grouped, PlainSpread::linear, 4, 1), (Ranks{{0, 1}, {2}, {3}, {4}}));
  EXPECT_EQ(spread(grouped, PlainSpread::round_robin, 2, 1), (Ranks{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(spread(grouped, PlainSpread::round_robin, 2, 2), (Ranks{{0, 4}, {1}, {2}, {3}}));
  EXPECT_EQ(spread(grouped, PlainSpread::cut, 1, 2), (Ranks{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}));
  // A rank without experts has no such parameter.
  EXPECT_EQ(spread(grouped, PlainSpread::linear, 2, 4),
            (Ranks{{0}, {1}, {2}, {3}, {4}, {}, {}, {}}));
  // Nothing is dealt out where the router knows no groups.
  Json one_group = grouped;
  one_group["n_group"] = 1;
  EXPECT_EQ(spread(one_group, PlainSpread::round_robin, 1, 2), (Ranks{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(spread(with_experts("qwen3_moe"), PlainSpread::round_robin, 1, 2),
            (Ranks{{0, 1, 2}, {3, 4}}));
}

TEST(PlainParameters, stack_gate_over_up_and_experts_over_experts) {
  const std::string experts = kExperts;
  const auto cut = parameters_of(with_experts("qwen3_moe"), {.tp = 4, .tp_rank = 3});
  EXPECT_TRUE(parts_of(cut, experts + "routed_experts.w13_weight")
                  .ends_with(experts + "4.gate_proj.weight [8, 10] rows 6+2 column 0 to 16\n" +
                             experts + "4.up_proj.weight [8, 10] rows 6+2 column 0 to 18\n"));
  EXPECT_TRUE(parts_of(cut, experts + "routed_experts.w2_weight")
                  .ends_with(experts + "4.down_proj.weight [10, 8] rows 0+10 column 6 to 40\n"));
  const auto spread =
      parameters_of(with_latent("deepseek_v3"),
                    {.dp = 2, .dp_rank = 1, .tp = 1, .spread = PlainSpread::round_robin});
  EXPECT_EQ(parts_of(spread, experts + "routed_experts.w13_weight"),
            experts + "1.gate_proj.weight [8, 10] rows 0+8 column 0 to 0\n" + experts +
                "1.up_proj.weight [8, 10] rows 0+8 column 0 to 8\n" + experts +
                "3.gate_proj.weight [8, 10] rows 0+8 column 0 to 16\n" + experts +
                "3.up_proj.weight [8, 10] rows 0+8 column 0 to 24\n");
  EXPECT_EQ(parts_of(spread, experts + "routed_experts.w2_weight"),
            experts + "1.down_proj.weight [10, 8] rows 0+10 column 0 to 0\n" + experts +
                "3.down_proj.weight [10, 8] rows 0+10 column 0 to 10\n");
}

TEST(PlainParameters, take_experts_that_the_checkpoint_stacks) {
  const std::string experts = kExperts;
  const auto parameters = parameters_of(
      with_experts("qwen3_moe"),
      {.tp = 2, .tp_rank = 1, .spread = PlainSpread::linear, .has_stacked_experts = true});
  EXPECT_EQ(parts_of(parameters, experts + "routed_experts.w13_weight"),
            experts + "gate_up_proj [5, 16, 10] rows 48+8 column 0 to 0\n" + experts +
                "gate_up_proj [5, 16, 10] rows 56+8 column 0 to 8\n" + experts +
                "gate_up_proj [5, 16, 10] rows 64+8 column 0 to 16\n" + experts +
                "gate_up_proj [5, 16, 10] rows 72+8 column 0 to 24\n");
  EXPECT_EQ(parts_of(parameters, experts + "routed_experts.w2_weight"),
            experts + "down_proj [5, 10, 8] rows 30+10 column 0 to 0\n" + experts +
                "down_proj [5, 10, 8] rows 40+10 column 0 to 10\n");
  EXPECT_EQ(parts_of(parameters_of(with_experts("mixtral"), {.has_stacked_experts = true}),
                     "model.layers.1.block_sparse_moe.gate.weight"),
            "model.layers.1.mlp.gate.weight [5, 10] rows 0+5 column 0 to 0\n");
  const auto cut = parameters_of(with_experts("qwen3_moe"),
                                 {.tp = 2, .tp_rank = 1, .has_stacked_experts = true});
  EXPECT_TRUE(parts_of(cut, experts + "routed_experts.w13_weight")
                  .ends_with(experts + "gate_up_proj [5, 16, 10] rows 68+4 column 0 to 32\n" +
                             experts + "gate_up_proj [5, 16, 10] rows 76+4 column 0 to 36\n"));
  EXPECT_TRUE(parts_of(cut, experts + "routed_experts.w2_weight")
                  .ends_with(experts + "down_proj [5, 10, 8] rows 40+10 column 4 to 40\n"));
}

TEST(PlainParameters, dp_repeats_dense_layers_and_cuts_experts_further) {
  const Json config = with_latent("deepseek_v3");
  const auto first = parameters_of(config, {.dp = 2, .dp_rank = 0, .tp = 2, .tp_rank = 1});
  const auto second = parameters_of(config, {.dp = 2, .dp_rank = 1, .tp = 2, .tp_rank = 1});
  ASSERT_EQ(list_of(first), list_of(second));
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool is_routed = first[i].name.find("routed_experts") != std::string::npos;
    EXPECT_EQ(first[i] == second[i], !is_routed) << first[i].name;
  }
  const std::string experts = kExperts;
  EXPECT_TRUE(parts_of(second, experts + "routed_experts.w2_weight")
                  .starts_with(experts + "0.down_proj.weight [10, 8] rows 0+10 column 6 to 0\n"));
}

TEST(PlainParameters, a_table_of_slots_says_where_experts_lie) {
  const Json config = with_latent("deepseek_v3");  // layers 1 and 2 have experts
  PlainEngine engine{.dp = 2, .dp_rank = 1, .tp = 2, .spread = PlainSpread::linear};
  engine.expert_of_slot = {{0, 1, 2, 3, 4, 4, 1, 0}};
  EXPECT_EQ(slots_of(config, engine), (Numbers{4, 4}));
  engine.tp_rank = 1;
  EXPECT_EQ(slots_of(config, engine), (Numbers{1, 0}));
  engine.expert_of_slot.insert(engine.expert_of_slot.begin(), {4, 3, 2, 1, 0, 0, 3, 2});
  EXPECT_EQ(slots_of(config, engine), (Numbers{3, 2}));
  const auto parameters = parameters_of(config, engine);
  const std::string w2 = "model.layers.2.mlp.experts.routed_experts.w2_weight";
  EXPECT_EQ(parts_of(parameters, w2),
            "model.layers.2.mlp.experts.1.down_proj.weight [10, 8] rows 0+10 column 0 to 0\n"
            "model.layers.2.mlp.experts.0.down_proj.weight [10, 8] rows 0+10 column 0 to 10\n");
}

TEST(PlainParameters, shared_experts_are_whole_where_tokens_are_sharded_over_tp) {
  const Json config = with_latent("deepseek_v3");
  const std::string down = "model.layers.1.mlp.shared_experts.down_proj.weight";
  const auto parts = [&](PlainEngine engine) {
    return parts_of(parameters_of(config, engine), down);
  };
  const std::string second_half = down + " [10, 16] rows 0+10 column 8 to 0\n";
  const std::string all = down + " [10, 16] rows 0+10 column 0 to 0\n";
  PlainEngine engine{.tp = 2, .tp_rank = 1, .spread = PlainSpread::linear};
  EXPECT_EQ(parts(engine), second_half);
  engine.dp = 2;
  EXPECT_EQ(parts(engine), all);
  engine.spread = PlainSpread::cut;
  EXPECT_EQ(parts(engine), second_half);
}

// -- Float8 --------------------------------------------------------------------------------------

Json in_blocks(Json config, std::int64_t block) {
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {block, block}}};
  return config;
}

TEST(PlainParameters, linear_weights_of_float8_come_with_the_scales_of_their_blocks) {
  Json config = in_blocks(with_experts("qwen3_moe"), 4);
  config["head_dim"] = 4;
  const auto parameters = parameters_of(config, {.tp = 2, .tp_rank = 1, .dtype = DType::f16});
  std::string text;
  for (const PlainParameter& parameter : parameters) {
    if (parameter.name.starts_with("model.layers.") &&
        !parameter.name.starts_with("model.layers.1.")) {
      continue;
    }
    text += fmt::format("{} {} [{}]\n", name_of(parameter.dtype), parameter.name,
                        fmt::join(parameter.shape, ", "));
  }
  EXPECT_EQ(text,
            "F16 model.embed_tokens.weight [64, 10]\n"
            "F8_E4M3 model.layers.1.self_attn.qkv_proj.weight [16, 10]\n"
            "F32 model.layers.1.self_attn.qkv_proj.weight_scale_inv [4, 3]\n"
            "F8_E4M3 model.layers.1.self_attn.o_proj.weight [10, 8]\n"
            "F32 model.layers.1.self_attn.o_proj.weight_scale_inv [3, 2]\n"
            "F16 model.layers.1.self_attn.q_norm.weight [4]\n"
            "F16 model.layers.1.self_attn.k_norm.weight [4]\n"
            "F16 model.layers.1.mlp.gate.weight [5, 10]\n"
            "F8_E4M3 model.layers.1.mlp.experts.routed_experts.w13_weight [5, 8, 10]\n"
            "F32 model.layers.1.mlp.experts.routed_experts.w13_weight_scale_inv [5, 2, 3]\n"
            "F8_E4M3 model.layers.1.mlp.experts.routed_experts.w2_weight [5, 10, 4]\n"
            "F32 model.layers.1.mlp.experts.routed_experts.w2_weight_scale_inv [5, 3, 1]\n"
            "F16 model.layers.1.input_layernorm.weight [10]\n"
            "F16 model.layers.1.post_attention_layernorm.weight [10]\n"
            "F16 model.norm.weight [10]\n"
            "F16 lm_head.weight [64, 10]\n");
  const std::string attention = "model.layers.1.self_attn.";
  EXPECT_EQ(parts_of(parameters, attention + "qkv_proj.weight_scale_inv"),
            attention + "q_proj.weight_scale_inv [4, 3] rows 2+2 column 0 to 0\n" + attention +
                "k_proj.weight_scale_inv [2, 3] rows 1+1 column 0 to 2\n" + attention +
                "v_proj.weight_scale_inv [2, 3] rows 1+1 column 0 to 3\n");
  const std::string experts = kExperts;
  EXPECT_TRUE(
      parts_of(parameters, experts + "routed_experts.w13_weight_scale_inv")
          .ends_with(experts + "4.gate_proj.weight_scale_inv [2, 3] rows 1+1 column 0 to 8\n" +
                     experts + "4.up_proj.weight_scale_inv [2, 3] rows 1+1 column 0 to 9\n"));
  EXPECT_TRUE(
      parts_of(parameters, experts + "routed_experts.w2_weight_scale_inv")
          .ends_with(experts + "4.down_proj.weight_scale_inv [3, 2] rows 0+3 column 1 to 12\n"));
}

TEST(PlainParameters, scales_of_stacked_experts_are_counted_by_expert) {
  Json config = in_blocks(with_experts("qwen3_moe"), 4);
  config["head_dim"] = 4;
  const auto parameters = parameters_of(
      config, {.dp = 2, .dp_rank = 1, .spread = PlainSpread::linear, .has_stacked_experts = true});
  const std::string experts = kExperts;
  const auto parts = [&](const char* parameter, const char* tensor, const char* row) {
    const std::string text = parts_of(parameters, experts + parameter);
    EXPECT_NE(text.find(experts + tensor + row), std::string::npos) << text;
  };
  // The rank's slot 1 holds expert 4: its up is rows 2 to 3 of the expert's four.
  parts("routed_experts.w13_weight_scale_inv", "gate_up_proj_scale_inv [5, 4, 3]",
        " rows 18+2 column 0 to 6\n");
  parts("routed_experts.w2_weight_scale_inv", "down_proj_scale_inv [5, 3, 2]",
        " rows 12+3 column 0 to 3\n");
}

TEST(PlainParameters, a_cut_inside_a_block_is_refused) {
  const auto refusal = [](const Json& config, const PlainEngine& engine) {
    try {
      parameters_of(config, engine);
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.text();
    }
    return std::string();
  };
  // 3 rows of each head.
  EXPECT_EQ(refusal(in_blocks(with_experts("mixtral"), 4), {.tp = 2}),
            "unsupported: load plainly: a cut falls inside a block of scales\n"
            "  tensor  model.layers.0.self_attn.q_proj.weight\n"
            "  from  0\n  to  6\n  of  12\n  block  4");
  // Gate ends inside a block of the parameter that up is in too.
  EXPECT_EQ(refusal(in_blocks(with_experts("mixtral"), 3), {}),
            "unsupported: load plainly: a cut falls inside a block of scales\n"
            "  tensor  model.layers.0.block_sparse_moe.experts.0.w1.weight\n"
            "  from  0\n  to  8\n  of  16\n  block  3");
  Json other = with_experts("mixtral");
  other["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_EQ(refusal(other, {}),
            "unsupported: read config plainly: it is not quantised in float8 blocks\n"
            "  key  quantization_config");
}

// -- Stages --------------------------------------------------------------------------------------

TEST(PlainParameters, stages_split_evenly_and_those_before_the_last_take_the_remainder) {
  const auto sizes = [](std::int64_t layers, int pp) {
    Numbers counts;
    std::int64_t next = 0;
    for (int rank = 0; rank < pp; ++rank) {
      const PlainStage stage = plain_stage(layers, {.pp = pp, .pp_rank = rank});
      EXPECT_EQ(stage.first, next);
      next = stage.last;
      counts.push_back(stage.last - stage.first);
    }
    EXPECT_EQ(next, layers);
    return counts;
  };
  EXPECT_EQ(sizes(8, 3), (Numbers{3, 3, 2}));
  EXPECT_EQ(sizes(7, 3), (Numbers{2, 3, 2}));
  EXPECT_EQ(sizes(61, 4), (Numbers{15, 15, 16, 15}));
  EXPECT_EQ(sizes(6, 2), (Numbers{3, 3}));
  EXPECT_EQ(sizes(3, 2), (Numbers{2, 1}));
  EXPECT_EQ(sizes(5, 1), (Numbers{5}));
  EXPECT_EQ(sizes(1, 2), (Numbers{1, 0}));
}

TEST(PlainParameters, the_first_stage_embeds_and_the_last_has_norm_and_head) {
  Json config = with_experts("mixtral");
  config["num_hidden_layers"] = 4;
  const auto layer = [&](int number) {
    std::string text;
    for (const char* rest :
         {"self_attn.qkv_proj.weight [24, 10]", "self_attn.o_proj.weight [10, 12]",
          "block_sparse_moe.gate.weight [5, 10]",
          "block_sparse_moe.experts.routed_experts.w13_weight [5, 16, 10]",
          "block_sparse_moe.experts.routed_experts.w2_weight [5, 10, 8]",
          "input_layernorm.weight [10]", "post_attention_layernorm.weight [10]"}) {
      text += fmt::format("model.layers.{}.{}\n", number, rest);
    }
    return text;
  };
  const auto stage = [&](int rank) {
    return list_of(parameters_of(config, {.pp = 3, .pp_rank = rank}));
  };
  EXPECT_EQ(stage(0), "model.embed_tokens.weight [128, 10]\n" + layer(0));
  EXPECT_EQ(stage(1), layer(1) + layer(2));
  const std::string norm = "model.norm.weight [10]\n";
  EXPECT_EQ(stage(2), layer(3) + norm + "lm_head.weight [128, 10]\n");
  config["tie_word_embeddings"] = true;
  EXPECT_EQ(stage(0), "model.embed_tokens.weight [128, 10]\n" + layer(0));
  EXPECT_EQ(stage(1), layer(1) + layer(2));
  EXPECT_EQ(stage(2), "model.embed_tokens.weight [128, 10]\n" + layer(3) + norm +
                          "lm_head.weight [128, 10] = model.embed_tokens.weight\n");
}

// -- Specs ---------------------------------------------------------------------------------------

TEST(PlainMesh, a_rank_stands_where_the_written_order_says) {
  const PlainEngine engine =
      plain_engine_of_rank(parse_spec("tp=2,experts=linear,pp=3,replicas=2,dp=2"), 13);
  // 13 is 1, 0, 1, 1 in the mixed radix 3, 2, 2 under tp.
  EXPECT_EQ(std::pair(engine.tp, engine.tp_rank), std::pair(2, 1));
  EXPECT_EQ(std::pair(engine.pp, engine.pp_rank), std::pair(3, 0));
  EXPECT_EQ(std::pair(engine.dp, engine.dp_rank), std::pair(2, 1));
  EXPECT_EQ(engine.spread, PlainSpread::linear);
  EXPECT_EQ(plain_engine_of_rank(parse_spec("experts=round_robin,tp=2"), 1).spread,
            PlainSpread::round_robin);
  EXPECT_EQ(plain_engine_of_rank(parse_spec("tp=2"), 1).spread, PlainSpread::cut);
}

// -- Errors --------------------------------------------------------------------------------------

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "no error";
}

TEST(PlainParameters, errors_name_what_is_wrong) {
  const auto build = [](const Json& config, const PlainEngine& engine) {
    return error_of([&] { parameters_of(config, engine); });
  };
  EXPECT_EQ(build(with_experts("mixtral"), {.dp = 3}),
            "mismatch: load plainly: dp * tp does not divide this extent\n"
            "  extent  an expert's size\n"
            "  size  8\n"
            "  dp * tp  3");
  Json heads = with_experts("mixtral");
  heads["num_attention_heads"] = 6;
  heads["num_key_value_heads"] = 2;
  heads["vocab_size"] = 190;
  EXPECT_EQ(build(heads, {.tp = 3}),
            "mismatch: load plainly: tp neither divides KV heads nor they it\n"
            "  num_key_value_heads  2\n"
            "  tp  3");
  Json layers = with_experts("qwen3_moe");
  layers["mlp_only_layers"] = "none";
  EXPECT_EQ(build(layers, {}),
            "corrupt_file: read config plainly: it is no list of numbers\n"
            "  key  mlp_only_layers");
  Json latent = with_latent("deepseek_v3");
  latent.erase("v_head_dim");
  EXPECT_EQ(build(latent, {}),
            "corrupt_file: read config plainly: a number is missing or out of range\n"
            "  key  v_head_dim");
  EXPECT_EQ(error_of([] { plain_engine_of_rank(parse_spec("tp=2,experts=dealt"), 0); }),
            "invalid_argument: read engine mesh: experts are spread in no such way\n"
            "  spec  tp=2,experts=dealt\n"
            "  experts  dealt\n"
            "  known  linear, round_robin");
}

}  // namespace
}  // namespace crossmesh::cli
