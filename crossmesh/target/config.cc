// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/target/family.h"

namespace crossmesh {
namespace {

using Json = nlohmann::json;

// Long values are cut, and nested ones only named: an error text stays short whatever the file.
std::string short_text(const Json& value) {
  constexpr std::size_t kCharactersMax = 60;
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kCharactersMax) text = text.substr(0, kCharactersMax) + "...";
  return text;
}

Error wrong_kind(std::string_view key, const Json& value, std::string_view wanted) {
  return std::move(Error(ErrorCode::corrupt_file, "read config: a key is of the wrong kind")
                       .with("key", key)
                       .with("value", short_text(value))
                       .with("wanted", wanted));
}

// A key that is null counts as absent.
const Json* find(const Json& config, const char* key) {
  const auto at = config.find(key);
  return at == config.end() || at->is_null() ? nullptr : &*at;
}

const Json& require(const Json& config, const char* key) {
  const Json* value = find(config, key);
  if (value == nullptr) {
    throw Error(ErrorCode::corrupt_file, "read config: a key is missing").with("key", key);
  }
  return *value;
}

std::int64_t size_of(const Json& value, const char* key, std::int64_t size_max) {
  if (!value.is_number_integer()) throw wrong_kind(key, value, "a whole number");
  const bool fits = !value.is_number_unsigned() ||
                    value.get<std::uint64_t>() <= static_cast<std::uint64_t>(size_max);
  const std::int64_t size = fits ? value.get<std::int64_t>() : 0;
  if (size < 1 || size > size_max) {
    throw Error(ErrorCode::mismatch, "read config: a size is out of range")
        .with("key", key)
        .with("value", short_text(value))
        .with("range", fmt::format("1 to {}", size_max));
  }
  return size;
}

std::int64_t size_at(const Json& config, const char* key) {
  return size_of(require(config, key), key, kModelSizeMax);
}

bool flag_at(const Json& config, const char* key) {
  const Json* value = find(config, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) throw wrong_kind(key, *value, "true or false");
  return value->get<bool>();
}

std::string text_of(const Json& value, const char* key) {
  if (!value.is_string()) throw wrong_kind(key, value, "a text");
  return value.get<std::string>();
}

DType dtype_in(const Json& config) {
  const char* key = "dtype";
  const Json* value = find(config, key);
  if (value == nullptr) value = find(config, key = "torch_dtype");
  if (value == nullptr) return DType::f32;
  const std::optional<DType> dtype = dtype_from_name(text_of(*value, key));
  if (!dtype || (*dtype != DType::f32 && !is_castable(*dtype, DType::f32))) {
    throw Error(ErrorCode::unsupported, "read config: the dtype is not served")
        .with("key", key)
        .with("value", short_text(*value))
        .with("known", "float32, float16, bfloat16");
  }
  return *dtype;
}

void refuse_unknown_family(const std::string& model_type) {
  std::vector<std::string_view> known;
  for (const Family& family : families()) known.push_back(family.model_type);
  if (std::ranges::find(known, model_type) != known.end()) return;
  throw Error(ErrorCode::unsupported, "read config: the family is not known")
      .with("model_type", short_text(model_type))
      .with("known", fmt::format("{}", fmt::join(known, ", ")));
}

Error refuse_quantised(std::string_view key, const Json& value) {
  const Json* method = value.is_object() ? find(value, "quant_method") : nullptr;
  return std::move(Error(ErrorCode::unsupported, "read config: the quantisation is not served")
                       .with("key", key)
                       .with("method", method == nullptr ? "not given" : short_text(*method)));
}

// Whether a module's name, numbers aside, is that of a linear weight of the family.
bool names_linear(std::string_view module, const Family& family) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view word = module.substr(begin, end - begin);
    const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
    const bool is_expert = is_number && pattern.ends_with(".experts.");
    pattern += is_expert ? "{e}" : is_number ? "{}" : word;
    pattern += '.';
    begin = end + 1;
  }
  return std::ranges::any_of(family.rules, [&](const Rule& rule) {
    return is_linear(rule) && rule.tensor == pattern + "weight";
  });
}

// Modules that are left as they are may only be some that are never quantised.
void require_all_linear(const Json& quantisation, const Family& family) {
  const char* key = "modules_to_not_convert";
  const Json* modules = find(quantisation, key);
  if (modules == nullptr) return;
  if (!modules->is_array()) throw wrong_kind(key, *modules, "a list of names");
  for (const Json& module : *modules) {
    if (!names_linear(text_of(module, key), family)) continue;
    throw Error(ErrorCode::unsupported, "read config: a linear weight is not quantised like others")
        .with("key", key)
        .with("module", short_text(module));
  }
}

