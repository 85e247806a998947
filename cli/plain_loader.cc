// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_loader.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/plain_cast.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;

// -- Config --------------------------------------------------------------------------------------

struct Sizes {
  std::string model;
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head = 0;
  std::int64_t vocabulary = 0;
  bool tied = false, qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
};

std::int64_t number(const Json& config, const char* key, std::optional<std::int64_t> fallback) {
  const auto found = config.find(key);
  if ((found == config.end() || found->is_null()) && fallback) return *fallback;
  if (found == config.end() || !found->is_number_integer() || found->get<std::int64_t>() <= 0 ||
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

Sizes read_sizes(std::string_view config_json) {
  const Json config = Json::parse(config_json, nullptr, false);
  if (!config.is_object() || !config.contains("model_type") || !config["model_type"].is_string()) {
    throw Error(ErrorCode::corrupt_file,
                "read config plainly: it is not a JSON object with a model_type");
  }
  Sizes sizes;
  sizes.model = config["model_type"].get<std::string>();
  const bool is_llama = sizes.model == "llama" || sizes.model == "mistral";
  const bool is_qwen3 = sizes.model == "qwen3";
  if (!is_llama && !is_qwen3 && sizes.model != "qwen2") {
    throw Error(ErrorCode::unsupported, "read config plainly: the plain loader lacks this model")
        .with("model_type", sizes.model)
        .hint("known are llama, mistral, qwen2, qwen3");
  }
  sizes.hidden = number(config, "hidden_size", {});
  sizes.intermediate = number(config, "intermediate_size", {});
  sizes.layers = number(config, "num_hidden_layers", {});
  sizes.heads = number(config, "num_attention_heads", {});
  sizes.kv_heads = number(config, "num_key_value_heads", sizes.heads);
  sizes.head = number(config, "head_dim", is_qwen3 ? 128 : sizes.hidden / sizes.heads);
  sizes.vocabulary = number(config, "vocab_size", {});
  sizes.tied = flag(config, "tie_word_embeddings");
  sizes.qkv_bias = sizes.model == "qwen2" || flag(config, "attention_bias");
  sizes.o_bias = is_llama && flag(config, "attention_bias");
  sizes.mlp_bias = is_llama && flag(config, "mlp_bias");
  sizes.qk_norm = is_qwen3;
  return sizes;
}

// -- Which rows go where -------------------------------------------------------------------------

struct Shard {
  std::int64_t tp = 1;
  std::int64_t rank = 0;
};

std::int64_t divide(std::int64_t value, std::int64_t tp, std::string_view what) {
  if (value % tp != 0) {
    throw Error(ErrorCode::mismatch, "load plainly: tp does not divide this extent")
        .with("extent", what)
        .with("size", value)
        .with("tp", tp);
  }
  return value / tp;
}

// Rows [first_row, first_row + rows) of one tensor of a fused parameter.
struct FusedRows {
  std::string tensor;
  std::int64_t tensor_rows = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

// No columns: a vector.
PlainParameter fuse(std::string name, const std::vector<FusedRows>& pieces, std::int64_t columns) {
  PlainParameter parameter{name, {0}, name, {}};
  if (columns > 0) parameter.shape.push_back(columns);
  for (const FusedRows& piece : pieces) {
    std::vector<std::int64_t> shape{piece.tensor_rows};
    if (columns > 0) shape.push_back(columns);
    parameter.parts.push_back(
        {piece.tensor, shape, piece.first_row, 0, parameter.shape[0], piece.rows});
    parameter.shape[0] += piece.rows;
  }
  return parameter;
}

PlainParameter whole(const std::string& name, std::int64_t rows) {
  return fuse(name, {{name, rows, 0, rows}}, 0);
}

PlainParameter cut_columns(const std::string& name, std::int64_t rows, std::int64_t columns,
                           Shard shard) {
  const std::int64_t local = divide(columns, shard.tp, name);
  return {name, {rows, local}, name, {{name, {rows, columns}, 0, shard.rank * local, 0, rows}}};
}

PlainParameter vocabulary_rows(const std::string& name, const Sizes& sizes, Shard shard) {
  const std::int64_t padded = (sizes.vocabulary + 63) / 64 * 64;
  const std::int64_t local = divide(padded, shard.tp, "padded vocabulary");
  const std::int64_t first = std::min(shard.rank * local, sizes.vocabulary);
  const std::int64_t rows = std::min(local, sizes.vocabulary - first);
  const std::vector<std::int64_t> shape{sizes.vocabulary, sizes.hidden};
  return {name, {local, sizes.hidden}, name, {{name, shape, first, 0, 0, rows}}};
}

std::vector<PlainParameter> attention(const std::string& prefix, const Sizes& sizes, Shard shard) {
  const std::int64_t heads = divide(sizes.heads, shard.tp, "num_attention_heads");
  // More ranks than KV heads: neighbouring ranks hold the same head.
  const bool repeats = shard.tp > sizes.kv_heads;
  const std::int64_t sharers = repeats ? divide(shard.tp, sizes.kv_heads, "tp by KV heads") : 1;
  const std::int64_t kv_heads =
      repeats ? 1 : divide(sizes.kv_heads, shard.tp, "num_key_value_heads");
  const std::int64_t q = heads * sizes.head;
  const std::int64_t kv = kv_heads * sizes.head;
  const std::int64_t q_all = sizes.heads * sizes.head;
  const std::int64_t kv_all = sizes.kv_heads * sizes.head;
  const std::int64_t kv_first = shard.rank / sharers * kv;
  const auto qkv = [&](const std::string& kind) {
    return std::vector<FusedRows>{{prefix + "q_proj." + kind, q_all, shard.rank * q, q},
                                  {prefix + "k_proj." + kind, kv_all, kv_first, kv},
                                  {prefix + "v_proj." + kind, kv_all, kv_first, kv}};
  };
  std::vector<PlainParameter> result;
  result.push_back(fuse(prefix + "qkv_proj.weight", qkv("weight"), sizes.hidden));
  if (sizes.qkv_bias) result.push_back(fuse(prefix + "qkv_proj.bias", qkv("bias"), 0));
  result.push_back(cut_columns(prefix + "o_proj.weight", sizes.hidden, q_all, shard));
  if (sizes.o_bias) result.push_back(whole(prefix + "o_proj.bias", sizes.hidden));
  if (sizes.qk_norm) {
    result.push_back(whole(prefix + "q_norm.weight", sizes.head));
    result.push_back(whole(prefix + "k_norm.weight", sizes.head));
  }
  return result;
}

std::vector<PlainParameter> mlp(const std::string& prefix, const Sizes& sizes, Shard shard) {
  const std::int64_t all = sizes.intermediate;
  const std::int64_t local = divide(all, shard.tp, "intermediate_size");
  const auto gate_up = [&](const std::string& kind) {
    return std::vector<FusedRows>{{prefix + "gate_proj." + kind, all, shard.rank * local, local},
                                  {prefix + "up_proj." + kind, all, shard.rank * local, local}};
  };
  std::vector<PlainParameter> result;
  result.push_back(fuse(prefix + "gate_up_proj.weight", gate_up("weight"), sizes.hidden));
  if (sizes.mlp_bias) result.push_back(fuse(prefix + "gate_up_proj.bias", gate_up("bias"), 0));
  result.push_back(cut_columns(prefix + "down_proj.weight", sizes.hidden, all, shard));
  if (sizes.mlp_bias) result.push_back(whole(prefix + "down_proj.bias", sizes.hidden));
  return result;
}

// -- Rows as they must be ------------------------------------------------------------------------

std::int64_t columns_of(const std::vector<std::int64_t>& shape) {
  return shape.size() == 2 ? shape[1] : 1;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const PlainTensor& tensor_of(const PlainPart& part, const PlainCheckpoint& checkpoint) {
  const auto found = checkpoint.tensors.find(part.tensor);
  if (found == checkpoint.tensors.end()) {
    throw Error(ErrorCode::mismatch, "load plainly: the checkpoint lacks a tensor")
        .with("tensor", part.tensor);
  }
  if (found->second.shape != part.tensor_shape) {
    throw Error(ErrorCode::mismatch, "load plainly: a tensor has another shape")
        .with("tensor", part.tensor)
        .with("shape", shape_text(found->second.shape))
        .with("expected", shape_text(part.tensor_shape));
  }
  return found->second;
}

// Rows [first, first + count) of a part, as the parameter must hold them.
class PartRows {
 public:
  PartRows(const PlainPart& part, const PlainParameter& parameter, DType dtype,
           const PlainCheckpoint& checkpoint)
      : part_(part),
        tensor_(tensor_of(part, checkpoint)),
        read_rows_(checkpoint.read_rows),
        dtype_(dtype),
        source_row_bytes_(columns_of(part.tensor_shape) * byte_size(tensor_.dtype)),
        columns_(columns_of(parameter.shape)) {}

  // Rows of about a quarter of a MiB, so that chunks stay in the cache.
  std::int64_t chunk_rows() const {
    return std::max<std::int64_t>(1, (std::int64_t{1} << 18) / source_row_bytes_);
  }

  void write(std::int64_t first, std::int64_t count, std::span<std::byte> rows) {
    const std::int64_t cut_bytes = columns_ * byte_size(tensor_.dtype);
    const bool is_cut = cut_bytes != source_row_bytes_;
    const bool is_cast = tensor_.dtype != dtype_;
    if (!is_cut && !is_cast) return read_rows_(part_.tensor, part_.source_row + first, count, rows);

    source_.resize(static_cast<std::size_t>(count * source_row_bytes_));
    read_rows_(part_.tensor, part_.source_row + first, count, source_);
    const std::int64_t skipped_bytes = part_.source_column * byte_size(tensor_.dtype);
    if (is_cut) {  // Closing the rows up in place: a row never moves past one not yet read.
      for (std::int64_t row = 0; row < count; ++row) {
        std::memmove(source_.data() + row * cut_bytes,
                     source_.data() + row * source_row_bytes_ + skipped_bytes,
                     static_cast<std::size_t>(cut_bytes));
      }
    }
    const std::span kept(source_.data(), static_cast<std::size_t>(count * cut_bytes));
    cast_plainly(tensor_.dtype, kept, dtype_, rows);
  }

  bool is_cast() const { return tensor_.dtype != dtype_; }

 private:
  const PlainPart& part_;
  const PlainTensor& tensor_;
  const RowsReader& read_rows_;
  DType dtype_;
  std::int64_t source_row_bytes_;
  std::int64_t columns_;
  std::vector<std::byte> source_;
};

// The first element that differs, or -1.
std::int64_t find_difference(std::span<const std::byte> expected, std::span<const std::byte> actual,
                             DType dtype, bool is_cast) {
  if (std::memcmp(expected.data(), actual.data(), expected.size()) == 0) return -1;
  const auto size = static_cast<std::size_t>(byte_size(dtype));
  for (std::size_t at = 0; at < expected.size(); at += size) {
    if (std::memcmp(expected.data() + at, actual.data() + at, size) == 0) continue;
    if (is_cast && is_nan(dtype, expected.data() + at) && is_nan(dtype, actual.data() + at))
      continue;
    return static_cast<std::int64_t>(at / size);
  }
  return -1;
}

std::int64_t zeros_from(const PlainParameter& parameter) {
  return parameter.parts.back().target_row + parameter.parts.back().rows;
}

}  // namespace

PlainCheckpoint whole_tensor_in_memory(std::string_view name, PlainTensor tensor,
                                       std::span<const std::byte> bytes) {
  const std::int64_t row_bytes = columns_of(tensor.shape) * byte_size(tensor.dtype);
  PlainCheckpoint checkpoint;
  checkpoint.tensors.emplace(name, std::move(tensor));
  checkpoint.read_rows = [bytes, row_bytes](std::string_view, std::int64_t first_row,
                                            std::int64_t row_count, std::span<std::byte> rows) {
    const auto part = bytes.subspan(static_cast<std::size_t>(first_row * row_bytes),
                                    static_cast<std::size_t>(row_count * row_bytes));
    if (!part.empty()) std::memcpy(rows.data(), part.data(), part.size());
  };
  return checkpoint;
}

PlainLoader::PlainLoader(const PlainEngine& engine) : dtype_(engine.dtype) {
  assert(0 <= engine.tp_rank && engine.tp_rank < engine.tp);
  const Sizes sizes = read_sizes(engine.config_json);
  const Shard shard{engine.tp, engine.tp_rank};
  const auto add = [this](std::vector<PlainParameter> more) {
    for (PlainParameter& parameter : more) parameters_.push_back(std::move(parameter));
  };
  add({vocabulary_rows("model.embed_tokens.weight", sizes, shard)});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add(attention(prefix + "self_attn.", sizes, shard));
    add(mlp(prefix + "mlp.", sizes, shard));
    add({whole(prefix + "input_layernorm.weight", sizes.hidden),
         whole(prefix + "post_attention_layernorm.weight", sizes.hidden)});
  }
  add({whole("model.norm.weight", sizes.hidden)});
  PlainParameter head =
      sizes.tied ? parameters_.front() : vocabulary_rows("lm_head.weight", sizes, shard);
  head.name = "lm_head.weight";
  add({std::move(head)});
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_by_name_[parameters_[i].name] = i;
}

const PlainParameter& PlainLoader::parameter_named(std::string_view name) const {
  const auto found = index_by_name_.find(std::string(name));
  if (found == index_by_name_.end()) {
    throw Error(ErrorCode::invalid_argument, "load plainly: the engine has no such parameter")
        .with("parameter", name);
  }
  return parameters_[found->second];
}

std::vector<std::string> PlainLoader::tensors_of(std::string_view parameter) const {
  std::vector<std::string> names;
  for (const PlainPart& part : parameter_named(parameter).parts) names.push_back(part.tensor);
  return names;
}

void PlainLoader::load(std::string_view parameter_name, std::string_view tensor,
                       const PlainCheckpoint& checkpoint, std::span<std::byte> bytes) const {
  const PlainParameter& parameter = parameter_named(parameter_name);
  const auto row_bytes = static_cast<std::size_t>(columns_of(parameter.shape) * byte_size(dtype_));
  assert(bytes.size() == static_cast<std::size_t>(parameter.shape[0]) * row_bytes);
  for (const PlainPart& part : parameter.parts) {
    if (part.tensor != tensor) continue;
    PartRows source(part, parameter, dtype_, checkpoint);
    for (std::int64_t row = 0; row < part.rows; row += source.chunk_rows()) {
      const std::int64_t count = std::min(source.chunk_rows(), part.rows - row);
      source.write(row, count,
                   bytes.subspan(static_cast<std::size_t>(part.target_row + row) * row_bytes,
                                 static_cast<std::size_t>(count) * row_bytes));
    }
    if (&part != &parameter.parts.back()) continue;
    std::ranges::fill(bytes.subspan(static_cast<std::size_t>(zeros_from(parameter)) * row_bytes),
                      std::byte{0});
  }
}

PlainComparison PlainLoader::compare(std::string_view parameter_name,
                                     const PlainCheckpoint& checkpoint,
                                     std::span<const std::byte> bytes) const {
  const PlainParameter& parameter = parameter_named(parameter_name);
  const std::int64_t columns = columns_of(parameter.shape);
  const auto row_bytes = static_cast<std::size_t>(columns * byte_size(dtype_));
  assert(bytes.size() == static_cast<std::size_t>(parameter.shape[0]) * row_bytes);
  PlainComparison result;
  std::vector<std::byte> expected;
  const auto check = [&](std::int64_t first_row, const std::string& tensor, bool is_cast) {
    const auto rows = static_cast<std::int64_t>(expected.size() / row_bytes);
    const auto actual =
        bytes.subspan(static_cast<std::size_t>(first_row) * row_bytes, expected.size());
    const std::int64_t at = find_difference(expected, actual, dtype_, is_cast);
    result.elements_checked += rows * columns;
    if (at < 0 || result.first_different >= 0) return;
    result.first_different = first_row * columns + at;
    result.tensor = tensor;
  };
  for (const PlainPart& part : parameter.parts) {
    PartRows source(part, parameter, dtype_, checkpoint);
    for (std::int64_t row = 0; row < part.rows; row += source.chunk_rows()) {
      const std::int64_t count = std::min(source.chunk_rows(), part.rows - row);
      expected.resize(static_cast<std::size_t>(count) * row_bytes);
      source.write(row, count, expected);
      check(part.target_row + row, part.tensor, source.is_cast());
    }
  }
  expected.assign(row_bytes, std::byte{0});
  for (std::int64_t row = zeros_from(parameter); row < parameter.shape[0]; ++row) {
    check(row, "", false);
  }
  return result;
}

}  // namespace crossmesh::cli
