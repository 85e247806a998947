// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_parameters.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "cli/plain_config.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

struct Shard {
  std::string_view axes = "tp";
  std::int64_t count = 1;
  std::int64_t rank = 0;
};

std::int64_t divide(std::int64_t value, const Shard& shard, std::string_view what) {
  if (value % shard.count == 0) return value / shard.count;
  throw Error(ErrorCode::mismatch,
              fmt::format("load plainly: {} does not divide this extent", shard.axes))
      .with("extent", what)
      .with("size", value)
      .with(shard.axes, shard.count);
}

// -- Parameters of one shape or another ----------------------------------------------------------

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

PlainParameter whole(const std::string& name, std::int64_t rows, std::int64_t columns = 0) {
  return fuse(name, {{name, rows, 0, rows}}, columns);
}

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

PlainParameter cut_rows(const std::string& name, Matrix matrix, const Shard& shard) {
  const std::int64_t local = divide(matrix.rows, shard, name);
  return fuse(name, {{name, matrix.rows, shard.rank * local, local}}, matrix.columns);
}

PlainParameter cut_columns(const std::string& name, Matrix matrix, const Shard& shard) {
  const std::int64_t local = divide(matrix.columns, shard, name);
  return {name,
          {matrix.rows, local},
          name,
          {{name, {matrix.rows, matrix.columns}, 0, shard.rank * local, 0, matrix.rows}}};
}

PlainParameter vocabulary_rows(const std::string& name, const PlainConfig& config,
                               const Shard& shard) {
  const std::int64_t padded = (config.vocabulary + 63) / 64 * 64;
  const std::int64_t local = divide(padded, shard, "padded vocabulary");
  const std::int64_t first = std::min(shard.rank * local, config.vocabulary);
  const std::int64_t rows = std::min(local, config.vocabulary - first);
  const std::vector<std::int64_t> shape{config.vocabulary, config.hidden};
  return {name, {local, config.hidden}, name, {{name, shape, first, 0, 0, rows}}};
}

// -- Attention -----------------------------------------------------------------------------------

std::vector<PlainParameter> attention(const std::string& prefix, const PlainConfig& config,
                                      const Shard& shard) {
  const std::int64_t heads = divide(config.heads, shard, "num_attention_heads");
  // More ranks than KV heads: neighbouring ranks hold the same head.
  const bool repeats = shard.count > config.kv_heads;
  if (repeats && shard.count % config.kv_heads != 0) {
    throw Error(ErrorCode::mismatch, "load plainly: tp neither divides KV heads nor they it")
        .with("num_key_value_heads", config.kv_heads)
        .with("tp", shard.count);
  }
  const std::int64_t sharers = repeats ? shard.count / config.kv_heads : 1;
  const std::int64_t kv_heads = repeats ? 1 : divide(config.kv_heads, shard, "num_key_value_heads");
  const std::int64_t q = heads * config.head;
  const std::int64_t kv = kv_heads * config.head;
  const std::int64_t q_all = config.heads * config.head;
  const std::int64_t kv_all = config.kv_heads * config.head;
  const std::int64_t kv_first = shard.rank / sharers * kv;
  const auto qkv = [&](const std::string& kind) {
    return std::vector<FusedRows>{{prefix + "q_proj." + kind, q_all, shard.rank * q, q},
                                  {prefix + "k_proj." + kind, kv_all, kv_first, kv},
                                  {prefix + "v_proj." + kind, kv_all, kv_first, kv}};
  };
  std::vector<PlainParameter> result;
  result.push_back(fuse(prefix + "qkv_proj.weight", qkv("weight"), config.hidden));
  if (config.qkv_bias) result.push_back(fuse(prefix + "qkv_proj.bias", qkv("bias"), 0));
  result.push_back(cut_columns(prefix + "o_proj.weight", {config.hidden, q_all}, shard));
  if (config.o_bias) result.push_back(whole(prefix + "o_proj.bias", config.hidden));
  if (config.qk_norm) {
    result.push_back(whole(prefix + "q_norm.weight", config.head));
    result.push_back(whole(prefix + "k_norm.weight", config.head));
  }
  return result;
}

