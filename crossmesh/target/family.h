// SPDX-License-Identifier: Apache-2.0
// What engines do, declared: a family is a short table of rules that says, for each tensor of an
// architecture, which parameter it feeds, where, and how it is cut by tensor parallelism.
// A table is data; `lay_out` is the only code that reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/layout/spec.h"
#include "crossmesh/target/config.h"

namespace crossmesh {

// How tensor parallelism cuts a tensor.
enum class Cut : std::uint8_t {
  replicate,  // whole on every rank
  column,     // dimension 0, evenly
  row,        // dimension 1, evenly
  heads,      // dimension 0 by attention heads
  kv_heads,   // dimension 0 by KV heads, each repeated where tp exceeds them
  vocab,      // dimension 0, padded to a multiple of 64 and split; padding is filled with zeros
};

// An extent in a rule's shape, resolved from the config.
enum class Extent : std::uint8_t { hidden, intermediate, query, key_value, head_size, vocab };

// Whether a rule applies, resolved from the config.
enum class When : std::uint8_t { always, attention_bias, mlp_bias, tied, untied };

struct Rule {
  std::string_view tensor;     // name in the checkpoint; `{}` is the layer number
  std::string_view parameter;  // name in the engine; rules with equal names fuse on dimension 0, in
                               // table order. Empty: the engine has no place for the tensor.
  std::vector<Extent> shape;   // of the tensor
  Cut cut = Cut::replicate;
  When when = When::always;
  std::string_view shares = {};  // the parameter whose storage this one is; then it takes no tensor
};

struct Family {
  std::string_view model_type;
  std::vector<Rule> rules;  // in checkpoint order; neighbours with `{}` repeat together, by layer
};

// The families that crossmesh knows: llama, mistral, qwen2, qwen3.
std::span<const Family> families();
const Family& family_of(const ModelConfig& config);  // Throws: unsupported

// The tensors that a checkpoint of this config has, in checkpoint order, with dtype config.dtype.
std::vector<TensorInfo> tensors_of(const Family& family, const ModelConfig& config);

struct EngineOptions {
  std::optional<DType> parameter_dtype;  // config.dtype when not given
};

// The layout of the serving side: `replicas` independent instances, each cut by `tp`; a rank's
// number is its coordinates read in the order written.
//
// Requires: `config` comes from parse_config, or keeps to its bounds.
// Ensures: on each rank, the pieces and fills of a parameter's tensors cover it exactly once.
// Throws: invalid_argument: an axis that engines do not have; mismatch naming the axis, the extent
// and both numbers where tp does not divide heads, KV heads (or they it), the intermediate size or
// the padded vocabulary.
// Source: fused parameters, KV replication and vocabulary padding as vLLM 0.32 lays them.
Layout lay_out(const Family& family, const ModelConfig& config, const Spec& engine,
               const EngineOptions& options = {});

}  // namespace crossmesh
