// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_loader.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Bytes = std::vector<std::byte>;
using Json = nlohmann::json;

// hidden 64, 8 heads of 16, 2 KV heads, intermediate 24, vocabulary 100.
Json small_config(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 64},        {"intermediate_size", 24},
          {"num_hidden_layers", 1},   {"num_attention_heads", 8}, {"num_key_value_heads", 2},
          {"head_dim", 16},           {"vocab_size", 100}};
}

PlainLoader loader_of(const Json& config, int tp, int tp_rank, DType dtype = DType::f32) {
  const std::string text = config.dump();
  return PlainLoader({.config_json = text, .tp = tp, .tp_rank = tp_rank, .dtype = dtype});
}

std::size_t size_of(const std::vector<std::int64_t>& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

// f32 tensors whose elements are `1000000 * tensor's number + flat index`, all exact.
class CountingCheckpoint {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    number_by_name_[name] = static_cast<int>(number_by_name_.size()) + 1;
    tensors_[name] = {DType::f32, std::move(shape)};
  }

  float element(const std::string& name, std::int64_t index) const {
    return static_cast<float>(1'000'000 * number_by_name_.at(name) + index);
  }

  // Valid while this lives.
  PlainCheckpoint checkpoint() const {
    return {tensors_, [this](std::string_view tensor, std::int64_t first_row,
                             std::int64_t row_count, std::span<std::byte> rows) {
              const auto& shape = tensors_.find(tensor)->second.shape;
              const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
              ASSERT_LE(first_row + row_count, shape[0]);
              ASSERT_EQ(rows.size(), static_cast<std::size_t>(row_count * columns) * sizeof(float));
              for (std::int64_t i = 0; i < row_count * columns; ++i) {
                const float value = element(std::string(tensor), first_row * columns + i);
                std::memcpy(rows.data() + static_cast<std::size_t>(i) * sizeof value, &value,
                            sizeof value);
              }
            }};
  }

 private:
  std::map<std::string, int> number_by_name_;
  std::map<std::string, PlainTensor, std::less<>> tensors_;
};

const PlainParameter& parameter_of(const PlainLoader& loader, std::string_view name) {
  for (const PlainParameter& parameter : loader.parameters()) {
    if (parameter.name == name) return parameter;
  }
  throw std::out_of_range(std::string(name));
}

// The parameter with every one of its tensors loaded over poison.
std::vector<float> load_all(const PlainLoader& loader, std::string_view parameter,
                            const PlainCheckpoint& checkpoint) {
  std::vector<float> values(size_of(parameter_of(loader, parameter).shape), -1.0f);
  for (const std::string& tensor : loader.tensors_of(parameter)) {
    loader.load(parameter, tensor, checkpoint, std::as_writable_bytes(std::span(values)));
  }
  return values;
}

// Rows [first, first + count) of a counting tensor with `columns` columns, appended.
void append_rows(std::vector<float>& values, const CountingCheckpoint& tensors,
                 const std::string& name, std::int64_t columns, std::int64_t first,
                 std::int64_t count) {
  for (std::int64_t i = first * columns; i < (first + count) * columns; ++i) {
    values.push_back(tensors.element(name, i));
  }
}

constexpr const char* kAttention = "model.layers.0.self_attn.";
constexpr const char* kMlp = "model.layers.0.mlp.";

std::string attention(const char* rest) { return std::string(kAttention) + rest; }
std::string mlp(const char* rest) { return std::string(kMlp) + rest; }

CountingCheckpoint qkv_tensors() {
  CountingCheckpoint tensors;
  tensors.add(attention("q_proj.weight"), {128, 64});
  tensors.add(attention("k_proj.weight"), {32, 64});
  tensors.add(attention("v_proj.weight"), {32, 64});
  return tensors;
}

TEST(PlainLoader, fuses_q_k_v_and_repeats_kv_heads_where_tp_exceeds_them) {
  CountingCheckpoint tensors = qkv_tensors();
  for (int rank = 0; rank < 4; ++rank) {
    const PlainLoader loader = loader_of(small_config("llama"), 4, rank);
    const std::string name = attention("qkv_proj.weight");
    EXPECT_EQ(parameter_of(loader, name).shape, (std::vector<std::int64_t>{64, 64}));
    std::vector<float> expected;
    append_rows(expected, tensors, attention("q_proj.weight"), 64, 32 * rank, 32);
    append_rows(expected, tensors, attention("k_proj.weight"), 64, 16 * (rank / 2), 16);
    append_rows(expected, tensors, attention("v_proj.weight"), 64, 16 * (rank / 2), 16);
    EXPECT_EQ(load_all(loader, name, tensors.checkpoint()), expected) << rank;
  }
}