// The projections to the low ranks are whole on every rank; those back to heads are cut by heads.
std::vector<PlainParameter> latent_attention(const std::string& prefix, const PlainConfig& config,
                                             const Shard& shard) {
  const PlainLatent& latent = config.latent;
  divide(config.heads, shard, "num_attention_heads");
  const std::int64_t query = config.heads * (latent.unrotated + latent.rotated);
  const std::int64_t key_value = latent.key_value_rank + latent.rotated;
  const std::string down = prefix + "kv_a_proj_with_mqa.weight";
  std::vector<PlainParameter> result;
  if (latent.query_rank > 0) {
    result.push_back(fuse(prefix + "fused_qkv_a_proj.weight",
                          {{prefix + "q_a_proj.weight", latent.query_rank, 0, latent.query_rank},
                           {down, key_value, 0, key_value}},
                          config.hidden));
    result.push_back(whole(prefix + "q_a_layernorm.weight", latent.query_rank));
    result.push_back(cut_rows(prefix + "q_b_proj.weight", {query, latent.query_rank}, shard));
  } else {
    result.push_back(whole(down, key_value, config.hidden));
    result.push_back(cut_rows(prefix + "q_proj.weight", {query, config.hidden}, shard));
  }
  result.push_back(whole(prefix + "kv_a_layernorm.weight", latent.key_value_rank));
  result.push_back(
      cut_rows(prefix + "kv_b_proj.weight",
               {config.heads * (latent.unrotated + latent.value), latent.key_value_rank}, shard));
  result.push_back(
      cut_columns(prefix + "o_proj.weight", {config.hidden, config.heads * latent.value}, shard));
  return result;
}

// -- Feed-forward --------------------------------------------------------------------------------

std::vector<PlainParameter> mlp(const std::string& prefix, std::int64_t all,
                                const PlainConfig& config, const Shard& shard) {
  const std::int64_t local = divide(all, shard, "intermediate_size");
  const auto gate_up = [&](const std::string& kind) {
    return std::vector<FusedRows>{{prefix + "gate_proj." + kind, all, shard.rank * local, local},
                                  {prefix + "up_proj." + kind, all, shard.rank * local, local}};
  };
  std::vector<PlainParameter> result;
  result.push_back(fuse(prefix + "gate_up_proj.weight", gate_up("weight"), config.hidden));
  if (config.mlp_bias) result.push_back(fuse(prefix + "gate_up_proj.bias", gate_up("bias"), 0));
  result.push_back(cut_columns(prefix + "down_proj.weight", {config.hidden, all}, shard));
  if (config.mlp_bias) result.push_back(whole(prefix + "down_proj.bias", config.hidden));
  return result;
}

// The part of a layer's row of slots that is a rank's.
std::vector<std::int64_t> experts_in_slots(const PlainConfig& config, const PlainEngine& engine,
                                           std::int64_t layer) {
  std::size_t row = 0;
  for (std::int64_t before = 0; before < layer; ++before)
    row += has_experts(config, before) ? 1 : 0;
  const std::vector<int>& slots = engine.expert_of_slot[engine.expert_of_slot.size() > 1 ? row : 0];
  const auto each = static_cast<std::ptrdiff_t>(slots.size()) / (engine.dp * engine.tp);
  const auto first = slots.begin() + each * (engine.dp_rank * engine.tp + engine.tp_rank);
  return {first, first + each};
}

// Numbers of the experts of a rank, in the order of its slots.
std::vector<std::int64_t> experts_of(const PlainConfig& config, const PlainEngine& engine,
                                     std::int64_t layer) {
  if (!engine.expert_of_slot.empty()) return experts_in_slots(config, engine, layer);
  const PlainExperts& experts = config.experts;
  const std::int64_t ranks = std::int64_t{engine.dp} * engine.tp;
  const std::int64_t rank = std::int64_t{engine.dp_rank} * engine.tp + engine.tp_rank;
  const bool is_dealt = engine.spread == PlainSpread::round_robin && experts.groups > 1;
  // The first ranks take one of the remainder each.
  const std::int64_t each = experts.count / ranks;
  const std::int64_t rest = experts.count % ranks;
  const std::int64_t first = rank * each + std::min(rank, rest);
  const std::int64_t last = first + each + (rank < rest ? 1 : 0);
  std::vector<std::int64_t> numbers;
  for (std::int64_t expert = 0; expert < experts.count; ++expert) {
    const bool is_here = is_dealt ? expert % ranks == rank : first <= expert && expert < last;
    if (is_here || engine.spread == PlainSpread::cut) numbers.push_back(expert);
  }
  return numbers;
}

// The names of one expert's tensors.
struct ExpertNames {
  const char* gate;
  const char* up;
  const char* down;
};

ExpertNames names_of(const PlainConfig& config) {
  if (config.model == "mixtral") return {"w1", "w3", "w2"};
  return {"gate_proj", "up_proj", "down_proj"};
}

// What the names of an engine's parameters and of a checkpoint's tensors begin with.
struct Prefixes {
  std::string engine;
  std::string checkpoint;
};

