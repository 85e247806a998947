// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace crossmesh::oracle {
namespace {

using Rows = std::vector<std::int64_t>;

Rows indices_of(const Elements& elements) {
  Rows indices;
  for (const Element& element : elements) indices.push_back(element.index);
  return indices;
}

std::vector<Rows> shards_of(const Tensor& tensor, const std::vector<Axis>& axes) {
  std::vector<Rows> shards;
  for (const auto& held : shard_naive({tensor}, axes).elements) {
    shards.push_back(indices_of(held[0]));
  }
  return shards;
}

TEST(Oracle, chunks_are_those_of_torch) {
  // torch.chunk(arange(5), 4) has chunks of 2, 2, 1 and no fourth.
  EXPECT_EQ(shards_of({{5}}, {{"fsdp", 4}}), (std::vector<Rows>{{0, 1}, {2, 3}, {4}, {}}));
  EXPECT_EQ(shards_of({{0}}, {{"fsdp", 2}}), (std::vector<Rows>{{}, {}}));
  EXPECT_EQ(shards_of({{}}, {{"fsdp", 2}}), (std::vector<Rows>{{0}, {0}}));
}

TEST(Oracle, tp_splits_before_fsdp_whatever_the_order_of_axes) {
  // tp: rows 0-2 and 3-4; fsdp cuts each into 2.
  EXPECT_EQ(shards_of({{5}, 0}, {{"fsdp", 2}, {"tp", 2}}),
            (std::vector<Rows>{{0, 1}, {3}, {2}, {4}}));
  EXPECT_EQ(shards_of({{5}, 0}, {{"tp", 2}, {"fsdp", 2}}),
            (std::vector<Rows>{{0, 1}, {2}, {3}, {4}}));
}

TEST(Oracle, tp_on_dimension_1_takes_columns) {
  EXPECT_EQ(shards_of({{2, 3}, 1}, {{"dp_replicate", 2}, {"tp", 2}}),
            (std::vector<Rows>{{0, 1, 3, 4}, {2, 5}, {0, 1, 3, 4}, {2, 5}}));
}

TEST(Oracle, a_refined_piece_takes_digits) {
  // Every second row of a 4x2 tensor, transposed.
  Elements parameter(4);
  place(parameter, 7, {{{2, 2}, {2}}, {0, 1, 0}, {2, 1, 2}, {1, 1, 2}, 0});
  EXPECT_EQ(parameter, (Elements{{7, 2}, {7, 6}, {7, 3}, {7, 7}}));
  EXPECT_THROW(place(parameter, 8, {{{1}}, {0}, {1}, {1}, 3}), std::logic_error);
  EXPECT_THROW(place(parameter, 8, {{{1}}, {0}, {1}, {1}, 4}), std::logic_error);
}

Rows rows_of(const Elements& elements, std::int64_t columns) {
  Rows rows;
  for (std::size_t i = 0; i < elements.size(); i += static_cast<std::size_t>(columns)) {
    rows.push_back(elements[i].tensor < 0 ? -1 : elements[i].index / columns);
  }
  return rows;
}

const Elements& parameter_of(const Engine& engine, int rank, const std::string& name) {
  const auto found = std::ranges::find(engine.parameters, name);
  if (found == engine.parameters.end()) throw std::out_of_range(name);
  return engine.side.elements[static_cast<std::size_t>(rank)]
                             [static_cast<std::size_t>(found - engine.parameters.begin())];
}

TEST(Oracle, engines_hold_what_vllms_loaders_put_there) {
  const SmallModel model{.hidden = 4,
                         .intermediate = 8,
                         .layers = 1,
                         .heads = 8,
                         .kv_heads = 2,
                         .head_size = 2,
                         .vocabulary = 100};
  const Engine engine = engine_naive(model, {.replicas = 2, .tp = 4});
  ASSERT_EQ(engine.side.elements.size(), 8u);
  EXPECT_EQ(engine.side.elements[3], engine.side.elements[7]);
  // q rows of heads 6 and 7, then the second KV head.
  EXPECT_EQ(rows_of(parameter_of(engine, 3, "model.layers.0.self_attn.qkv_proj.weight"), 4),
            (Rows{12, 13, 14, 15, 2, 3, 2, 3}));
  EXPECT_EQ(rows_of(parameter_of(engine, 1, "model.layers.0.self_attn.qkv_proj.weight"), 4),
            (Rows{4, 5, 6, 7, 0, 1, 0, 1}));
  EXPECT_EQ(rows_of(parameter_of(engine, 1, "model.layers.0.mlp.gate_up_proj.weight"), 4),
            (Rows{2, 3, 2, 3}));
  EXPECT_EQ(indices_of(parameter_of(engine, 3, "model.layers.0.mlp.down_proj.weight")),
            (Rows{6, 7, 14, 15, 22, 23, 30, 31}));
  Rows last_words{96, 97, 98, 99};
  last_words.resize(32, -1);
  EXPECT_EQ(rows_of(parameter_of(engine, 3, "lm_head.weight"), 4), last_words);
}

TEST(Oracle, a_move_fills_what_some_source_rank_holds) {
  const Side source{{{{{0, 1}, {0, 0}}}, {{{0, 2}}}}};
  const Side target{{{{{0, 2}, {0, 3}, {}, {0, 0}, {1, 0}}}}};
  EXPECT_EQ(move_naive(source, target), (Side{{{{{0, 2}, {}, {}, {0, 0}, {}}}}}));
}

}  // namespace
}  // namespace crossmesh::oracle