TEST(PlainLoader, splits_kv_heads_where_tp_does_not_exceed_them) {
  CountingCheckpoint tensors = qkv_tensors();
  for (int rank = 0; rank < 2; ++rank) {
    const PlainLoader loader = loader_of(small_config("qwen3"), 2, rank);
    std::vector<float> expected;
    append_rows(expected, tensors, attention("q_proj.weight"), 64, 64 * rank, 64);
    append_rows(expected, tensors, attention("k_proj.weight"), 64, 16 * rank, 16);
    append_rows(expected, tensors, attention("v_proj.weight"), 64, 16 * rank, 16);
    EXPECT_EQ(load_all(loader, attention("qkv_proj.weight"), tensors.checkpoint()), expected)
        << rank;
  }
}

TEST(PlainLoader, fuses_biases_as_their_weights) {
  CountingCheckpoint tensors;
  tensors.add(attention("q_proj.bias"), {128});
  tensors.add(attention("k_proj.bias"), {32});
  tensors.add(attention("v_proj.bias"), {32});
  const PlainLoader loader = loader_of(small_config("qwen2"), 4, 3);
  std::vector<float> expected;
  append_rows(expected, tensors, attention("q_proj.bias"), 1, 96, 32);
  append_rows(expected, tensors, attention("k_proj.bias"), 1, 16, 16);
  append_rows(expected, tensors, attention("v_proj.bias"), 1, 16, 16);
  EXPECT_EQ(load_all(loader, attention("qkv_proj.bias"), tensors.checkpoint()), expected);
}

TEST(PlainLoader, puts_gate_before_up_on_each_rank) {
  Json config = small_config("mistral");
  config["hidden_size"] = 8;
  CountingCheckpoint tensors;
  tensors.add(mlp("gate_proj.weight"), {24, 8});
  tensors.add(mlp("up_proj.weight"), {24, 8});
  const PlainLoader loader = loader_of(config, 2, 1);
  EXPECT_EQ(parameter_of(loader, mlp("gate_up_proj.weight")).shape,
            (std::vector<std::int64_t>{24, 8}));
  std::vector<float> expected;
  append_rows(expected, tensors, mlp("gate_proj.weight"), 8, 12, 12);
  append_rows(expected, tensors, mlp("up_proj.weight"), 8, 12, 12);
  EXPECT_EQ(load_all(loader, mlp("gate_up_proj.weight"), tensors.checkpoint()), expected);
}

TEST(PlainLoader, cuts_down_on_its_input_dimension) {
  CountingCheckpoint tensors;
  tensors.add(mlp("down_proj.weight"), {64, 24});
  const PlainLoader loader = loader_of(small_config("llama"), 2, 1);
  std::vector<float> expected;
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t column = 12; column < 24; ++column) {
      expected.push_back(tensors.element(mlp("down_proj.weight"), row * 24 + column));
    }
  }
  EXPECT_EQ(load_all(loader, mlp("down_proj.weight"), tensors.checkpoint()), expected);
}

TEST(PlainLoader, splits_the_padded_vocabulary_and_zeroes_the_padding) {
  Json config = small_config("llama");
  config["hidden_size"] = 4;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    CountingCheckpoint tensors;
    tensors.add(name, {100, 4});
    std::vector<float> first;
    append_rows(first, tensors, name, 4, 0, 64);
    EXPECT_EQ(load_all(loader_of(config, 2, 0), name, tensors.checkpoint()), first);
    std::vector<float> second;
    append_rows(second, tensors, name, 4, 64, 36);
    second.resize(256, 0.0f);
    EXPECT_EQ(load_all(loader_of(config, 2, 1), name, tensors.checkpoint()), second);
    // 32 rows per rank: the last of four holds 4 rows of the 100.
    std::vector<float> last;
    append_rows(last, tensors, name, 4, 96, 4);
    last.resize(128, 0.0f);
    EXPECT_EQ(load_all(loader_of(config, 4, 3), name, tensors.checkpoint()), last);
  }
}

TEST(PlainLoader, a_rank_may_hold_nothing_but_vocabulary_padding) {
  Json config = small_config("llama");
  config["vocab_size"] = 65;
  CountingCheckpoint tensors;
  tensors.add("lm_head.weight", {65, 64});
  EXPECT_EQ(load_all(loader_of(config, 4, 3), "lm_head.weight", tensors.checkpoint()),
            std::vector<float>(32 * 64, 0.0f));
}

std::string list_of(const PlainLoader& loader) {
  std::string text;
  for (const PlainParameter& parameter : loader.parameters()) {
    text += fmt::format("{} [{}]", parameter.name, fmt::join(parameter.shape, ", "));
    if (parameter.storage != parameter.name) text += " = " + parameter.storage;
    text += "\n";
  }
  return text;
}

