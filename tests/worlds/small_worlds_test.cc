// SPDX-License-Identifier: Apache-2.0
// The deciding half over small worlds, against the oracle. Each family says how many worlds it has
// and by which rule it takes some of them, and prints how many it took.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "crossmesh/layout/spec.h"
#include "crossmesh/source/shard.h"
#include "crossmesh/target/family.h"
#include "tests/oracle/oracle.h"
#include "tests/worlds/made.h"
#include "tests/worlds/world.h"

namespace crossmesh::worlds {
namespace {

constexpr bool kIsSanitized = std::string_view(CROSSMESH_SANITIZER) != "";

// Gathers what a family found, and prints it when done.
class Family {
 public:
  Family(const char* name, std::string rule) : name_(name), rule_(std::move(rule)) {}
  ~Family() {
    const std::string text = fmt::format(
        "{}: {}; {} worlds, {} rightly refused, {} with factors that do not nest, {} spoiled "
        "and caught, {} copies, "
        "{} elements, {} whole tensors by the fallback\n",
        name_, rule_, tally_.worlds, tally_.refused, tally_.unnested, tally_.spoiled, tally_.copies,
        tally_.elements, tally_.fallbacks);
    std::fputs(text.c_str(), stdout);
  }

  void add(const World& world, const std::string& label) {
    ScheduleOptions options;
    options.route = tally_.worlds % 2 == 0 ? Route::direct : Route::packed;
    const std::string problem = judge(world, options, tally_);
    if (problem.empty()) return;
    if (++problems_ <= 10) ADD_FAILURE() << name_ << " " << label << "\n" << problem;
  }

  const Tally& tally() const { return tally_; }
  bool has_enough_problems() const { return problems_ >= 10; }

 private:
  const char* name_;
  std::string rule_;
  Tally tally_;
  int problems_ = 0;
};

// -- Trainer meshes to trainer meshes ------------------------------------------------------------

using Axes = std::vector<oracle::Axis>;

std::string text_of(const Axes& axes) {
  std::string text;
  for (const oracle::Axis& axis : axes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  }
  return text;
}

// Every product of axes, in every order, of up to 4 ranks.
std::vector<Axes> all_meshes() {
  std::vector<Axes> meshes = {{{"fsdp", 1}}};
  const std::vector<std::string> names = {"dp_replicate", "fsdp", "tp"};
  for (const std::string& name : names) {
    for (int size = 2; size <= 4; ++size) meshes.push_back({{name, size}});
    for (const std::string& other : names) {
      if (other != name) meshes.push_back({{name, 2}, {other, 2}});
    }
  }
  return meshes;
}

// 0 to 3 dimensions of extent 0 to 7.
std::vector<std::vector<std::int64_t>> all_shapes() {
  std::vector<std::vector<std::int64_t>> shapes = {{}};
  for (std::size_t from = 0; shapes[from].size() < 3; ++from) {
    for (std::int64_t extent = 0; extent <= 7; ++extent) {
      shapes.push_back(shapes[from]);
      shapes.back().push_back(extent);
    }
  }
  return shapes;
}

struct Named {
  const char* name;
  int tp_dim;
};
constexpr Named kNames[] = {{"model.norm.weight", -1},
                            {"model.layers.0.mlp.up_proj.weight", 0},
                            {"model.layers.1.mlp.down_proj.weight", 1}};

TEST(SmallWorlds, every_trainer_mesh_to_every_other) {
  const auto meshes = all_meshes();
  const auto shapes = all_shapes();
  ASSERT_EQ(shapes.size(), 585u);
  ASSERT_EQ(meshes.size(), 16u);
  // Sanitizers are slow: a prime takes some of each kind.
  constexpr std::size_t kEvery = kIsSanitized ? 29 : 1;
  const std::size_t total = shapes.size() * 3 * meshes.size() * meshes.size();
  Family family("shards", fmt::format("1 in {} of {}", kEvery, total));
  std::size_t number = 0;
  for (const auto& shape : shapes) {
    for (const Named& named : kNames) {
      const oracle::Tensor tensor{
          shape, named.tp_dim < static_cast<int>(shape.size()) ? named.tp_dim : -1};
      const Catalog catalog{{{named.name, DType::bf16, shape}}};
      std::vector<Layout> layouts;
      std::vector<oracle::Side> sides;
      for (const Axes& mesh : meshes) {
        layouts.push_back(shard(catalog, parse_spec(text_of(mesh))));
        sides.push_back(oracle::shard_naive({tensor}, mesh));
      }
      for (std::size_t s = 0; s < meshes.size(); ++s) {
        for (std::size_t t = 0; t < meshes.size(); ++t) {
          if (number++ % kEvery != 0) continue;
          family.add({layouts[s], layouts[t], {named.name}, sides[s], sides[t]},
                     fmt::format("{} [{}] {} to {}", named.name, fmt::join(shape, ", "),
                                 text_of(meshes[s]), text_of(meshes[t])));
          if (family.has_enough_problems()) return;
        }
      }
    }
  }
  EXPECT_EQ(number, total);
  EXPECT_EQ(family.tally().worlds, static_cast<std::int64_t>((total + kEvery - 1) / kEvery));
  EXPECT_EQ(family.tally().refused, 0);
}

// -- Layouts made by hand ------------------------------------------------------------------------

TEST(SmallWorlds, refined_transposed_interleaved_and_replicated_pieces) {
  constexpr std::uint64_t kCount = kIsSanitized ? 5'000 : 60'000;
  Family family("made", fmt::format("numbers 0 to {}", kCount - 1));
  for (std::uint64_t number = 0; number < kCount && !family.has_enough_problems(); ++number) {
    family.add(make_world(number), fmt::format("number {}", number));
  }
  EXPECT_EQ(family.tally().worlds, static_cast<std::int64_t>(kCount));
  EXPECT_GT(family.tally().fallbacks, 0);
  EXPECT_GT(family.tally().unnested, static_cast<std::int64_t>(kCount) / 100);
  // Some worlds lack a holder, most do not.
  EXPECT_GT(family.tally().refused, 0);
  EXPECT_LT(family.tally().refused, static_cast<std::int64_t>(kCount) / 4);
}

TEST(SmallWorlds, strided_parameters) {
  constexpr std::uint64_t kCount = kIsSanitized ? 1'000 : 10'000;
  Family family("strided", fmt::format("numbers 0 to {}", kCount - 1));
  for (std::uint64_t number = 0; number < kCount && !family.has_enough_problems(); ++number) {
    family.add(make_strided_world(number), fmt::format("number {}", number));
  }
  EXPECT_EQ(family.tally().refused, 0);
}

// -- Trainer meshes to engines -------------------------------------------------------------------

struct Model {
  const char* config;
  oracle::SmallModel small;
};

// Sizes that fsdp does not divide, vocabularies that are not padded and that are, KV heads that
// are fewer than tp.
const Model kModels[] = {
    {R"({"model_type": "llama", "hidden_size": 3, "intermediate_size": 4, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 1, "vocab_size": 64,
         "torch_dtype": "bfloat16"})",
     {.hidden = 3,
      .intermediate = 4,
      .layers = 1,
      .heads = 4,
      .kv_heads = 2,
      .head_size = 1,
      .vocabulary = 64}},
    {R"({"model_type": "llama", "hidden_size": 5, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 3, "vocab_size": 7,
         "torch_dtype": "bfloat16", "attention_bias": true, "mlp_bias": true})",
     {.hidden = 5,
      .intermediate = 12,
      .layers = 2,
      .heads = 4,
      .kv_heads = 1,
      .head_size = 3,
      .vocabulary = 7,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true}},
    {R"({"model_type": "mistral", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 2, "vocab_size": 33,
         "torch_dtype": "bfloat16"})",
     {.hidden = 4,
      .intermediate = 4,
      .layers = 1,
      .heads = 4,
      .kv_heads = 4,
      .head_size = 2,
      .vocabulary = 33}},
    {R"({"model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 65,
         "torch_dtype": "bfloat16", "tie_word_embeddings": true})",
     {.hidden = 8,
      .intermediate = 8,
      .layers = 1,
      .heads = 4,
      .kv_heads = 2,
      .head_size = 2,
      .vocabulary = 65,
      .tied = true,
      .qkv_bias = true}},
    {R"({"model_type": "qwen3", "hidden_size": 6, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 50,
         "torch_dtype": "bfloat16"})",
     {.hidden = 6,
      .intermediate = 20,
      .layers = 2,
      .heads = 8,
      .kv_heads = 2,
      .head_size = 2,
      .vocabulary = 50,
      .qk_norm = true}},
};

