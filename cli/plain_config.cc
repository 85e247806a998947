// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;

struct Bounds {
  std::int64_t least = 1;
  std::optional<std::int64_t> fallback;  // of a key that is absent or null
};

std::int64_t number(const Json& config, const char* key, Bounds bounds = {}) {
  const auto found = config.find(key);
  if ((found == config.end() || found->is_null()) && bounds.fallback) return *bounds.fallback;
  if (found == config.end() || !found->is_number_integer() ||
      found->get<std::int64_t>() < bounds.least ||
      found->get<std::int64_t>() > std::int64_t{1} << 31) {
    throw Error(ErrorCode::corrupt_file, "read config plainly: a number is missing or out of range")
        .with("key", key);
  }
  return found->get<std::int64_t>();
}

bool flag(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && found->get<bool>();
}

bool is_word(const Json& config, const char* key, const char* word) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() && found->get<std::string>() == word;
}

std::vector<std::int64_t> numbers(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  const bool whole = found->is_array() && std::all_of(found->begin(), found->end(), [](auto& one) {
                       return one.is_number_integer();
                     });
  if (whole) return found->get<std::vector<std::int64_t>>();
  throw Error(ErrorCode::corrupt_file, "read config plainly: it is no list of numbers")
      .with("key", key);
}

PlainLatent read_latent(const Json& config) {
  return {.query_rank = number(config, "q_lora_rank", {.fallback = 0}),
          .key_value_rank = number(config, "kv_lora_rank"),
          .unrotated = number(config, "qk_nope_head_dim"),
          .rotated = number(config, "qk_rope_head_dim"),
          .value = number(config, "v_head_dim")};
}

// Hugging Face writes the number of experts under either name.
std::int64_t count_experts(const Json& config) {
  const auto found = config.find("num_experts");
  const bool named = found != config.end() && !found->is_null();
  return number(config, named ? "num_experts" : "num_local_experts");
}

PlainExperts read_experts(const Json& config, const std::string& model) {
  PlainExperts experts;
  if (model == "mixtral") {
    experts.count = count_experts(config);
    experts.intermediate = number(config, "intermediate_size");
  } else if (model == "qwen3_moe") {
    experts.count = count_experts(config);
    experts.intermediate = number(config, "moe_intermediate_size");
    experts.every = number(config, "decoder_sparse_step", {.fallback = 1});
    experts.shift = 1;
    experts.dense_layers = numbers(config, "mlp_only_layers");
  } else {
    const bool is_second = model == "deepseek_v2";
    experts.count = number(config, "n_routed_experts", {.fallback = 0});
    if (experts.count == 0) return experts;
    experts.intermediate = number(config, "moe_intermediate_size");
    experts.shared_intermediate =
        experts.intermediate * number(config, "n_shared_experts", {.least = 0, .fallback = 0});
    experts.groups = number(config, "n_group", {.fallback = is_second ? 1 : 8});
    experts.first_layer =
        number(config, "first_k_dense_replace", {.least = 0, .fallback = is_second ? 0 : 3});
    experts.every = number(config, "moe_layer_freq", {.fallback = 1});
    experts.has_correction_bias = is_word(config, "topk_method", "noaux_tc");
  }
  return experts;
}

std::int64_t read_scale_block(const Json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return 0;
  const std::vector<std::int64_t> block =
      found->is_object() ? numbers(*found, "weight_block_size") : std::vector<std::int64_t>{};
  const bool is_square = block.size() == 2 && block[0] == block[1] && block[0] > 0;
  if (is_square && is_word(*found, "quant_method", "fp8")) return block[0];
  throw Error(ErrorCode::unsupported, "read config plainly: it is not quantised in float8 blocks")
      .with("key", "quantization_config");
}

}  // namespace

PlainConfig read_plain_config(std::string_view config_json) {
  const Json config = Json::parse(config_json, nullptr, false);
  if (!config.is_object() || !config.contains("model_type") || !config["model_type"].is_string()) {
    throw Error(ErrorCode::corrupt_file,
                "read config plainly: it is not a JSON object with a model_type");
  }
  PlainConfig plain;
  plain.model = config["model_type"].get<std::string>();
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, plain.model) != names.end();
  };
  const bool is_llama = is({"llama", "mistral"});
  const bool is_latent = is({"deepseek_v2", "deepseek_v3", "kimi_k2"});
  if (!is_llama && !is_latent && !is({"qwen2", "qwen3", "qwen3_moe", "mixtral"})) {
    throw Error(ErrorCode::unsupported, "read config plainly: the plain loader lacks this model")
        .with("model_type", plain.model)
        .hint(
            "known are llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v2, "
            "deepseek_v3, kimi_k2");
  }
  plain.hidden = number(config, "hidden_size");
  plain.intermediate = number(config, "intermediate_size");
  plain.layers = number(config, "num_hidden_layers");
  plain.heads = number(config, "num_attention_heads");
  plain.vocabulary = number(config, "vocab_size");
  plain.tied = flag(config, "tie_word_embeddings");
  if (is_latent) {
    plain.latent = read_latent(config);
  } else {
    plain.kv_heads = number(config, "num_key_value_heads", {.fallback = plain.heads});
    plain.head =
        number(config, "head_dim", {.fallback = is({"qwen3"}) ? 128 : plain.hidden / plain.heads});
    plain.qkv_bias = is({"qwen2"}) || (!is({"mixtral"}) && flag(config, "attention_bias"));
    plain.o_bias = is_llama && flag(config, "attention_bias");
    plain.mlp_bias = is_llama && flag(config, "mlp_bias");
    plain.qk_norm = is({"qwen3", "qwen3_moe"});
  }
  if (is_latent || is({"mixtral", "qwen3_moe"})) {
    plain.experts = read_experts(config, plain.model);
  }
  plain.scale_block = read_scale_block(config);
  return plain;
}

bool has_experts(const PlainConfig& config, std::int64_t layer) {
  const PlainExperts& experts = config.experts;
  if (experts.count == 0 || layer < experts.first_layer) return false;
  if (std::ranges::find(experts.dense_layers, layer) != experts.dense_layers.end()) return false;
  return (layer + experts.shift) % experts.every == 0;
}

}  // namespace crossmesh::cli