TEST(PlainLoader, lists_the_parameters_of_a_rank) {
  Json llama = small_config("llama");
  llama["attention_bias"] = true;
  llama["mlp_bias"] = true;
  EXPECT_EQ(list_of(loader_of(llama, 4, 0)),
            "model.embed_tokens.weight [32, 64]\n"
            "model.layers.0.self_attn.qkv_proj.weight [64, 64]\n"
            "model.layers.0.self_attn.qkv_proj.bias [64]\n"
            "model.layers.0.self_attn.o_proj.weight [64, 32]\n"
            "model.layers.0.self_attn.o_proj.bias [64]\n"
            "model.layers.0.mlp.gate_up_proj.weight [12, 64]\n"
            "model.layers.0.mlp.gate_up_proj.bias [12]\n"
            "model.layers.0.mlp.down_proj.weight [64, 6]\n"
            "model.layers.0.mlp.down_proj.bias [64]\n"
            "model.layers.0.input_layernorm.weight [64]\n"
            "model.layers.0.post_attention_layernorm.weight [64]\n"
            "model.norm.weight [64]\n"
            "lm_head.weight [32, 64]\n");
  Json qwen3 = small_config("qwen3");
  qwen3["tie_word_embeddings"] = true;
  EXPECT_EQ(list_of(loader_of(qwen3, 1, 0)),
            "model.embed_tokens.weight [128, 64]\n"
            "model.layers.0.self_attn.qkv_proj.weight [192, 64]\n"
            "model.layers.0.self_attn.o_proj.weight [64, 128]\n"
            "model.layers.0.self_attn.q_norm.weight [16]\n"
            "model.layers.0.self_attn.k_norm.weight [16]\n"
            "model.layers.0.mlp.gate_up_proj.weight [48, 64]\n"
            "model.layers.0.mlp.down_proj.weight [64, 24]\n"
            "model.layers.0.input_layernorm.weight [64]\n"
            "model.layers.0.post_attention_layernorm.weight [64]\n"
            "model.norm.weight [64]\n"
            "lm_head.weight [128, 64] = model.embed_tokens.weight\n");
}

TEST(PlainLoader, qwen2_biases_q_k_v_and_nothing_else) {
  Json config = small_config("qwen2");
  config.erase("head_dim");
  config["hidden_size"] = 128;
  std::vector<std::string> biases;
  const PlainLoader loader = loader_of(config, 1, 0);
  for (const PlainParameter& parameter : loader.parameters()) {
    if (parameter.name.ends_with(".bias")) biases.push_back(parameter.name);
  }
  EXPECT_EQ(biases, std::vector<std::string>{attention("qkv_proj.bias")});
}

// -- Comparing -----------------------------------------------------------------------------------

TEST(PlainLoader, compare_finds_any_one_wrong_element_and_checks_all_of_them) {
  Json config = small_config("llama");
  config["hidden_size"] = 4;
  CountingCheckpoint tensors;
  tensors.add("lm_head.weight", {100, 4});
  tensors.add(mlp("down_proj.weight"), {4, 24});
  const PlainLoader loader = loader_of(config, 2, 1);
  for (const std::string& name : {std::string("lm_head.weight"), mlp("down_proj.weight")}) {
    const std::vector<float> right = load_all(loader, name, tensors.checkpoint());
    const auto count = static_cast<std::int64_t>(right.size());
    for (std::int64_t wrong = -1; wrong < count; ++wrong) {
      std::vector<float> actual = right;
      if (wrong >= 0) actual[static_cast<std::size_t>(wrong)] += 0.5f;
      const PlainComparison result =
          loader.compare(name, tensors.checkpoint(), std::as_bytes(std::span(actual)));
      EXPECT_EQ(result.elements_checked, count);
      EXPECT_EQ(result.first_different, wrong);
      const bool is_padding = name == "lm_head.weight" && wrong >= 36 * 4;
      EXPECT_EQ(result.tensor, wrong < 0 || is_padding ? "" : name);
    }
  }
}

TEST(PlainLoader, compare_sees_gate_and_up_swapped) {
  CountingCheckpoint tensors;
  tensors.add(mlp("gate_proj.weight"), {24, 64});
  tensors.add(mlp("up_proj.weight"), {24, 64});
  const PlainLoader loader = loader_of(small_config("llama"), 2, 0);
  std::vector<float> values = load_all(loader, mlp("gate_up_proj.weight"), tensors.checkpoint());
  std::swap_ranges(values.begin(), values.begin() + 12 * 64, values.begin() + 12 * 64);
  const PlainComparison result = loader.compare(mlp("gate_up_proj.weight"), tensors.checkpoint(),
                                                std::as_bytes(std::span(values)));
  EXPECT_EQ(result.first_different, 0);
  EXPECT_EQ(result.tensor, mlp("gate_proj.weight"));
}

