// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

std::string file_text(const std::string& name) {
  std::ifstream file(CROSSMESH_TEST_DATA "/configs/" + name);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string refusal_of(const std::string& text) {
  try {
    parse_config(text);
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "accepted";
}

// A config that is accepted, with more keys; a later key of the same name wins.
std::string config_with(const std::string& keys) {
  return R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100)" +
         keys + "}";
}

TEST(ParseConfig, reads_published_configs) {
  const ModelConfig llama = {
      "LlamaForCausalLM", "llama", DType::bf16, 8192, 28672, 80, 64, 8, 128, 128256};
  EXPECT_EQ(parse_config(file_text("llama-3.1-70b.json")), llama);
  ModelConfig qwen3 = {
      "Qwen3ForCausalLM", "qwen3", DType::bf16, 1024, 3072, 28, 16, 8, 128, 151936, true};
  EXPECT_EQ(parse_config(file_text("qwen3-0.6b.json")), qwen3);
  ModelConfig qwen2 = {
      "Qwen2ForCausalLM", "qwen2", DType::bf16, 1536, 8960, 28, 12, 2, 128, 151936, true};
  EXPECT_EQ(parse_config(file_text("qwen2.5-1.5b.json")), qwen2);
  ModelConfig small = {
      "LlamaForCausalLM", "llama", DType::bf16, 40, 56, 2, 4, 2, 10, 101, false, true, true};
  EXPECT_EQ(parse_config(file_text("small-llama.json")), small);
}

TEST(ParseConfig, absent_and_null_keys_take_their_defaults) {
  const ModelConfig expected = {"", "llama", DType::f32, 64, 96, 2, 8, 8, 8, 100};
  EXPECT_EQ(parse_config(config_with("")), expected);
  EXPECT_EQ(parse_config(config_with(
                R"(, "num_key_value_heads": null, "head_dim": null, "architectures": null,
                     "dtype": null, "torch_dtype": null, "tie_word_embeddings": null,
                     "attention_bias": null, "mlp_bias": null, "quantization_config": null)")),
            expected);
}

TEST(ParseConfig, reads_the_dtype_under_both_keys) {
  EXPECT_EQ(parse_config(config_with(R"(, "torch_dtype": "float16")")).dtype, DType::f16);
  EXPECT_EQ(parse_config(config_with(R"(, "dtype": "bfloat16")")).dtype, DType::bf16);
  EXPECT_EQ(parse_config(config_with(R"(, "dtype": "bfloat16", "torch_dtype": "float16")")).dtype,
            DType::bf16);
}

struct Refusal {
  std::string text;
  std::string expected;
};

TEST(ParseConfig, a_text_that_is_not_a_config_is_refused) {
  const std::string deep(200'000, '[');
  const Refusal kRefusals[] = {
      {"", "corrupt_file: read config: not valid JSON\n  byte  1"},
      {R"({"model_type": "llama")", "corrupt_file: read config: not valid JSON\n  byte  23"},
      {"\"\xff\"", "corrupt_file: read config: not valid JSON\n  byte  2"},
      {deep, "corrupt_file: read config: not valid JSON\n  byte  200001"},
      {R"({"hidden_size": 1e999})", "corrupt_file: read config: a number is out of range"},
      {"[]", "corrupt_file: read config: not a JSON object\n  found  array"},
      {"{}", "corrupt_file: read config: a key is missing\n  key  model_type"},
      {R"({"model_type": 3})",
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  model_type\n  value  3\n  wanted  a text"},
      {R"({"model_type": "llama"})",
       "corrupt_file: read config: a key is missing\n  key  hidden_size"},
      {config_with(R"(, "hidden_size": null)"),
       "corrupt_file: read config: a key is missing\n  key  hidden_size"},
      {config_with(R"(, "hidden_size": "64")"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  hidden_size\n  value  \"64\"\n  wanted  a whole number"},
      {config_with(R"(, "vocab_size": 100.5)"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  vocab_size\n  value  100.5\n  wanted  a whole number"},
      {config_with(R"(, "num_hidden_layers": [)" + std::string(99, '[') + std::string(99, ']') +
                   "]"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  num_hidden_layers\n  value  array\n  wanted  a whole number"},
      {config_with(R"(, "head_dim": ")" + std::string(1000, 'x') + "\""),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  head_dim\n  value  \"" +
           std::string(59, 'x') + "...\n  wanted  a whole number"},
      {config_with(R"(, "tie_word_embeddings": 1)"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  tie_word_embeddings\n  value  1\n  wanted  true or false"},
      {config_with(R"(, "architectures": "LlamaForCausalLM")"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  architectures\n  value  \"LlamaForCausalLM\"\n  wanted  a list of names"},
  };
  for (const Refusal& r : kRefusals) EXPECT_EQ(refusal_of(r.text), r.expected);
}

TEST(ParseConfig, impossible_numbers_are_refused) {
  const Refusal kRefusals[] = {
      {config_with(R"(, "hidden_size": 0)"),
       "mismatch: read config: a size is out of range\n"
       "  key  hidden_size\n  value  0\n  range  1 to 16777216"},
      {config_with(R"(, "num_attention_heads": -8)"),
       "mismatch: read config: a size is out of range\n"
       "  key  num_attention_heads\n  value  -8\n  range  1 to 16777216"},
      {config_with(R"(, "vocab_size": 18446744073709551615)"),
       "mismatch: read config: a size is out of range\n"
       "  key  vocab_size\n  value  18446744073709551615\n  range  1 to 16777216"},
      {config_with(R"(, "num_hidden_layers": 65537)"),
       "mismatch: read config: a size is out of range\n"
       "  key  num_hidden_layers\n  value  65537\n  range  1 to 65536"},
      {config_with(R"(, "num_key_value_heads": 3)"),
       "mismatch: read config: the KV heads do not divide the heads\n"
       "  num_attention_heads  8\n  num_key_value_heads  3"},
      {config_with(R"(, "num_key_value_heads": 16)"),
       "mismatch: read config: the KV heads do not divide the heads\n"
       "  num_attention_heads  8\n  num_key_value_heads  16"},
      {config_with(R"(, "hidden_size": 65)"),
       "mismatch: read config: the heads do not divide the hidden size\n"
       "  hidden_size  65\n  num_attention_heads  8\n"
       "  hint  a model with such heads gives its head_dim"},
      {config_with(R"(, "head_dim": 16777216)"),
       "mismatch: read config: the heads are too large\n"
       "  num_attention_heads  8\n  head_dim  16777216\n  product_max  16777216"},
  };
  for (const Refusal& r : kRefusals) EXPECT_EQ(refusal_of(r.text), r.expected);
}

TEST(ParseConfig, reads_what_a_mixture_is_made_of) {
  ModelConfig expected;
  expected.architecture = "DeepseekV3ForCausalLM";
  expected.model_type = "deepseek_v3";
  expected.hidden = 40;
  expected.intermediate = 56;
  expected.layers = 4;
  expected.heads = expected.kv_heads = 4;
  expected.head_size = 10;
  expected.vocab = 101;
  expected.experts = 6;
  expected.expert_intermediate = 12;
  expected.shared_experts = 1;
  expected.expert_groups = 3;
  expected.router_bias = true;
  expected.sparse_layer = {false, true, true, true, true};
  expected.prediction_layers = 1;
  expected.query_rank = 14;
  expected.latent = 10;
  expected.plain_head_size = 6;
  expected.rotary_head_size = 4;
  expected.value_head_size = 7;
  EXPECT_EQ(parse_config(file_text("small-deepseek-v3.json")), expected);
  expected.architecture = "DeepseekV2ForCausalLM";
  expected.model_type = "deepseek_v2";
  expected.layers = 3;
  expected.shared_experts = 2;
  expected.expert_groups = 1;
  expected.router_bias = false;
  expected.sparse_layer = {false, true, true};
  expected.prediction_layers = expected.query_rank = 0;
  EXPECT_EQ(parse_config(file_text("small-deepseek-v2.json")), expected);

  const ModelConfig qwen3 = parse_config(file_text("small-qwen3-moe.json"));
  EXPECT_EQ(qwen3.experts, 7);
  EXPECT_EQ(qwen3.expert_intermediate, 12);
  EXPECT_EQ(qwen3.sparse_layer, (std::vector<bool>{true, false, true, true}));
  const ModelConfig mixtral = parse_config(file_text("small-mixtral.json"));
  EXPECT_EQ(mixtral.experts, 6);
  EXPECT_EQ(mixtral.expert_intermediate, 24);
  EXPECT_EQ(mixtral.sparse_layer, std::vector<bool>(3, true));
}

TEST(ParseConfig, a_step_makes_every_so_many_layers_sparse) {
  const std::string experts = R"(, "model_type": "qwen3_moe", "num_experts": 4,
      "moe_intermediate_size": 8, "num_hidden_layers": 5)";
  EXPECT_EQ(parse_config(config_with(experts)).sparse_layer, std::vector<bool>(5, true));
  EXPECT_EQ(parse_config(config_with(experts + R"(, "decoder_sparse_step": 2)")).sparse_layer,
            (std::vector<bool>{false, true, false, true, false}));
}

TEST(ParseConfig, a_mixture_that_is_not_whole_is_refused) {
  const std::string qwen3 = R"(, "model_type": "qwen3_moe", "num_experts": 1000000)";
  const std::string deepseek = R"(, "model_type": "deepseek_v3")";
  const Refusal kRefusals[] = {
      {config_with(R"(, "model_type": "mixtral")"),
       "corrupt_file: read config: a key is missing\n  key  num_local_experts"},
      {config_with(qwen3),
       "mismatch: read config: too many experts\n"
       "  num_experts  1000000\n  layers  2\n  product_max  1048576"},
      {config_with(R"(, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 8,
                       "mlp_only_layers": 3)"),
       "corrupt_file: read config: a key is of the wrong kind\n"
       "  key  mlp_only_layers\n  value  3\n  wanted  a list of layers"},
      {config_with(deepseek), "corrupt_file: read config: a key is missing\n  key  q_lora_rank"},
      {config_with(deepseek + R"(, "q_lora_rank": null)"),
       "corrupt_file: read config: a key is missing\n  key  kv_lora_rank"},
      {config_with(deepseek + R"(, "q_lora_rank": 8, "kv_lora_rank": 8, "v_head_dim": 1,
                       "qk_nope_head_dim": 2, "qk_rope_head_dim": 16777216)"),
       "mismatch: read config: the heads are too large\n"
       "  num_attention_heads  8\n  head size  16777218\n  product_max  16777216"},
  };
  for (const Refusal& r : kRefusals) EXPECT_EQ(refusal_of(r.text), r.expected);
}

// A config that is accepted, quantised so.
std::string quantised(const std::string& quantisation) {
  return config_with(R"(, "model_type": "mixtral", "num_local_experts": 4,
      "quantization_config": {)" +
                     quantisation + "}");
}

TEST(ParseConfig, reads_float8_in_blocks) {
  const std::string block = R"("quant_method": "fp8", "weight_block_size": [128, 128])";
  EXPECT_EQ(
      parse_config(config_with(R"(, "model_type": "mixtral", "num_local_experts": 4)")).scale_block,
      0);
  EXPECT_EQ(parse_config(quantised(block)).scale_block, 128);
  EXPECT_EQ(parse_config(quantised(block + R"(, "fmt": "e4m3", "modules_to_not_convert":
      ["lm_head", "model.layers.0.input_layernorm", "model.layers.1.block_sparse_moe.gate"])"))
                .scale_block,
            128);
  EXPECT_EQ(parse_config(config_with(R"(, "quantization_config": {)" + block + "}")).scale_block,
            128);
}

TEST(ParseConfig, other_ways_to_quantise_are_refused) {
  const std::string stem =
      "unsupported: read config: the quantisation is not served\n  key  quantization_config\n";
  const std::string block = R"("quant_method": "fp8", "weight_block_size": [128, 128])";
  const Refusal kRefusals[] = {
      {quantised(R"("quant_method": "gptq", "bits": 4)"), stem + "  method  \"gptq\""},
      {quantised(R"("quant_method": "fp8")"),
       stem + "  method  \"fp8\"\n  weight_block_size  not given\n  known  [128,128]"},
      {quantised(R"("quant_method": "fp8", "weight_block_size": [1, 128])"),
       stem + "  method  \"fp8\"\n  weight_block_size  [1,128]\n  known  [128,128]"},
      {quantised(block + R"(, "fmt": "e5m2")"), stem + "  method  \"fp8\"\n  fmt  \"e5m2\""},
      {quantised(block + R"(, "modules_to_not_convert": ["model.layers.1.self_attn.o_proj"])"),
       "unsupported: read config: a linear weight is not quantised like others\n"
       "  key  modules_to_not_convert\n  module  \"model.layers.1.self_attn.o_proj\""},
      {quantised(block + R"(, "modules_to_not_convert":
           ["lm_head", "model.layers.1.block_sparse_moe.experts.3.w2"])"),
       "unsupported: read config: a linear weight is not quantised like others\n"
       "  key  modules_to_not_convert\n"
       "  module  \"model.layers.1.block_sparse_moe.experts.3.w2\""},
  };
  for (const Refusal& r : kRefusals) EXPECT_EQ(refusal_of(r.text), r.expected);
}

TEST(ParseConfig, a_model_that_is_not_served_is_refused) {
  const Refusal kRefusals[] = {
      {config_with(R"(, "model_type": "mamba2")"),
       "unsupported: read config: the family is not known\n"
       "  model_type  \"mamba2\"\n  known  llama, mistral, mixtral, qwen2, "
       "qwen3, qwen3_moe, deepseek_v2, deepseek_v3"},
      {config_with(R"(, "quantization_config": {"quant_method": "fp8"})"),
       "unsupported: read config: the quantisation is not served\n"
       "  key  quantization_config\n  method  \"fp8\"\n  weight_block_size  not given\n"
       "  known  [128,128]"},
      {config_with(R"(, "quantization_config": {})"),
       "unsupported: read config: the quantisation is not served\n"
       "  key  quantization_config\n  method  not given"},
      {config_with(R"(, "compression_config": {"quant_method": "compressed-tensors"})"),
       "unsupported: read config: the quantisation is not served\n"
       "  key  compression_config\n  method  \"compressed-tensors\""},
      {config_with(R"(, "torch_dtype": "int8")"),
       "unsupported: read config: the dtype is not served\n"
       "  key  torch_dtype\n  value  \"int8\"\n  known  float32, float16, bfloat16"},
      {config_with(R"(, "dtype": "float8_e4m3fn")"),
       "unsupported: read config: the dtype is not served\n"
       "  key  dtype\n  value  \"float8_e4m3fn\"\n  known  float32, float16, bfloat16"},
      {config_with(R"(, "architectures": ["LlamaForSequenceClassification"])"),
       "unsupported: read config: the architecture is not a language model\n"
       "  architecture  \"LlamaForSequenceClassification\"\n"
       "  known  names that end in ForCausalLM"},
  };
  for (const Refusal& r : kRefusals) EXPECT_EQ(refusal_of(r.text), r.expected);
}

}  // namespace
}  // namespace crossmesh
