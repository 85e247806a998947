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
enum class Extent : std::uint8_t {
  hidden,
  twice_hidden,
  intermediate,
  query,
  key_value,
  head_size,
  vocab,
  experts,
  expert_intermediate,
  shared_intermediate,
  // Of latent attention.
  query_rank,
  latent,
  latent_and_rotary,
  heads,
  plain_head_size,
  value_head_size,
  plain_and_value,  // of all heads
  value,            // of all heads
};

// Whether a rule applies, resolved from the config and, for layers, from the layer.
enum class When : std::uint8_t {
  always,
  attention_bias,
  mlp_bias,
  tied,
  untied,
  dense,  // layers without experts
  sparse,
  shared_experts,  // sparse layers, where experts are shared
  router_bias,     // sparse layers, where the router has a bias; it is float32
  query_rank,      // queries are compressed
  query_rank_bias,
  no_query_rank,
  prediction,  // layers that predict further tokens
};

// How a checkpoint holds the experts of a layer.
enum class ExpertForm : std::uint8_t {
  each,     // a matrix for each projection of each
  stacked,  // all in two tensors: `experts.gate_up_proj` [experts, 2 * size, hidden], an expert's
            // gate above its up, and `experts.down_proj` [experts, hidden, size]
};

struct Rule {
  std::string tensor;         // name in the checkpoint; `{}` is the layer, `{e}` the expert
  std::string parameter;      // name in the engine; rules with equal names fuse on dimension 0, in
                              // table order; with `{e}` experts stack on a dimension before that.
                              // Empty: the engine has no place for the tensor.
  std::vector<Extent> shape;  // of the tensor
  Cut cut = Cut::replicate;
  When when = When::always;
  std::string_view shares = {};  // the parameter whose storage this one is; then it takes no tensor
  std::string_view derived = {};  // the engine computes the parameter, why; then there is no tensor
  bool holds_scales = false;      // of the blocks of a quantised weight of this shape
  int stacked_parts = 0;          // of a tensor that stacks all experts: how many parts of this
                                  // shape, one below another, each of them has there
};

// Whether a rule is of a linear layer's weight, which quantised checkpoints hold as float8.
bool is_linear(const Rule& rule);

struct Family {
  std::string_view model_type;
  std::vector<Rule> rules;  // in checkpoint order; neighbours with `{}` repeat together, by layer,
                            // and within a layer neighbours with `{e}`, by expert
};

// The families that crossmesh knows: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, deepseek_v2,
// deepseek_v3 (Kimi K2 is one).
std::span<const Family> families();
// As a checkpoint of this form has it; models without experts have but one.
// Throws: unsupported.
const Family& family_of(const ModelConfig& config, ExpertForm form = ExpertForm::each);

// The form that a checkpoint has; `each` where the model has no experts.
// Throws: mismatch, naming tensors: it has neither form, or both.
// Source: stacked experts are named and shaped as transformers 5 holds them.
ExpertForm expert_form_of(const ModelConfig& config, const Catalog& catalog);

// The tensors that a checkpoint of this config has, in checkpoint order, with dtype config.dtype;
// the bias of a router as F32, and, where it is quantised, linear weights as F8_E4M3 and the scales
// of their blocks as F32.
std::vector<TensorInfo> tensors_of(const Family& family, const ModelConfig& config);

struct EngineOptions {
  std::optional<DType> parameter_dtype;  // of what is neither quantised nor the bias of a router;
                                         // config.dtype when not given

  // Which expert each slot of an instance holds, slots of one rank side by side, as many on every
  // rank; an expert may have several. One row for all sparse layers, or a row for each. Not given:
  // as the spec's `experts` says.
  std::vector<std::vector<int>> expert_of_slot = {};
};

// The layout of the serving side. Axes: `replicas` (independent instances), `pp` (stages of
// layers), `dp` (ranks that repeat what is no routed expert), `tp`. A rank's number is its
// coordinates read in the order written. The embedding lies on the first stage (on the last too
// where it is tied), the final norm and lm_head on the last. Experts are cut by all dp * tp ranks
// of a stage.
//
// `experts=linear` spreads experts, whole, over the dp * tp ranks of a stage in contiguous blocks,
// `experts=round_robin` deals them one by one; where they do not divide, the first ranks hold one
// more. As in the engine, round robin is linear where the config's router has fewer than two
// groups. Rank dp * tp_count + tp of a stage takes its part, whatever the order of axes. Where both
// dp and tp exceed 1, experts that spread come with shared experts that tp does not cut: it shares
// out the tokens instead, as the engine does by default.
//
// Requires: `config` comes from parse_config, or keeps to its bounds.
// Ensures: on each rank, the pieces, fills and derived regions of a parameter cover it exactly
// once.
// Throws: invalid_argument: an axis that engines do not have, an unknown way to spread experts, or
// slots that do not fit; mismatch naming the axis, the extent and both numbers where tp does not
// divide heads, KV heads (or they it), the intermediate sizes or the padded vocabulary, dp * tp not
// the size of an expert that they cut, or where
// there are fewer layers than stages or fewer experts than ranks to spread them over; unsupported
// where tp, or what a parameter fuses, cuts inside a block of scales.
// Source: fused and stacked parameters, KV replication, vocabulary padding, stages and expert
// placement as vLLM 0.32 lays them.
Layout lay_out(const Family& family, const ModelConfig& config, const Spec& engine,
               const EngineOptions& options = {});

}  // namespace crossmesh