// Tensors larger than one chunk of the reader.
TEST(PlainLoader, long_tensors_are_loaded_and_compared_in_chunks) {
  Json config = small_config("llama");
  config["vocab_size"] = 4000;
  CountingCheckpoint tensors;
  tensors.add("lm_head.weight", {4000, 64});
  const PlainLoader loader = loader_of(config, 1, 0);
  std::vector<float> expected;
  append_rows(expected, tensors, "lm_head.weight", 64, 0, 4000);
  expected.resize(4032 * 64, 0.0f);
  std::vector<float> actual = load_all(loader, "lm_head.weight", tensors.checkpoint());
  EXPECT_EQ(actual, expected);
  actual[3999 * 64 + 5] = 0.0f;
  const PlainComparison result =
      loader.compare("lm_head.weight", tensors.checkpoint(), std::as_bytes(std::span(actual)));
  EXPECT_EQ(result.elements_checked, 4032 * 64);
  EXPECT_EQ(result.first_different, 3999 * 64 + 5);
}

TEST(PlainLoader, casts_to_the_parameters_dtype_and_takes_any_nan_for_another) {
  const std::vector<float> norm = {1.0f, 1.00390625f, 3.0e38f, std::nanf("")};
  Json config = small_config("llama");
  config["hidden_size"] = 4;
  const PlainLoader loader = loader_of(config, 1, 0, DType::bf16);
  const PlainCheckpoint checkpoint = whole_tensor_in_memory("model.norm.weight", {DType::f32, {4}},
                                                            std::as_bytes(std::span(norm)));
  std::vector<std::uint16_t> bits(4);
  loader.load("model.norm.weight", "model.norm.weight", checkpoint,
              std::as_writable_bytes(std::span(bits)));
  EXPECT_EQ(bits, (std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x7f62, 0x7fc0}));
  bits[3] = 0xff81;
  EXPECT_EQ(loader.compare("model.norm.weight", checkpoint, std::as_bytes(std::span(bits)))
                .first_different,
            -1);
  bits[1] = 0x3f81;
  EXPECT_EQ(loader.compare("model.norm.weight", checkpoint, std::as_bytes(std::span(bits)))
                .first_different,
            1);
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

TEST(PlainLoader, errors_name_what_is_wrong) {
  const auto build = [](const Json& config, int tp) {
    return error_of([&] { loader_of(config, tp, 0); });
  };
  EXPECT_EQ(error_of([] { PlainLoader({.config_json = "{"}); }),
            "corrupt_file: read config plainly: it is not a JSON object with a model_type");
  EXPECT_EQ(build(small_config("gpt2"), 1),
            "unsupported: read config plainly: the plain loader lacks this model\n"
            "  model_type  gpt2\n"
            "  hint  known are llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v2, "
            "deepseek_v3, kimi_k2");
  Json without_layers = small_config("llama");
  without_layers.erase("num_hidden_layers");
  EXPECT_EQ(build(without_layers, 1),
            "corrupt_file: read config plainly: a number is missing or out of range\n"
            "  key  num_hidden_layers");
  EXPECT_EQ(build(small_config("llama"), 16),
            "mismatch: load plainly: tp does not divide this extent\n"
            "  extent  num_attention_heads\n"
            "  size  8\n"
            "  tp  16");
  const PlainLoader loader = loader_of(small_config("llama"), 1, 0);
  CountingCheckpoint tensors;
  tensors.add("model.norm.weight", {65});
  std::vector<float> values(128 * 64);
  const auto load = [&](const char* name, std::size_t size) {
    return error_of([&] {
      loader.load(name, name, tensors.checkpoint(),
                  std::as_writable_bytes(std::span(values).first(size)));
    });
  };
  EXPECT_EQ(load("model.norm.weight", 64),
            "mismatch: load plainly: a tensor has another shape\n"
            "  tensor  model.norm.weight\n"
            "  shape  [65]\n"
            "  expected  [64]");
  EXPECT_EQ(load("lm_head.weight", 128 * 64),
            "mismatch: load plainly: the checkpoint lacks a tensor\n"
            "  tensor  lm_head.weight");
  EXPECT_EQ(load("model.norm.weight", 63),
            "mismatch: load plainly: the memory is not the parameter's size\n"
            "  parameter  model.norm.weight\n"
            "  bytes  252\n"
            "  shape  [64]\n"
            "  expected bytes  256");
  EXPECT_EQ(load("model.norm.bias", 64),
            "invalid_argument: load plainly: the engine has no such parameter\n"
            "  parameter  model.norm.bias");
}

}  // namespace
}  // namespace crossmesh::cli