// Gate and up of an expert on top of each other, experts on top of each other.
std::vector<PlainParameter> routed_experts(const Prefixes& prefixes, const PlainConfig& config,
                                           const PlainEngine& engine, std::int64_t layer) {
  const bool is_cut = engine.spread == PlainSpread::cut;
  const Shard shard = is_cut ? Shard{"dp * tp", std::int64_t{engine.dp} * engine.tp,
                                     std::int64_t{engine.dp_rank} * engine.tp + engine.tp_rank}
                             : Shard{};
  const std::vector<std::int64_t> numbers = experts_of(config, engine, layer);
  if (numbers.empty()) return {};
  const std::int64_t all = config.experts.intermediate;
  const std::int64_t local = divide(all, shard, "an expert's size");
  const std::int64_t hidden = config.hidden;
  const auto slots = static_cast<std::int64_t>(numbers.size());
  const std::string engine_prefix = prefixes.engine + "routed_experts.";
  const std::string& prefix = prefixes.checkpoint;
  PlainParameter w13{engine_prefix + "w13_weight", {slots, 2 * local, hidden}, "", {}};
  PlainParameter w2{engine_prefix + "w2_weight", {slots, hidden, local}, "", {}};
  w13.storage = w13.name;
  w2.storage = w2.name;
  const ExpertNames names = names_of(config);
  const std::int64_t first = shard.rank * local;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int64_t number = numbers[static_cast<std::size_t>(slot)];
    const std::int64_t up = (2 * slot + 1) * local;
    if (engine.has_stacked_experts) {
      const std::string both = prefix + "gate_up_proj";
      const std::vector<std::int64_t> shape{config.experts.count, 2 * all, hidden};
      w13.parts.push_back({both, shape, number * 2 * all + first, 0, up - local, local});
      w13.parts.push_back({both, shape, number * 2 * all + all + first, 0, up, local});
      w2.parts.push_back({prefix + "down_proj",
                          {config.experts.count, hidden, all},
                          number * hidden,
                          first,
                          slot * hidden,
                          hidden});
      continue;
    }
    const auto name = [&](const char* part) {
      return fmt::format("{}{}.{}.weight", prefix, number, part);
    };
    w13.parts.push_back({name(names.gate), {all, hidden}, first, 0, up - local, local});
    w13.parts.push_back({name(names.up), {all, hidden}, first, 0, up, local});
    w2.parts.push_back({name(names.down), {hidden, all}, 0, first, slot * hidden, hidden});
  }
  return {w13, w2};
}

std::vector<PlainParameter> feed_forward(std::int64_t number, const PlainConfig& config,
                                         const PlainEngine& engine) {
  const std::string layer = fmt::format("model.layers.{}.", number);
  const Shard shard{"tp", engine.tp, engine.tp_rank};
  const PlainExperts& experts = config.experts;
  if (!has_experts(config, number)) return mlp(layer + "mlp.", config.intermediate, config, shard);
  const std::string prefix = layer + (config.model == "mixtral" ? "block_sparse_moe." : "mlp.");
  // Checkpoints that stack experts call mixtral's as other models' are called.
  const std::string source = engine.has_stacked_experts ? layer + "mlp." : prefix;
  std::vector<PlainParameter> result;
  result.push_back(fuse(prefix + "gate.weight",
                        {{source + "gate.weight", experts.count, 0, experts.count}},
                        config.hidden));
  if (experts.has_correction_bias) {
    result.push_back(whole(prefix + "gate.e_score_correction_bias", experts.count));
  }
  for (PlainParameter& one :
       routed_experts({prefix + "experts.", source + "experts."}, config, engine, number)) {
    result.push_back(std::move(one));
  }
  if (experts.shared_intermediate > 0) {
    // Whole experts on dp and tp: tokens are sharded over tp, and each rank has what is shared.
    const bool is_whole = engine.spread != PlainSpread::cut && engine.dp > 1 && engine.tp > 1;
    for (PlainParameter& one : mlp(prefix + "shared_experts.", experts.shared_intermediate, config,
                                   is_whole ? Shard{} : shard)) {
      result.push_back(std::move(one));
    }
  }
  return result;
}

// -- Scales of quantised weights -----------------------------------------------------------------

// Embedding, head, norms and router stay as they are.
bool is_linear(const PlainParameter& parameter) {
  return parameter.name.starts_with("model.layers.") && parameter.shape.size() > 1 &&
         !parameter.name.ends_with(".gate.weight");
}

std::int64_t blocks_in(std::int64_t extent, std::int64_t block) {
  return (extent + block - 1) / block;
}

// Of the last two dimensions: how many blocks there are, the last of them maybe cut short.
std::vector<std::int64_t> blocks_of(std::vector<std::int64_t> shape, std::int64_t block) {
  for (std::size_t dim = shape.size() - 2; dim < shape.size(); ++dim) {
    shape[dim] = blocks_in(shape[dim], block);
  }
  return shape;
}

