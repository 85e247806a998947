// SPDX-License-Identifier: Apache-2.0
// Faults that others have met where a vocabulary is padded: sizes that disagree, padding that two
// modules count apart, rows that are lost where a vocabulary does not divide.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/spec.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/plan/testing.h"
#include "crossmesh/source/shard.h"
#include "crossmesh/target/family.h"
#include "tests/reports/moved.h"

namespace crossmesh::reports {
namespace {

Layout trainer_of(const char* name, std::int64_t rows, std::int64_t columns, const char* spec) {
  return shard({{{name, DType::bf16, {rows, columns}}}}, parse_spec(spec));
}

// Two embeddings of one vocabulary, each padded in its own way and split evenly.
struct Padded {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t padded_rows = 0;
};

void add(Layout& layout, Interner& interner, const Padded& padded) {
  LayoutClass c{testing::plain({padded.rows}), DType::bf16, {}};
  ParameterClass p{DType::bf16, {}, {}, {}};
  const std::int64_t local = padded.padded_rows / layout.rank_count;
  Binding binding;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const std::int64_t first = std::min(rank * local, padded.rows);
    const std::int64_t count = std::min((rank + 1) * local, padded.rows) - first;
    auto& pieces = c.pieces_of_role.emplace_back();
    if (count > 0) pieces.push_back({{{first}, {count}}, {0, {1}}});
    p.shape_of_role.push_back({local});
    if (count < local) {
      p.reserves.push_back({Reserve::Kind::fill, rank, {{local - count}, {count, {1}}}, 0, "pad"});
    }
    binding.role_of_rank.push_back(rank);
  }
  const int number = static_cast<int>(layout.parameters.size());
  const int bound = interner.binding(binding);
  layout.tensors.push_back({padded.name, DType::bf16, {padded.rows}});
  layout.parameters.push_back({padded.name, interner.parameter_class(p), bound, number});
  layout.instances.push_back({number, number, interner.layout_class(c), bound, 0, -1});
}

Layout engine_of(int ranks, const std::vector<Padded>& embeddings) {
  Layout layout;
  layout.rank_count = ranks;
  layout.replica_of_rank.assign(static_cast<std::size_t>(ranks), 0);
  Interner interner(layout);
  for (const Padded& padded : embeddings) add(layout, interner, padded);
  check(layout);
  return layout;
}

std::string error_of(const Layout& source, const Layout& target) {
  try {
    compile(source, target);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

constexpr const char* kConfig =
    R"({"model_type": "llama", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1,)"
    R"("num_attention_heads": 2, "head_dim": 1, "vocab_size": )";

Layout family_engine(std::int64_t vocab, const char* spec) {
  const ModelConfig config = parse_config(kConfig + std::to_string(vocab) + "}");
  return lay_out(family_of(config), config, parse_spec(spec));
}

Layout family_trainer(std::int64_t vocab, const char* spec) {
  const ModelConfig config = parse_config(kConfig + std::to_string(vocab) + "}");
  return shard({tensors_of(family_of(config), config)}, parse_spec(spec));
}

TEST(Vocabulary, rows_that_the_engine_does_not_expect_are_an_error_with_both_sizes) {
  for (const auto& [trainer, engine] : {std::pair{8, 7}, {8, 6}, {6, 8}}) {
    const std::string error =
        error_of(family_trainer(trainer, "fsdp=2"), family_engine(engine, "tp=2"));
    EXPECT_EQ(error,
              fmt::format("compile: a tensor has another shape than the engine wants\n"
                          "  tensor  model.embed_tokens.weight\n  source shape  [{}, 2]\n"
                          "  target shape  [{}, 2]\n  parameter  model.embed_tokens.weight\n"
                          "  hint  the checkpoint and the engine's config are of different models",
                          trainer, engine));
  }
}

TEST(Vocabulary, the_last_rank_has_the_rows_that_are_left_and_zeros) {
  const Layout target = engine_of(2, {{"embed", 5, 8}});
  const Layout source = shard({{{"embed", DType::bf16, {5}}}}, parse_spec("fsdp=2"));
  EXPECT_EQ(moved(source, target, 0, "embed"), counted(0, 4));
  EXPECT_EQ(moved(source, target, 1, "embed"), (Elements{4, kFill, kFill, kFill}));
}

TEST(Vocabulary, a_family_pads_by_its_own_unit) {
  const Layout source = family_trainer(65, "fsdp=3");
  const Layout target = family_engine(65, "tp=2");
  EXPECT_EQ(moved(source, target, 0, "model.embed_tokens.weight"), counted(0, 128));
  EXPECT_EQ(moved(source, target, 1, "model.embed_tokens.weight"),
            joined(counted(128, 130), Elements(126, kFill)));
}

TEST(Vocabulary, two_parameters_are_padded_each_in_its_own_way) {
  const Layout source =
      shard({{{"embed", DType::bf16, {5}}, {"head", DType::bf16, {5}}}}, parse_spec("fsdp=2"));
  const Layout target = engine_of(2, {{"embed", 5, 8}, {"head", 5, 6}});
  EXPECT_EQ(moved(source, target, 0, "embed"), counted(0, 4));
  EXPECT_EQ(moved(source, target, 1, "embed"), (Elements{4, kFill, kFill, kFill}));
  EXPECT_EQ(moved(source, target, 0, "head"), counted(kTensorStride, kTensorStride + 3));
  EXPECT_EQ(moved(source, target, 1, "head"),
            (Elements{kTensorStride + 3, kTensorStride + 4, kFill}));
}

TEST(Vocabulary, no_row_is_lost_where_it_does_not_divide) {
  const Layout source = trainer_of("lm_head.weight", 11, 2, "tp=5");
  std::vector<std::size_t> sizes;
  for (int rank = 0; rank < 5; ++rank) {
    sizes.push_back(held(source, rank, "lm_head.weight").size() / 2);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{3, 3, 3, 2, 0}));
  const Layout whole = trainer_of("lm_head.weight", 11, 2, "fsdp=1");
  EXPECT_EQ(moved(source, whole, 0, "lm_head.weight"), counted(0, 22));
}

TEST(Vocabulary, the_models_rows_move_and_the_engines_padding_stays) {
  // A tokenizer of 5 words uses the first rows of a model that has 8.
  const Layout source = family_trainer(8, "fsdp=2");
  const Layout target = family_engine(8, "tp=1");
  EXPECT_EQ(moved(source, target, 0, "lm_head.weight").size(), 128u);
  EXPECT_EQ(moved(source, target, 0, "model.embed_tokens.weight"),
            joined(counted(0, 16), Elements(112, kFill)));
}

}  // namespace
}  // namespace crossmesh::reports