int tp_dim_of(const std::string& name) {
  for (const char* row : {"o_proj.weight", "down_proj.weight"}) {
    if (name.ends_with(row)) return 1;
  }
  const bool is_whole = name.find("norm") != std::string::npos || name.ends_with("o_proj.bias") ||
                        name.ends_with("down_proj.bias");
  return is_whole ? -1 : 0;
}

// The engine's side as the oracle has it, in the order of the layout's parameters.
oracle::Side in_order_of(const Layout& layout, const oracle::Engine& engine) {
  oracle::Side side;
  for (const auto& held : engine.side.elements) {
    auto& parameters = side.elements.emplace_back();
    for (const Parameter& parameter : layout.parameters) {
      const auto found = std::ranges::find(engine.parameters, parameter.name);
      const bool is_owner =
          layout.parameters[static_cast<std::size_t>(parameter.storage)].name == parameter.name;
      if (!is_owner) {
        parameters.emplace_back();
        continue;
      }
      EXPECT_NE(found, engine.parameters.end()) << parameter.name;
      parameters.push_back(held.at(static_cast<std::size_t>(found - engine.parameters.begin())));
    }
  }
  return side;
}

TEST(SmallWorlds, every_trainer_mesh_to_engines_of_every_family) {
  Family family("engines", "all of 560");
  for (const Model& model : kModels) {
    const ModelConfig config = parse_config(model.config);
    for (const auto& [replicas, tp] :
         std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}}) {
      const oracle::Engine engine =
          oracle::engine_naive(model.small, {.replicas = replicas, .tp = tp});
      const Layout target = lay_out(family_of(config), config,
                                    parse_spec(fmt::format("replicas={},tp={}", replicas, tp)));
      const oracle::Side wanted = in_order_of(target, engine);
      Catalog catalog;
      std::vector<oracle::Tensor> tensors;
      for (std::size_t t = 0; t < engine.tensors.size(); ++t) {
        catalog.tensors.push_back({engine.tensors[t], DType::bf16, engine.tensor_shapes[t]});
        tensors.push_back({engine.tensor_shapes[t], tp_dim_of(engine.tensors[t])});
      }
      for (const Axes& mesh : all_meshes()) {
        family.add({shard(catalog, parse_spec(text_of(mesh))), target, engine.tensors,
                    oracle::shard_naive(tensors, mesh), wanted},
                   fmt::format("{} {} to replicas={},tp={}", config.model_type, text_of(mesh),
                               replicas, tp));
        if (family.has_enough_problems()) return;
      }
    }
  }
  EXPECT_EQ(family.tally().worlds, 5 * 7 * 16);
  EXPECT_EQ(family.tally().refused, 0);
}

}  // namespace
}  // namespace crossmesh::worlds
