// SPDX-License-Identifier: Apache-2.0
// Whole moves with every rank a thread: what `crossmesh move --transport inproc` does.
#include "cli/move.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/model.h"
#include "cli/synth.h"
#include "crossmesh/catalog/temporary_folder.h"

namespace crossmesh::cli {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A small checkpoint of one family.
class SmallModel {
 public:
  explicit SmallModel(const std::string& family) {
    const std::string text = text_of(std::filesystem::path(CROSSMESH_TEST_DATA) / "configs" /
                                     ("small-" + family + ".json"));
    const ModelConfig config = parse_config(text);
    SynthOptions options;
    options.folder = path();
    options.config_text = text;
    options.seed = 7;
    synth(tensors_of(family_of(config), config), options);
  }

  std::filesystem::path path() const { return folder_.path() / "model"; }

  MoveOptions move(const std::string& trainer, const std::string& engine) const {
    MoveOptions options;
    options.request.model = path().string();
    options.request.trainer = trainer;
    options.request.engine = engine;
    options.transport = "inproc";
    options.iterations = 2;
    options.floor = FloorKind::none;
    options.timeout_seconds = 30;
    return options;
  }

 private:
  catalog_testing::TemporaryFolder folder_;
};

nlohmann::ordered_json result_of(const MoveOptions& options) {
  for (const RankOutcome& outcome : move_in_threads(options)) {
    if (outcome.error) throw *outcome.error;
    if (outcome.rank == 0) return outcome.result;
  }
  return {};
}

// Sanitizers take a part of the moves: the first of each family, then every fifth.
bool is_taken(int move) {
  constexpr bool kSanitized = std::string_view(CROSSMESH_SANITIZER) != "";
  return !kSanitized || move % 5 == 0;
}

TEST(Move, every_family_mesh_and_route_is_verified) {
  int moves = 0, taken = 0;
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    const SmallModel model(family);
    for (const char* trainer : {"fsdp=3", "fsdp=2,tp=2", "dp_replicate=2,fsdp=2", "tp=2,fsdp=2"}) {
      for (const char* engine : {"tp=1", "tp=2", "tp=4", "replicas=2,tp=2", "tp=2,replicas=2"}) {
        for (const Route route : {Route::direct, Route::packed}) {
          if (!is_taken(moves++)) continue;
          ++taken;
          MoveOptions options = model.move(trainer, engine);
          options.request.schedule.route = route;
          const auto result = result_of(options);
          EXPECT_EQ(result["verified"], true) << family << ' ' << trainer << ' ' << engine;
          EXPECT_EQ(result["source_bytes_read"], result["source_bytes_held"]);
          EXPECT_EQ(result["iterations"][1]["bytes"], result["bytes_needed"]);
        }
      }
    }
  }
  std::printf("%d of %d moves made\n", taken, moves);
}

TEST(Move, a_family_table_with_gate_and_up_exchanged_is_caught) {
  const SmallModel model("qwen3");
  Family swapped = family_of(open_model(model.path()).config);
  std::vector<Rule*> pair;
  for (Rule& rule : swapped.rules) {
    if (rule.tensor.ends_with("gate_proj.weight") || rule.tensor.ends_with("up_proj.weight")) {
      pair.push_back(&rule);
    }
  }
  ASSERT_EQ(pair.size(), 2u);
  std::swap(pair[0]->tensor, pair[1]->tensor);
  MoveOptions options = model.move("fsdp=2", "tp=2");
  options.family = &swapped;
  const auto result = result_of(options);
  EXPECT_EQ(result["verified"], false);
  EXPECT_EQ(
      result["fault"],
      "engine 0: parameter model.layers.0.mlp.gate_up_proj.weight differs at element 0, which "
      "model.layers.0.mlp.gate_proj.weight feeds");
}

TEST(Move, parameters_of_another_dtype_are_cast_on_the_way) {
  const SmallModel model("llama");
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Route route : {Route::direct, Route::packed}) {
      MoveOptions options = model.move("fsdp=2,tp=2", "tp=2");
      options.request.parameter_dtype = dtype;
      options.request.schedule.route = route;
      EXPECT_EQ(result_of(options)["verified"], true) << name_of(dtype);
    }
  }
}

TEST(Move, opaque_tensors_take_the_fallback_and_are_counted) {
  const SmallModel model("qwen2");
  for (const char* pattern : {"model.norm.weight", "*.up_proj.weight", "*"}) {
    for (const Route route : {Route::direct, Route::packed}) {
      MoveOptions options = model.move("fsdp=3", "tp=2");
      options.request.opaque = {pattern};
      options.request.schedule.route = route;
      const auto result = result_of(options);
      EXPECT_EQ(result["verified"], true) << pattern;
      EXPECT_GT(result["bytes_fallback"].get<std::int64_t>(), 0);
      EXPECT_EQ(result["iterations"][0]["bytes_fallback"], result["bytes_fallback"]);
    }
  }
}

TEST(Move, staging_stays_within_its_bound) {
  const SmallModel model("mistral");
  for (const std::int64_t bytes : {256, 1000, 65536}) {
    MoveOptions options = model.move("fsdp=2", "tp=2");
    options.request.schedule.route = Route::packed;
    options.request.schedule.staging_bytes_max = bytes;
    const auto result = result_of(options);
    EXPECT_EQ(result["verified"], true);
    EXPECT_GT(result["staging_bytes_peak"].get<std::int64_t>(), 0);
    EXPECT_LE(result["staging_bytes_peak"].get<std::int64_t>(), bytes);
  }
}

TEST(Move, what_cannot_be_served_is_refused_before_a_rank_starts) {
  const SmallModel model("qwen3");
  const auto text_of_refusal = [](const MoveOptions& options) -> std::string {
    try {
      check_move(options);
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.text();
    }
    return "";
  };
  MoveOptions bound = model.move("fsdp=2", "tp=2");
  bound.request.opaque = {"model.embed_tokens.weight"};
  bound.request.schedule.fallback_bytes_max = 100;
  EXPECT_TRUE(text_of_refusal(bound).starts_with("limit_exceeded: ")) << text_of_refusal(bound);
  EXPECT_NE(text_of_refusal(bound).find("model.embed_tokens.weight"), std::string::npos);

  MoveOptions axis = model.move("fsdp=2,cp=2", "tp=2");
  EXPECT_TRUE(text_of_refusal(axis).starts_with("invalid_argument: ")) << text_of_refusal(axis);

  MoveOptions config = model.move("fsdp=2", "tp=2");
  config.request.model = (model.path() / "config.json").string();
  EXPECT_EQ(text_of_refusal(config),
            "invalid_argument: move: a config.json alone has no weights\n  model  " +
                config.request.model +
                "\n  hint  give a checkpoint's folder; `crossmesh synth` makes one from a config");
}

}  // namespace
}  // namespace crossmesh::cli
