// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/family.h"

#include <gtest/gtest.h>

#include "crossmesh/base/error.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

ModelConfig tiny_config(std::string model_type) {
  ModelConfig config;
  config.model_type = std::move(model_type);
  config.hidden = 6;
  config.intermediate = 7;
  config.layers = 1;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_size = 5;
  config.vocab = 9;
  return config;
}

std::string listing_of(const ModelConfig& config) {
  Catalog catalog;
  catalog.tensors = tensors_of(family_of(config), config);
  return explain(catalog);
}

TEST(Family, an_unknown_model_type_is_refused) {
  try {
    family_of(tiny_config("mamba2"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.text(), "find family: the family is not known\n  model_type  mamba2");
  }
}

TEST(Family, llama_has_biases_where_the_config_says) {
  ModelConfig config = tiny_config("llama");
  EXPECT_EQ(listing_of(config),
            "model.embed_tokens.weight  BF16  [9, 6]\n"
            "model.layers.0.input_layernorm.weight  BF16  [6]\n"
            "model.layers.0.self_attn.q_proj.weight  BF16  [10, 6]\n"
            "model.layers.0.self_attn.k_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.v_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.o_proj.weight  BF16  [6, 10]\n"
            "model.layers.0.post_attention_layernorm.weight  BF16  [6]\n"
            "model.layers.0.mlp.gate_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.up_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.down_proj.weight  BF16  [6, 7]\n"
            "model.norm.weight  BF16  [6]\n"
            "lm_head.weight  BF16  [9, 6]\n"
            "12 tensors, 432 elements, 864 bytes\n");
  config.attention_bias = config.mlp_bias = true;
  EXPECT_EQ(listing_of(config),
            "model.embed_tokens.weight  BF16  [9, 6]\n"
            "model.layers.0.input_layernorm.weight  BF16  [6]\n"
            "model.layers.0.self_attn.q_proj.weight  BF16  [10, 6]\n"
            "model.layers.0.self_attn.k_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.v_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.q_proj.bias  BF16  [10]\n"
            "model.layers.0.self_attn.k_proj.bias  BF16  [5]\n"
            "model.layers.0.self_attn.v_proj.bias  BF16  [5]\n"
            "model.layers.0.self_attn.o_proj.weight  BF16  [6, 10]\n"
            "model.layers.0.self_attn.o_proj.bias  BF16  [6]\n"
            "model.layers.0.post_attention_layernorm.weight  BF16  [6]\n"
            "model.layers.0.mlp.gate_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.up_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.gate_proj.bias  BF16  [7]\n"
            "model.layers.0.mlp.up_proj.bias  BF16  [7]\n"
            "model.layers.0.mlp.down_proj.weight  BF16  [6, 7]\n"
            "model.layers.0.mlp.down_proj.bias  BF16  [6]\n"
            "model.norm.weight  BF16  [6]\n"
            "lm_head.weight  BF16  [9, 6]\n"
            "19 tensors, 478 elements, 956 bytes\n");
}

TEST(Family, qwen2_always_has_biases_on_q_k_and_v) {
  EXPECT_EQ(listing_of(tiny_config("qwen2")),
            "model.embed_tokens.weight  BF16  [9, 6]\n"
            "model.layers.0.input_layernorm.weight  BF16  [6]\n"
            "model.layers.0.self_attn.q_proj.weight  BF16  [10, 6]\n"
            "model.layers.0.self_attn.k_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.v_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.q_proj.bias  BF16  [10]\n"
            "model.layers.0.self_attn.k_proj.bias  BF16  [5]\n"
            "model.layers.0.self_attn.v_proj.bias  BF16  [5]\n"
            "model.layers.0.self_attn.o_proj.weight  BF16  [6, 10]\n"
            "model.layers.0.post_attention_layernorm.weight  BF16  [6]\n"
            "model.layers.0.mlp.gate_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.up_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.down_proj.weight  BF16  [6, 7]\n"
            "model.norm.weight  BF16  [6]\n"
            "lm_head.weight  BF16  [9, 6]\n"
            "15 tensors, 452 elements, 904 bytes\n");
}

TEST(Family, qwen3_has_head_norms_and_a_tied_checkpoint_has_no_lm_head) {
  ModelConfig config = tiny_config("qwen3");
  config.tied_embeddings = true;
  EXPECT_EQ(listing_of(config),
            "model.embed_tokens.weight  BF16  [9, 6]\n"
            "model.layers.0.input_layernorm.weight  BF16  [6]\n"
            "model.layers.0.self_attn.q_proj.weight  BF16  [10, 6]\n"
            "model.layers.0.self_attn.k_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.v_proj.weight  BF16  [5, 6]\n"
            "model.layers.0.self_attn.q_norm.weight  BF16  [5]\n"
            "model.layers.0.self_attn.k_norm.weight  BF16  [5]\n"
            "model.layers.0.self_attn.o_proj.weight  BF16  [6, 10]\n"
            "model.layers.0.post_attention_layernorm.weight  BF16  [6]\n"
            "model.layers.0.mlp.gate_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.up_proj.weight  BF16  [7, 6]\n"
            "model.layers.0.mlp.down_proj.weight  BF16  [6, 7]\n"
            "model.norm.weight  BF16  [6]\n"
            "13 tensors, 388 elements, 776 bytes\n");
}

TEST(Family, mistral_has_the_tensors_of_llama) {
  ModelConfig config = tiny_config("llama");
  config.layers = 2;
  const std::string llama = listing_of(config);
  config.model_type = "mistral";
  EXPECT_EQ(listing_of(config), llama);
}

TEST(Family, mixtures_list_experts_side_by_side_and_prediction_layers_last) {
  ModelConfig deepseek = parse_config(test_data("configs/small-deepseek-v3.json"));
  deepseek.layers = 1;
  deepseek.experts = 2;
  deepseek.sparse_layer = {false, true};
  ModelConfig mixtral = parse_config(test_data("configs/small-mixtral.json"));
  mixtral.layers = 1;
  mixtral.experts = 2;
  ModelConfig qwen3 = parse_config(test_data("configs/small-qwen3-moe.json"));
  qwen3.layers = 2;
  qwen3.experts = 1;
  std::string text;
  for (const ModelConfig& config : {deepseek, mixtral, qwen3}) {
    text += config.model_type + "\n" + listing_of(config);
  }
  expect_golden("tensors_of_mixtures.txt", text);
}

TEST(Family, experts_may_be_stacked_in_two_tensors) {
  for (const char* family : {"mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3"}) {
    ModelConfig config = parse_config(test_data(std::string("configs/small-") + family + ".json"));
    config.scale_block = 128;
    std::string text;
    for (const TensorInfo& tensor : tensors_of(family_of(config, ExpertForm::stacked), config)) {
      const bool is_first = tensor.name.find(".2.") != std::string::npos;
      if (!is_first || tensor.name.find("mlp.") == std::string::npos) continue;
      if (tensor.name.find("shared") != std::string::npos) continue;
      if (tensor.name.find("correction") != std::string::npos) continue;
      text += fmt::format("{} {} [{}]\n", tensor.name, name_of(tensor.dtype),
                          fmt::join(tensor.shape, ", "));
    }
    const std::int64_t e = config.experts, i = config.expert_intermediate, h = config.hidden;
    const std::string mlp = "model.layers.2.mlp.";
    EXPECT_EQ(text, fmt::format("{0}gate.weight BF16 [{1}, {3}]\n"
                                "{0}experts.gate_up_proj F8_E4M3 [{1}, {4}, {3}]\n"
                                "{0}experts.gate_up_proj_scale_inv F32 [{1}, 2, 1]\n"
                                "{0}experts.down_proj F8_E4M3 [{1}, {3}, {2}]\n"
                                "{0}experts.down_proj_scale_inv F32 [{1}, 1, 1]\n",
                                mlp, e, i, h, 2 * i));
  }
  const ModelConfig dense = tiny_config("llama");
  EXPECT_EQ(&family_of(dense, ExpertForm::stacked), &family_of(dense));
}

std::string form_of(const ModelConfig& config, std::vector<TensorInfo> tensors) {
  try {
    return expert_form_of(config, {std::move(tensors)}) == ExpertForm::each ? "each" : "stacked";
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
}

TEST(Family, the_form_of_a_checkpoint_is_found_or_refused) {
  const ModelConfig config = parse_config(test_data("configs/small-deepseek-v3.json"));
  const std::vector<TensorInfo> each = tensors_of(family_of(config), config);
  const std::vector<TensorInfo> stacked =
      tensors_of(family_of(config, ExpertForm::stacked), config);
  EXPECT_EQ(form_of(config, each), "each");
  EXPECT_EQ(form_of(config, stacked), "stacked");
  EXPECT_EQ(form_of(tiny_config("llama"), {}), "each");
  EXPECT_EQ(form_of(config, {}),
            "mismatch: find experts: the checkpoint has none of them\n"
            "  missing  model.layers.1.mlp.experts.0.gate_proj.weight\n"
            "  or  model.layers.1.mlp.experts.gate_up_proj");
  std::vector<TensorInfo> both = stacked;
  both.push_back({"model.layers.3.mlp.experts.5.down_proj.weight", DType::bf16, {40, 12}});
  EXPECT_EQ(form_of(config, both),
            "mismatch: find experts: the checkpoint has them twice\n"
            "  one by one  model.layers.3.mlp.experts.5.down_proj.weight\n"
            "  stacked  model.layers.1.mlp.experts.gate_up_proj");
  // Those of a layer that predicts further tokens do not count.
  both.back().name = "model.layers.4.mlp.experts.5.down_proj.weight";
  EXPECT_EQ(form_of(config, both), "stacked");
}

TEST(Family, published_models_have_as_many_tensors_as_their_checkpoints) {
  ModelConfig config = tiny_config("llama");
  config.layers = 80;
  EXPECT_EQ(tensors_of(family_of(config), config).size(), 723U);
  config = tiny_config("qwen3");
  config.layers = 28;
  config.tied_embeddings = true;
  EXPECT_EQ(tensors_of(family_of(config), config).size(), 310U);
  config = parse_config(test_data("configs/qwen3-30b-a3b.json"));
  EXPECT_EQ(tensors_of(family_of(config), config).size(), 18867U);
}

}  // namespace
}  // namespace crossmesh
