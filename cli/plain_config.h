// SPDX-License-Identifier: Apache-2.0
// The numbers of a config.json that the plainest loader needs. It is read apart from the library's
// own reading of configs, so that a misread key shows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace crossmesh::cli {

// Multi-head latent attention: queries, and keys with values, go through low ranks.
struct PlainLatent {
  std::int64_t query_rank = 0;  // 0: queries are projected at once
  std::int64_t key_value_rank = 0;
  std::int64_t unrotated = 0, rotated = 0;  // of a head of queries and keys
  std::int64_t value = 0;                   // of a head of values
};

// Routed and shared experts of the layers that have them; the others are dense.
struct PlainExperts {
  std::int64_t count = 0;  // 0: every layer is dense
  std::int64_t intermediate = 0;
  std::int64_t shared_intermediate = 0;  // 0: none is shared
  std::int64_t groups = 1;               // among which the router chooses first
  std::int64_t first_layer = 0;          // layers before it are dense
  std::int64_t every = 1;                // a layer has experts where its number divides by this,
  std::int64_t shift = 0;                // after adding this
  std::vector<std::int64_t> dense_layers;
  bool has_correction_bias = false;
};

struct PlainConfig {
  std::string model;  // model_type
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head = 0;
  std::int64_t vocabulary = 0;
  bool tied = false, qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  PlainLatent latent;  // key_value_rank 0: plain attention
  PlainExperts experts;
  std::int64_t scale_block = 0;  // rows and columns that share a scale; 0: not quantised
};

// Knows llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v2, deepseek_v3 and kimi_k2.
// Throws: corrupt_file: the text is not a config; unsupported: another model_type, or quantised in
// another way than to float8 in square blocks.
PlainConfig read_plain_config(std::string_view config_json);

bool has_experts(const PlainConfig& config, std::int64_t layer);

}  // namespace crossmesh::cli
