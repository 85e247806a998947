// SPDX-License-Identifier: Apache-2.0
// The facts of a Hugging Face config.json that decide which tensors a model has and how an engine
// lays them. It reads text, opens no file, and knows nothing of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh {

struct ModelConfig {
  std::string architecture;  // `Qwen3ForCausalLM`; empty when the config does not say
  std::string model_type;    // `qwen3`
  DType dtype = DType::bf16;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t vocab = 0;
  bool tied_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;

  // Mixtures of experts. No experts: every layer is dense.
  std::int64_t experts = 0;
  std::int64_t expert_intermediate = 0;
  std::int64_t shared_experts = 0;
  std::int64_t expert_groups = 1;
  bool router_bias = false;             // the router corrects its scores by a bias
  std::vector<bool> sparse_layer = {};  // whether a layer has experts, prediction layers included

  // Layers after the last that predict further tokens; the main model does not serve them.
  std::int64_t prediction_layers = 0;

  // Multi-head latent attention; where latent is 0, attention has query, key and value heads.
  std::int64_t query_rank = 0;  // 0: queries are not compressed
  std::int64_t latent = 0;
  std::int64_t plain_head_size = 0;   // of a query or key: the part without positions
  std::int64_t rotary_head_size = 0;  // and the part that is rotated by them
  std::int64_t value_head_size = 0;

  // Linear weights as float8 (e4m3), a scale for each square block of this many rows and columns;
  // 0: not quantised.
  std::int64_t scale_block = 0;

  bool is_sparse(std::int64_t layer) const {
    const auto index = static_cast<std::size_t>(layer);
    return index < sparse_layer.size() && sparse_layer[index];
  }

  bool operator==(const ModelConfig&) const = default;
};

// The largest size and number of layers that a config may have, so that no product of two sizes
// wraps and a hostile config cannot ask for more names than fit in memory.
inline constexpr std::int64_t kModelSizeMax = std::int64_t{1} << 24;
inline constexpr std::int64_t kModelLayersMax = std::int64_t{1} << 16;
inline constexpr std::int64_t kModelExpertsMax = std::int64_t{1} << 20;  // over all layers

// Absent keys take the values that Hugging Face gives them: KV heads as many as heads, head_dim
// hidden_size / num_attention_heads, float32, embeddings not tied, no biases, every layer sparse
// where there are experts. What a mixture of experts or latent attention is made of must be given.
//
// Throws: corrupt_file: the text is not a config, or a key is missing or of the wrong kind;
// unsupported: the model_type is not among families(), the architecture is not a causal language
// model, its dtype is not a float that crossmesh converts, or the model is quantised in another way
// than its linear weights, all of them, to float8 in blocks of 128 by 128;
// mismatch: impossible numbers.
ModelConfig parse_config(std::string_view json_text);

}  // namespace crossmesh