// Indices [first, first + count) of an extent, in blocks.
struct Blocks {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

Blocks whole_blocks(const PlainPart& part, std::int64_t first, std::int64_t count,
                    std::int64_t extent, std::int64_t block) {
  const std::int64_t end = first + count;
  if (first % block == 0 && (end % block == 0 || end == extent)) {
    return {first / block, blocks_in(count, block)};
  }
  throw Error(ErrorCode::unsupported, "load plainly: a cut falls inside a block of scales")
      .with("tensor", part.tensor)
      .with("from", first)
      .with("to", end)
      .with("of", extent)
      .with("block", block);
}

// The same of rows that may follow those of earlier matrices of a stack.
Blocks whole_blocks_of_rows(const PlainPart& part, std::int64_t first,
                            const std::vector<std::int64_t>& shape, std::int64_t block) {
  const std::int64_t rows = shape[shape.size() - 2];
  Blocks blocks = whole_blocks(part, first % rows, part.rows, rows, block);
  blocks.first += first / rows * blocks_in(rows, block);
  return blocks;
}

// The scales of a weight have its name with `_scale_inv` after it, and so has each tensor.
PlainParameter scales_of(const PlainParameter& weight, std::int64_t block) {
  const std::string name = weight.name + "_scale_inv";
  PlainParameter scales{name, blocks_of(weight.shape, block), name, {}, DType::f32};
  for (const PlainPart& part : weight.parts) {
    const Blocks source = whole_blocks_of_rows(part, part.source_row, part.tensor_shape, block);
    const Blocks target = whole_blocks_of_rows(part, part.target_row, weight.shape, block);
    const Blocks columns = whole_blocks(part, part.source_column, weight.shape.back(),
                                        part.tensor_shape.back(), block);
    scales.parts.push_back({part.tensor + "_scale_inv", blocks_of(part.tensor_shape, block),
                            source.first, columns.first, target.first, source.count});
  }
  return scales;
}

}  // namespace

PlainStage plain_stage(std::int64_t layers, const PlainEngine& engine) {
  const std::int64_t rest = layers % engine.pp;
  PlainStage stage;
  for (int rank = 0; rank <= engine.pp_rank; ++rank) {
    const bool takes_more = rank >= engine.pp - 1 - rest && rank < engine.pp - 1;
    stage.first = stage.last;
    stage.last += layers / engine.pp + (takes_more ? 1 : 0);
  }
  return stage;
}

std::vector<PlainParameter> plain_parameters(const PlainEngine& engine) {
  assert(0 <= engine.pp_rank && engine.pp_rank < engine.pp);
  assert(0 <= engine.dp_rank && engine.dp_rank < engine.dp);
  assert(0 <= engine.tp_rank && engine.tp_rank < engine.tp);
  const PlainConfig config = read_plain_config(engine.config_json);
  const Shard shard{"tp", engine.tp, engine.tp_rank};
  const bool is_first = engine.pp_rank == 0;
  const bool is_last = engine.pp_rank == engine.pp - 1;
  std::vector<PlainParameter> result;
  const auto add = [&](std::vector<PlainParameter> more) {
    for (PlainParameter& parameter : more) {
      const bool is_quantised = config.scale_block > 0 && is_linear(parameter);
      const bool is_router_bias = parameter.name.ends_with("e_score_correction_bias");
      parameter.dtype = is_quantised ? DType::f8_e4m3 : is_router_bias ? DType::f32 : engine.dtype;
      result.push_back(std::move(parameter));
      if (is_quantised) result.push_back(scales_of(result.back(), config.scale_block));
    }
  };
  // A tied head on another stage than the first needs an embedding of its own.
  if (is_first || (is_last && config.tied)) add({vocabulary_rows(kEmbedding, config, shard)});
  const PlainStage stage = plain_stage(config.layers, engine);
  for (std::int64_t layer = stage.first; layer < stage.last; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const bool is_latent = config.latent.key_value_rank > 0;
    add(is_latent ? latent_attention(prefix + "self_attn.", config, shard)
                  : attention(prefix + "self_attn.", config, shard));
    add(feed_forward(layer, config, engine));
    add({whole(prefix + "input_layernorm.weight", config.hidden),
         whole(prefix + "post_attention_layernorm.weight", config.hidden)});
  }
  if (!is_last) return result;
  add({whole("model.norm.weight", config.hidden)});
  PlainParameter head = config.tied ? result.front() : vocabulary_rows(kHead, config, shard);
  head.name = kHead;
  add({std::move(head)});
  return result;
}

std::int64_t columns_of(const std::vector<std::int64_t>& shape) {
  return shape.size() > 1 ? shape.back() : 1;
}

std::int64_t rows_of(const std::vector<std::int64_t>& shape) {
  std::int64_t rows = shape[0];
  for (std::size_t dim = 1; dim + 1 < shape.size(); ++dim) rows *= shape[dim];
  return rows;
}

}  // namespace crossmesh::cli
