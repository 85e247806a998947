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

void refuse_quantised(const Json& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = find(config, key);
    if (value == nullptr) continue;
    const Json* method = value->is_object() ? find(*value, "quant_method") : nullptr;
    throw Error(ErrorCode::unsupported, "read config: quantised models are not served")
        .with("key", key)
        .with("method", method == nullptr ? "not given" : short_text(*method));
  }
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
  refuse_quantised(config);
  read.architecture = architecture_in(config);
  read.dtype = dtype_in(config);
  read.hidden = size_at(config, "hidden_size");
  read.intermediate = size_at(config, "intermediate_size");
  read.layers = size_of(require(config, "num_hidden_layers"), "num_hidden_layers", kModelLayersMax);
  read.heads = size_at(config, "num_attention_heads");
  const Json* kv_heads = find(config, "num_key_value_heads");
  read.kv_heads = kv_heads == nullptr ? read.heads : size_at(config, "num_key_value_heads");
  read.head_size = head_size_in(config, read);
  read.vocab = size_at(config, "vocab_size");
  refuse_impossible_heads(read);
  read.tied_embeddings = flag_at(config, "tie_word_embeddings");
  read.attention_bias = flag_at(config, "attention_bias");
  read.mlp_bias = flag_at(config, "mlp_bias");
  return read;
}

}  // namespace crossmesh
