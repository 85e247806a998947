// SPDX-License-Identifier: Apache-2.0
// Faults that others have met where heads are repeated and ranks chosen: keys and values of more
// ranks than KV heads, and parameters that every rank has whole. Right values, compared in order.
#include <gtest/gtest.h>

#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/layout/spec.h"
#include "crossmesh/plan/testing.h"
#include "crossmesh/source/shard.h"
#include "crossmesh/target/family.h"
#include "tests/reports/moved.h"

namespace crossmesh::reports {
namespace {

// Heads of one element, hidden size 4, so that row h of q, k and v is head h.
std::string config_of(int heads, const std::string& kv_heads) {
  return R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 8, "vocab_size": 64,)"
         R"("num_hidden_layers": 1, "head_dim": 1, "num_attention_heads": )" +
         std::to_string(heads) + R"(, "num_key_value_heads": )" + kv_heads + "}";
}

struct Sides {
  Layout source;
  Layout target;
};

Sides sides_of(const std::string& config_json, const char* trainer, const char* engine) {
  const ModelConfig config = parse_config(config_json);
  const Family& family = family_of(config);
  return {shard({tensors_of(family, config)}, parse_spec(trainer)),
          lay_out(family, config, parse_spec(engine))};
}

std::int64_t number_of(const Layout& layout, const std::string& tensor) {
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    if (layout.tensors[t].name == tensor) return static_cast<std::int64_t>(t);
  }
  return -1;
}

// Elements [first, last) of a tensor of the target.
Elements part(const Layout& layout, const std::string& tensor, std::int64_t first,
              std::int64_t last) {
  const std::int64_t base = number_of(layout, tensor) * kTensorStride;
  return counted(base + first, base + last);
}

constexpr const char* kQkv = "model.layers.0.self_attn.qkv_proj.weight";
const std::string kLayer = "model.layers.0.";

TEST(Heads, a_kv_head_is_that_of_its_group_of_ranks) {
  for (const char* trainer : {"fsdp=2", "tp=2", "fsdp=3,tp=2"}) {
    const Sides sides = sides_of(config_of(4, "2"), trainer, "tp=4");
    for (int rank = 0; rank < 4; ++rank) {
      const int kv_head = rank / 2;  // ranks 0 and 1 have k0, ranks 2 and 3 have k1
      EXPECT_EQ(moved(sides.source, sides.target, rank, kQkv),
                joined(joined(part(sides.target, kLayer + "self_attn.q_proj.weight", 4 * rank,
                                   4 * (rank + 1)),
                              part(sides.target, kLayer + "self_attn.k_proj.weight", 4 * kv_head,
                                   4 * (kv_head + 1))),
                       part(sides.target, kLayer + "self_attn.v_proj.weight", 4 * kv_head,
                            4 * (kv_head + 1))))
          << trainer << " rank " << rank;
    }
  }
}

TEST(Heads, less_than_a_head_for_each_rank_repeats_heads) {
  const Sides sides = sides_of(config_of(8, "4"), "fsdp=2", "tp=8");
  for (int rank = 0; rank < 8; ++rank) {
    const Elements qkv = moved(sides.source, sides.target, rank, kQkv);
    EXPECT_EQ(
        Elements(qkv.begin() + 4, qkv.begin() + 8),
        part(sides.target, kLayer + "self_attn.k_proj.weight", 4 * (rank / 2), 4 * (rank / 2 + 1)));
  }
}

std::string error_of(const std::string& config_json, const char* engine) {
  try {
    sides_of(config_json, "fsdp=1", engine);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(Heads, heads_that_no_split_keeps_whole_are_refused_when_laid_out) {
  EXPECT_EQ(error_of(config_of(8, "3"), "tp=2"),
            "read config: the KV heads do not divide the heads\n  num_attention_heads  8\n"
            "  num_key_value_heads  3");
  EXPECT_EQ(error_of(config_of(12, "3"), "tp=4"),
            "lay out: the KV heads do not divide tp\n  axis  tp=4\n"
            "  extent  num_key_value_heads=3");
  EXPECT_EQ(error_of(config_of(6, "6"), "tp=4"),
            "lay out: tp does not divide an extent\n  axis  tp=4\n"
            "  extent  num_attention_heads=6");
}

TEST(Heads, a_number_of_kv_heads_for_each_layer_is_refused_by_name) {
  EXPECT_EQ(error_of(config_of(4, "[2, 1]"), "tp=2"),
            "read config: a key is of the wrong kind\n  key  num_key_value_heads\n"
            "  value  array\n  wanted  a whole number");
}

TEST(Heads, every_rank_takes_its_own_part_of_each_fused_tensor) {
  const Sides sides = sides_of(config_of(4, "4"), "fsdp=2", "tp=2");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(
        moved(sides.source, sides.target, rank, kLayer + "mlp.gate_up_proj.weight"),
        joined(part(sides.target, kLayer + "mlp.gate_proj.weight", 16 * rank, 16 * (rank + 1)),
               part(sides.target, kLayer + "mlp.up_proj.weight", 16 * rank, 16 * (rank + 1))));
  }
}

TEST(Heads, what_is_not_split_is_whole_on_every_rank_whenever_it_is_laid_out) {
  for (int time = 0; time < 3; ++time) {
    const Sides sides = sides_of(config_of(4, "4"), "fsdp=2", "tp=2");
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(moved(sides.source, sides.target, rank, "model.norm.weight"),
                part(sides.target, "model.norm.weight", 0, 4));
    }
  }
}

}  // namespace
}  // namespace crossmesh::reports