constexpr std::int64_t kScaleBlock = 128;

void read_quantisation(const Json& config, ModelConfig& read) {
  const char* other = "compression_config";
  if (const Json* value = find(config, other)) throw refuse_quantised(other, *value);
  const char* key = "quantization_config";
  const Json* value = find(config, key);
  if (value == nullptr) return;
  const Json* method = value->is_object() ? find(*value, "quant_method") : nullptr;
  if (method == nullptr || *method != "fp8") throw refuse_quantised(key, *value);
  const Json* block = find(*value, "weight_block_size");
  if (block == nullptr || *block != Json::array({kScaleBlock, kScaleBlock})) {
    throw refuse_quantised(key, *value)
        .with("weight_block_size", block == nullptr ? "not given" : block->dump().substr(0, 60))
        .with("known", Json::array({kScaleBlock, kScaleBlock}).dump());
  }
  const Json* format = find(*value, "fmt");
  if (format != nullptr && *format != "e4m3") {
    throw refuse_quantised(key, *value).with("fmt", short_text(*format));
  }
  require_all_linear(*value, family_of(read));
  read.scale_block = kScaleBlock;
}

std::string architecture_in(const Json& config) {
  const char* key = "architectures";
  const Json* value = find(config, key);
  if (value == nullptr) return "";
  if (!value->is_array() || value->empty()) throw wrong_kind(key, *value, "a list of names");
  const std::string architecture = text_of(value->front(), key);
  if (!architecture.ends_with("ForCausalLM")) {
    throw Error(ErrorCode::unsupported, "read config: the architecture is not a language model")
        .with("architecture", short_text(value->front()))
        .with("known", "names that end in ForCausalLM");
  }
  return architecture;
}

std::int64_t head_size_in(const Json& config, const ModelConfig& read) {
  const char* key = "head_dim";
  if (const Json* value = find(config, key)) return size_of(*value, key, kModelSizeMax);
  if (read.hidden % read.heads != 0) {
    throw Error(ErrorCode::mismatch, "read config: the heads do not divide the hidden size")
        .with("hidden_size", read.hidden)
        .with("num_attention_heads", read.heads)
        .hint("a model with such heads gives its head_dim");
  }
  return read.hidden / read.heads;
}

void refuse_impossible_heads(const ModelConfig& read) {
  if (read.heads % read.kv_heads != 0) {
    throw Error(ErrorCode::mismatch, "read config: the KV heads do not divide the heads")
        .with("num_attention_heads", read.heads)
        .with("num_key_value_heads", read.kv_heads);
  }
  if (read.heads * read.head_size > kModelSizeMax) {
    throw Error(ErrorCode::mismatch, "read config: the heads are too large")
        .with("num_attention_heads", read.heads)
        .with("head_dim", read.head_size)
        .with("product_max", kModelSizeMax);
  }
}

// -- Mixtures of experts, latent attention ------------------------------------------------------

// A count that may be 0, or null, which is the same; but it must be there.
std::int64_t count_at(const Json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end()) require(config, key);
  if (at->is_null() || *at == 0) return 0;
  return size_of(*at, key, kModelSizeMax);
}

std::int64_t size_or(const Json& config, const char* key, std::int64_t absent) {
  return find(config, key) == nullptr ? absent : size_at(config, key);
}

std::int64_t prediction_layers_in(const Json& config) {
  const char* key = "num_nextn_predict_layers";
  const Json* value = find(config, key);
  if (value == nullptr || *value == 0) return 0;
  return size_of(*value, key, kModelLayersMax);
}

void read_experts(const Json& config, const char* key, ModelConfig& read) {
  read.experts = size_at(config, key);
  const std::int64_t layers = read.layers + read.prediction_layers;
  if (read.experts > kModelExpertsMax / layers) {
    throw Error(ErrorCode::mismatch, "read config: too many experts")
        .with(key, read.experts)
        .with("layers", layers)
        .with("product_max", kModelExpertsMax);
  }
}

template <typename IsSparse>
void mark_sparse_layers(ModelConfig& read, const IsSparse& is_sparse) {
  for (std::int64_t layer = 0; layer < read.layers + read.prediction_layers; ++layer) {
    read.sparse_layer.push_back(is_sparse(layer));
  }
}

void read_mixtral(const Json& config, ModelConfig& read) {
  read_experts(config, "num_local_experts", read);
  read.expert_intermediate = read.intermediate;
  mark_sparse_layers(read, [](std::int64_t) { return true; });
}

