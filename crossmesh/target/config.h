// SPDX-License-Identifier: Apache-2.0
// The facts of a Hugging Face config.json that decide which tensors a model has and how an engine
// lays them. It reads text, opens no file, and knows nothing of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

  bool operator==(const ModelConfig&) const = default;
};

// The largest size and number of layers that a config may have, so that no product of two sizes
// wraps and a hostile config cannot ask for more names than fit in memory.
inline constexpr std::int64_t kModelSizeMax = std::int64_t{1} << 24;
inline constexpr std::int64_t kModelLayersMax = std::int64_t{1} << 16;

// Absent keys take the values that Hugging Face gives them: KV heads as many as heads, head_dim
// hidden_size / num_attention_heads, float32, embeddings not tied, no biases.
//
// Throws: corrupt_file: the text is not a config, or a key is missing or of the wrong kind;
// unsupported: the model_type is not among families(), the architecture is not a causal language
// model, the model is quantised, or its dtype is not a float that crossmesh converts;
// mismatch: impossible numbers.
ModelConfig parse_config(std::string_view json_text);

}  // namespace crossmesh