void read_qwen3_moe(const Json& config, ModelConfig& read) {
  // Configs have been written with either key.
  const bool is_local = find(config, "num_experts") == nullptr && find(config, "num_local_experts");
  read_experts(config, is_local ? "num_local_experts" : "num_experts", read);
  read.expert_intermediate = size_at(config, "moe_intermediate_size");
  const std::int64_t step = size_or(config, "decoder_sparse_step", 1);
  mark_sparse_layers(read, [&](std::int64_t layer) { return (layer + 1) % step == 0; });
  const char* key = "mlp_only_layers";
  const Json* dense = find(config, key);
  if (dense == nullptr) return;
  if (!dense->is_array()) throw wrong_kind(key, *dense, "a list of layers");
  for (const Json& layer : *dense) {
    if (!layer.is_number_integer()) throw wrong_kind(key, layer, "a list of layers");
    if (layer < 0 || layer >= read.layers) continue;
    read.sparse_layer[layer.get<std::size_t>()] = false;
  }
}

void read_latent_attention(const Json& config, ModelConfig& read) {
  read.query_rank = count_at(config, "q_lora_rank");
  read.latent = size_at(config, "kv_lora_rank");
  read.plain_head_size = size_at(config, "qk_nope_head_dim");
  read.rotary_head_size = size_at(config, "qk_rope_head_dim");
  read.value_head_size = size_at(config, "v_head_dim");
  read.head_size = read.plain_head_size + read.rotary_head_size;
  read.kv_heads = read.heads;
  const std::int64_t head_size =
      std::max(read.head_size, read.plain_head_size + read.value_head_size);
  if (read.heads > kModelSizeMax / head_size) {
    throw Error(ErrorCode::mismatch, "read config: the heads are too large")
        .with("num_attention_heads", read.heads)
        .with("head size", head_size)
        .with("product_max", kModelSizeMax);
  }
}

void read_deepseek(const Json& config, ModelConfig& read) {
  const bool is_v3 = read.model_type == "deepseek_v3";
  read_latent_attention(config, read);
  read.prediction_layers = prediction_layers_in(config);
  read_experts(config, "n_routed_experts", read);
  read.expert_intermediate = size_at(config, "moe_intermediate_size");
  read.shared_experts = count_at(config, "n_shared_experts");
  read.expert_groups = size_or(config, "n_group", is_v3 ? 8 : 1);
  const Json* method = find(config, "topk_method");
  read.router_bias = method == nullptr ? is_v3 : *method == "noaux_tc";
  const std::int64_t first = count_at(config, "first_k_dense_replace");
  const std::int64_t step = size_or(config, "moe_layer_freq", 1);
  mark_sparse_layers(read, [&](std::int64_t layer) { return layer >= first && layer % step == 0; });
}

Json parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Error(ErrorCode::corrupt_file, "read config: not valid JSON").with("byte", error.byte);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::corrupt_file, "read config: a number is out of range");
  }
}

}  // namespace

ModelConfig parse_config(std::string_view json_text) {
  const Json config = parse_json(json_text);
  if (!config.is_object()) {
    throw Error(ErrorCode::corrupt_file, "read config: not a JSON object")
        .with("found", config.type_name());
  }
  ModelConfig read;
  read.model_type = text_of(require(config, "model_type"), "model_type");
  refuse_unknown_family(read.model_type);
  read.architecture = architecture_in(config);
  read.dtype = dtype_in(config);
  read.hidden = size_at(config, "hidden_size");
  read.intermediate = size_at(config, "intermediate_size");
  read.layers = size_of(require(config, "num_hidden_layers"), "num_hidden_layers", kModelLayersMax);
  read.heads = size_at(config, "num_attention_heads");
  read.vocab = size_at(config, "vocab_size");
  read.tied_embeddings = flag_at(config, "tie_word_embeddings");
  read.attention_bias = flag_at(config, "attention_bias");
  read.mlp_bias = flag_at(config, "mlp_bias");
  if (read.model_type.starts_with("deepseek")) {
    read_deepseek(config, read);
  } else {
    read.kv_heads = size_or(config, "num_key_value_heads", read.heads);
    read.head_size = head_size_in(config, read);
    refuse_impossible_heads(read);
  }
  if (read.model_type == "mixtral") read_mixtral(config, read);
  if (read.model_type == "qwen3_moe") read_qwen3_moe(config, read);
  read_quantisation(config, read);
  return read;
}

}  // namespace crossmesh
