// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "crossmesh/base/error.h"
#include "crossmesh/target/family.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

using Json = nlohmann::json;
using Elements = std::vector<std::int64_t>;

Layout lay_out_config(const ModelConfig& config, const std::string& engine) {
  return lay_out(family_of(config), config, parse_spec(engine));
}

ModelConfig small_config(const std::string& family) {
  return parse_config(test_data("configs/small-" + family + ".json"));
}

std::string refusal_of(const ModelConfig& config, const std::string& engine) {
  try {
    lay_out_config(config, engine);
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "accepted";
}

// What one element of a parameter holds.
struct Cell {
  std::string_view tensor;    // `fill` of a constant, empty where nothing was written
  std::int64_t element = -1;  // of the tensor, or the bits of the constant
  int writes = 0;

  bool operator==(const Cell&) const = default;
};

struct ParameterImage {
  Elements shape;
  std::vector<Cell> cells;

  bool operator==(const ParameterImage&) const = default;
};

// Every element of every parameter of one rank.
using Image = std::map<std::string, ParameterImage>;

// The flat places of a strided region in row-major order of its shape.
Elements places(std::int64_t offset, const Elements& shape, const Elements& strides) {
  Elements at = {offset};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Elements next;
    next.reserve(at.size() * static_cast<std::size_t>(shape[d]));
    for (const std::int64_t base : at) {
      for (std::int64_t i = 0; i < shape[d]; ++i) next.push_back(base + i * strides[d]);
    }
    at = std::move(next);
  }
  return at;
}

Elements row_major(const Elements& shape) {
  Elements strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::int64_t product(const Elements& shape) {
  std::int64_t all = 1;
  for (const std::int64_t extent : shape) all *= extent;
  return all;
}

Elements list(const DimVector& v) { return {v.begin(), v.end()}; }

void write(ParameterImage& image, const Elements& at, std::string_view tensor,
           const Elements& values) {
  ASSERT_EQ(at.size(), values.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    ASSERT_GE(at[i], 0);
    ASSERT_LT(at[i], static_cast<std::int64_t>(image.cells.size()));
    Cell& cell = image.cells[static_cast<std::size_t>(at[i])];
    cell = {tensor, values[i], cell.writes + 1};
  }
}

ParameterImage blank(const Elements& shape) {
  return {shape, std::vector<Cell>(static_cast<std::size_t>(product(shape)))};
}

// A layout's image. Parameters that share another's storage have no cells of their own.
Image image_of(const Layout& layout, int rank) {
  Image image;
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const Parameter& parameter = layout.parameters[p];
    const int index = static_cast<int>(p);
    if (!has_parameter(layout, rank, index)) continue;
    const Elements shape = list(local_shape(layout, rank, index));
    EXPECT_EQ(list(local_strides(layout, rank, index)), row_major(shape));
    if (parameter.storage != index) continue;
    ParameterImage& one = image[parameter.name] = blank(shape);
    const int role = layout.bindings[static_cast<std::size_t>(parameter.binding)]
                         .role_of_rank[static_cast<std::size_t>(rank)];
    const auto& parameter_class =
        layout.parameter_classes[static_cast<std::size_t>(parameter.parameter_class)];
    for (const Reserve& reserve : parameter_class.reserves) {
      if (reserve.role != role) continue;
      const bool is_fill = reserve.kind == Reserve::Kind::fill;
      const Elements at = places(reserve.region.view.offset, list(reserve.region.shape),
                                 list(reserve.region.view.strides));
      write(one, at, is_fill ? "fill" : "derived",
            Elements(at.size(), static_cast<std::int64_t>(reserve.value_bits)));
    }
  }
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorInfo& tensor = layout.tensors[t];
    for (const PlacedPiece& placed : pieces(layout, rank, static_cast<int>(t))) {
      const Elements strides = row_major(tensor.shape);
      std::int64_t first = 0;
      for (std::size_t d = 0; d < strides.size(); ++d) {
        first += placed.piece.box.origin[static_cast<int>(d)] * strides[d];
      }
      const Elements shape = list(placed.piece.box.shape);
      write(image[layout.parameters[static_cast<std::size_t>(placed.parameter)].name],
            places(placed.piece.view.offset, shape, list(placed.piece.view.strides)), tensor.name,
            places(first, shape, strides));
    }
  }
  return image;
}

// The first difference of two images; empty when they are equal.
std::string difference(const Image& native, const Image& recorded) {
  for (const auto& [name, one] : native) {
    const auto other = recorded.find(name);
    if (other == recorded.end()) return name + " is not recorded";
    if (one.shape != other->second.shape) return name + " has another shape";
    for (std::size_t i = 0; i < one.cells.size(); ++i) {
      const Cell& a = one.cells[i];
      const Cell& b = other->second.cells[i];
      if (a == b) continue;
      std::ostringstream text;
      text << name << " element " << i << ": native " << a.tensor << '[' << a.element << "] x"
           << a.writes << ", recorded " << b.tensor << '[' << b.element << "] x" << b.writes;
      return text.str();
    }
  }
  for (const auto& [name, one] : recorded) {
    if (!native.contains(name)) return name + " is missing";
  }
  return "";
}

// -- Recorded layouts
// ------------------------------------------------------------------------------

// The source elements that a recorded chain selects, in order. Recorded chains of these families
// narrow one dimension, or unbind one; before that they may add it.
Elements evaluate(const Json& chain, Elements shape) {
  Elements strides = row_major(shape);
  std::int64_t offset = 0;
  for (const Json& step : chain) {
    EXPECT_EQ(step.at(2), Json::object());
    if (step.at(0) == "unsqueeze") {
      const auto dim = step.at(1).at(0).get<std::ptrdiff_t>();
      shape.insert(shape.begin() + dim, 1);
      strides.insert(strides.begin() + dim, 0);
      continue;
    }
    if (step.at(0) == "unbind") continue;
    if (step.at(0) == "__getitem__") {
      offset += step.at(1).at(0).get<std::int64_t>() * strides.at(0);
      shape.erase(shape.begin());
      strides.erase(strides.begin());
      continue;
    }
    EXPECT_EQ(step.at(0), "narrow");
    const auto dim = step.at(1).at(0).get<std::size_t>();
    const auto start = step.at(1).at(1).get<std::int64_t>();
    const auto length = step.at(1).at(2).get<std::int64_t>();
    EXPECT_LE(start + length, shape.at(dim));
    offset += start * strides.at(dim);
    shape.at(dim) = length;
  }
  return places(offset, shape, strides);
}

// Parameter shapes come with the scatters, and fills have none: scatters are read first.
Image recorded_image(const std::vector<Json>& lines) {
  Image image;
  for (const Json& line : lines) {
    if (line.at("kind") != "scatter") continue;
    ParameterImage& one = image[line.at("parameter")];
    const Elements shape = line.at("parameter_shape");
    if (one.shape.empty()) one = blank(shape);
    EXPECT_EQ(one.shape, shape);
    EXPECT_EQ(line.at("dtype"), "bfloat16");
    write(one, places(line.at("offset"), line.at("shape"), line.at("strides")),
          line.at("source").get_ref<const std::string&>(),
          evaluate(line.at("chain"), line.at("source_shape")));
  }
  for (const Json& line : lines) {
    if (line.at("kind") != "fill") continue;
    EXPECT_EQ(line.at("value"), 0);
    const Elements at = places(line.at("offset"), line.at("shape"), line.at("strides"));
    write(image.at(line.at("parameter")), at, "fill", Elements(at.size(), 0));
  }
  return image;
}

// What no loader writes is not recorded.
Image without_derived(Image image) {
  std::erase_if(image, [](const auto& entry) {
    return !entry.second.cells.empty() && entry.second.cells[0].tensor == "derived";
  });
  return image;
}

TEST(LayOut, native_layouts_equal_the_recorded_ones) {
  std::istringstream file(test_data("golden_layouts.jsonl"));
  const Json configs = Json::parse(test_data("golden_configs.json"));
  std::map<std::tuple<std::string, std::string, int>, std::vector<Json>> lines_of_rank;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    const std::string model =
        line.at("family").get<std::string>() + "/" + std::to_string(line.at("vocab").get<int>());
    std::string engine = "tp=" + std::to_string(line.at("tp").get<int>());
    const std::string placement = line.value("expert_placement", "");
    if (!placement.empty()) engine += ",experts=" + placement;
    lines_of_rank[{model, engine, line.at("rank")}].push_back(line);
  }
  // Eight configs at tp 1, 2 and 4; three families at tp 2 and 4, experts spread in two ways.
  ASSERT_EQ(lines_of_rank.size(), 8U * (1 + 2 + 4) + 3U * 2 * (2 + 4));
  for (const auto& [key, lines] : lines_of_rank) {
    const auto& [model, engine, rank] = key;
    const Layout layout = lay_out_config(parse_config(configs.at(model).dump()), engine);
    EXPECT_EQ(difference(without_derived(image_of(layout, rank)), recorded_image(lines)), "")
        << model << ' ' << engine << " rank " << rank;
  }
}

// -- Every element --------------------------------------------------------------------------------

// How often each element of a tensor lies on one instance of `tp` ranks, by the tensor's name.
int expected_copies(const std::string& name, const ModelConfig& config, int tp) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("_a_proj") || has("mlp.gate.") || has("moe.gate.")) return tp;
  if (has("k_proj") || has("v_proj")) return std::max(1, tp / static_cast<int>(config.kv_heads));
  if (has("norm") || has("o_proj.bias") || has("down_proj.bias")) return tp;
  return 1;
}

struct Counts {
  int replicas = 1;
  int dp = 1;
  int tp = 1;
  bool spreads = false;
};

void expect_each_element_once(const ModelConfig& config, const std::string& engine,
                              const Counts& mesh) {
  SCOPED_TRACE(config.model_type + " " + engine);
  const Layout layout = lay_out_config(config, engine);
  check(layout);
  // Of a quantised model only the scales: its weights are large.
  const auto counts = [&](std::string_view tensor) {
    if (config.scale_block > 0) return tensor.ends_with("_scale_inv");
    return tensor != "fill" && tensor != "derived";
  };
  std::map<int, std::map<std::string_view, std::map<std::int64_t, int>>> copies_of_replica;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const int replica = layout.replica_of_rank[static_cast<std::size_t>(rank)];
    const Image image = image_of(layout, rank);
    for (const auto& [name, parameter] : image) {
      for (const Cell& cell : parameter.cells) {
        ASSERT_EQ(cell.writes, 1) << name;
        if (!counts(cell.tensor)) continue;
        // The names belong to the layout, which outlives the image.
        ++copies_of_replica[replica][cell.tensor][cell.element];
      }
    }
  }
  ASSERT_EQ(static_cast<int>(copies_of_replica.size()), mesh.replicas);
  for (const auto& [replica, copies] : copies_of_replica) {
    for (const TensorInfo& tensor : layout.tensors) {
      if (!counts(tensor.name)) continue;
      const bool is_expert = tensor.name.find(".experts.") != std::string::npos;
      const bool is_shared = tensor.name.find("shared_experts.") != std::string::npos;
      int expected = mesh.dp * expected_copies(tensor.name, config, mesh.tp);
      if (is_expert) expected = 1;
      if (is_shared && mesh.spreads && mesh.dp > 1 && mesh.tp > 1) expected = mesh.dp * mesh.tp;
      const bool is_twice = config.tied_embeddings && engine.find("pp=") != std::string::npos &&
                            tensor.name == "model.embed_tokens.weight";
      if (is_twice) expected *= 2;
      const auto& of_tensor = copies.at(tensor.name);
      ASSERT_EQ(static_cast<std::int64_t>(of_tensor.size()), product(tensor.shape));
      for (const auto& [element, count] : of_tensor) {
        ASSERT_EQ(count, expected) << tensor.name << element;
      }
    }
  }
}

TEST(LayOut, every_element_lies_on_every_replica_as_often_as_its_rule_says) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    const ModelConfig config = small_config(family);
    for (const int tp : {1, 2, 4}) {
      const std::string axis = "tp=" + std::to_string(tp);
      expect_each_element_once(config, axis, {1, 1, tp});
      expect_each_element_once(config, "replicas=2," + axis, {2, 1, tp});
      expect_each_element_once(config, axis + ",replicas=3", {3, 1, tp});
    }
  }
}

TEST(LayOut, every_element_of_a_mixture_lies_where_experts_and_stages_say) {
  for (const char* family : {"mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3"}) {
    const ModelConfig config = small_config(family);
    for (const int tp : {1, 2, 4}) {
      expect_each_element_once(config, "tp=" + std::to_string(tp), {1, 1, tp});
    }
    expect_each_element_once(config, "dp=2", {1, 2, 1});
    expect_each_element_once(config, "replicas=2,dp=2,tp=2", {2, 2, 2});
    for (const std::string way : {"linear", "round_robin"}) {
      const std::string experts = ",experts=" + way;
      expect_each_element_once(config, "tp=2" + experts, {1, 1, 2, true});
      expect_each_element_once(config, "tp=4" + experts, {1, 1, 4, true});
      expect_each_element_once(config, "dp=2" + experts, {1, 2, 1, true});
      expect_each_element_once(config, "tp=2,dp=2" + experts, {1, 2, 2, true});
      expect_each_element_once(config, "pp=2,replicas=2,dp=2,tp=2" + experts, {2, 2, 2, true});
    }
  }
}

TEST(LayOut, every_element_lies_on_one_stage) {
  for (const char* family : {"llama", "qwen3", "mixtral", "qwen3-moe", "deepseek-v3"}) {
    ModelConfig config = small_config(family);
    for (const int stages : {2, 3}) {
      if (stages > config.layers) continue;
      const std::string axis = "pp=" + std::to_string(stages);
      expect_each_element_once(config, axis + ",tp=2", {1, 1, 2});
      expect_each_element_once(config, "tp=2," + axis, {1, 1, 2});
    }
  }
}

TEST(LayOut, rank_numbers_follow_the_order_of_the_axes) {
  const ModelConfig config = small_config("llama");
  EXPECT_EQ(lay_out_config(config, "replicas=2,tp=2").replica_of_rank,
            (std::vector<int>{0, 0, 1, 1}));
  const Layout layout = lay_out_config(config, "tp=2,replicas=2");
  EXPECT_EQ(layout.replica_of_rank, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(image_of(layout, 0), image_of(layout, 1));
  EXPECT_EQ(image_of(layout, 2), image_of(layout, 3));
  EXPECT_NE(image_of(layout, 1), image_of(layout, 2));
}

// -- Worked values --------------------------------------------------------------------------------

// `parameter rows <- tensor rows`, one line a run, of one rank's parameter.
std::string rows_of(const Layout& layout, int rank, const std::string& parameter) {
  const Image image = image_of(layout, rank);
  const ParameterImage& one = image.at(parameter);
  const std::int64_t width = product(one.shape) / one.shape[0];
  std::ostringstream text;
  for (std::int64_t row = 0; row < one.shape[0];) {
    const Cell& first = one.cells[static_cast<std::size_t>(row * width)];
    std::int64_t end = row + 1;
    const auto follows = [&](std::int64_t r) {
      const Cell& cell = one.cells[static_cast<std::size_t>(r * width)];
      return cell.tensor == first.tensor &&
             (cell.tensor == "fill" || cell.element == first.element + (r - row) * width);
    };
    while (end < one.shape[0] && follows(end)) ++end;
    text << row << '-' << end - 1 << " <- ";
    if (first.tensor == "fill") {
      text << "fill " << first.element << '\n';
    } else {
      text << first.tensor << ' ' << first.element / width << '-'
           << first.element / width + end - 1 - row << '\n';
    }
    row = end;
  }
  return text.str();
}

ModelConfig worked_config() {
  ModelConfig config;
  config.model_type = "llama";
  config.hidden = 64;
  config.intermediate = 24;
  config.layers = 1;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_size = 16;
  config.vocab = 100;
  return config;
}

TEST(LayOut, fused_q_k_and_v_repeat_kv_heads_past_their_number) {
  EXPECT_EQ(rows_of(lay_out_config(worked_config(), "tp=4"), 3,
                    "model.layers.0.self_attn.qkv_proj.weight"),
            "0-31 <- model.layers.0.self_attn.q_proj.weight 96-127\n"
            "32-47 <- model.layers.0.self_attn.k_proj.weight 16-31\n"
            "48-63 <- model.layers.0.self_attn.v_proj.weight 16-31\n");
}

TEST(LayOut, fused_gate_and_up_take_the_same_rows_of_each) {
  EXPECT_EQ(
      rows_of(lay_out_config(worked_config(), "tp=2"), 1, "model.layers.0.mlp.gate_up_proj.weight"),
      "0-11 <- model.layers.0.mlp.gate_proj.weight 12-23\n"
      "12-23 <- model.layers.0.mlp.up_proj.weight 12-23\n");
}

TEST(LayOut, the_vocabulary_is_padded_to_64_and_split) {
  const Layout layout = lay_out_config(worked_config(), "tp=2");
  for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_EQ(rows_of(layout, 0, name), "0-63 <- " + name + " 0-63\n");
    EXPECT_EQ(rows_of(layout, 1, name), "0-35 <- " + name + " 64-99\n36-63 <- fill 0\n");
  }
  EXPECT_EQ(rows_of(lay_out_config(worked_config(), "tp=8"), 7, "lm_head.weight"),
            "0-15 <- fill 0\n");
  ModelConfig config = worked_config();
  config.vocab = 65;
  EXPECT_EQ(rows_of(lay_out_config(config, "tp=1"), 0, "lm_head.weight"),
            "0-64 <- lm_head.weight 0-64\n65-127 <- fill 0\n");
}

// -- Experts, stages ------------------------------------------------------------------------------

// The experts of each rank, slot by slot: of layer 1's `up` in w13.
std::string experts_of(const Layout& layout) {
  std::string text;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const Image image = image_of(layout, rank);
    const auto at = image.find("model.layers.1.mlp.experts.routed_experts.w13_weight");
    text += std::to_string(rank) + ':';
    if (at != image.end()) {
      const ParameterImage& one = at->second;
      for (std::int64_t slot = 0; slot < one.shape[0]; ++slot) {
        const std::int64_t last = (slot + 1) * product(one.shape) / one.shape[0] - 1;
        const std::string name(one.cells[static_cast<std::size_t>(last)].tensor);
        constexpr std::size_t kPrefix = std::string_view("model.layers.1.mlp.experts.").size();
        text += ' ' + name.substr(kPrefix, name.find('.', kPrefix) - kPrefix);
      }
    }
    text += '\n';
  }
  return text;
}

TEST(LayOut, experts_spread_over_ranks_the_first_of_which_hold_one_more) {
  const ModelConfig config = small_config("deepseek-v3");
  EXPECT_EQ(experts_of(lay_out_config(config, "tp=4,experts=linear")),
            "0: 0 1\n1: 2 3\n2: 4\n3: 5\n");
  EXPECT_EQ(experts_of(lay_out_config(config, "tp=4,experts=round_robin")),
            "0: 0 4\n1: 1 5\n2: 2\n3: 3\n");
  EXPECT_EQ(experts_of(lay_out_config(config, "dp=2,tp=2,experts=round_robin")),
            "0: 0 4\n1: 1 5\n2: 2\n3: 3\n");
  EXPECT_EQ(experts_of(lay_out_config(config, "tp=2,dp=2,experts=round_robin")),
            "0: 0 4\n1: 2\n2: 1 5\n3: 3\n");
  EXPECT_EQ(experts_of(lay_out_config(config, "pp=2,tp=2,experts=linear")),
            "0: 0 1 2\n1: 3 4 5\n2:\n3:\n");
}

TEST(LayOut, experts_that_do_not_spread_are_cut_by_all_ranks_of_dp_and_tp) {
  const ModelConfig config = small_config("deepseek-v3");
  // Of twelve columns, rank dp * 2 + tp takes three; both orders of axes number it so.
  const Layout layout = lay_out_config(config, "dp=2,tp=2");
  const Layout other = lay_out_config(config, "tp=2,dp=2");
  const std::string w2 = "model.layers.1.mlp.experts.routed_experts.w2_weight";
  for (const auto& [rank, other_rank] : {std::pair(0, 0), {1, 2}, {2, 1}, {3, 3}}) {
    const ParameterImage image = image_of(layout, rank).at(w2);
    EXPECT_EQ(image.shape, (Elements{6, 40, 3}));
    for (int column = 0; column < 3; ++column) {
      EXPECT_EQ(image.cells[static_cast<std::size_t>(column)],
                (Cell{"model.layers.1.mlp.experts.0.down_proj.weight", 3 * rank + column, 1}));
    }
    EXPECT_EQ(image_of(other, other_rank).at(w2), image);
  }
}

TEST(LayOut, round_robin_is_linear_where_the_router_has_no_groups) {
  ModelConfig config = small_config("deepseek-v3");
  config.expert_groups = 1;
  EXPECT_EQ(lay_out_config(config, "tp=4,experts=round_robin"),
            lay_out_config(config, "tp=4,experts=linear"));
}

TEST(LayOut, an_expert_may_lie_in_several_slots) {
  const ModelConfig config = small_config("deepseek-v3");
  EngineOptions options;
  options.expert_of_slot = {{5, 0, 1, 5, 2, 3, 4, 0}};
  const Layout layout =
      lay_out(family_of(config), config, parse_spec("tp=4,experts=linear"), options);
  check(layout);
  EXPECT_EQ(experts_of(layout), "0: 5 0\n1: 1 5\n2: 2 3\n3: 4 0\n");
  options.expert_of_slot = {{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {1, 0, 3, 2, 5, 4}};
  EXPECT_EQ(
      experts_of(lay_out(family_of(config), config, parse_spec("tp=2,experts=linear"), options)),
      "0: 0 1 2\n1: 3 4 5\n");
  std::swap(options.expert_of_slot[0], options.expert_of_slot[1]);
  EXPECT_EQ(
      experts_of(lay_out(family_of(config), config, parse_spec("tp=2,experts=linear"), options)),
      "0: 5 4 3\n1: 2 1 0\n");
}

TEST(LayOut, layers_past_the_last_are_unused_and_absorbed_matrices_derived) {
  const Layout layout = lay_out_config(small_config("deepseek-v3"), "tp=2");
  const auto unused = [&](const char* name) {
    return std::ranges::count(layout.unused,
                              Unused{name, "of a layer that predicts further tokens"});
  };
  // Six of its own, four norms, five of attention, the router and its bias, 3 * (6 + 1) experts.
  EXPECT_EQ(layout.unused.size(), 6U + 2 + 2 + 5 + 2 + 3 * (6 + 1));
  EXPECT_EQ(unused("model.layers.4.eh_proj.weight"), 1);
  EXPECT_EQ(unused("model.layers.4.mlp.experts.5.down_proj.weight"), 1);
  EXPECT_EQ(unused("model.layers.4.mlp.gate.e_score_correction_bias"), 1);
  const Image image = image_of(layout, 1);
  const ParameterImage& key = image.at("model.layers.3.self_attn.mla_attn.W_UK_T");
  const ParameterImage& value = image.at("model.layers.3.self_attn.mla_attn.W_UV");
  EXPECT_EQ(key.shape, (Elements{2, 6, 10}));
  EXPECT_EQ(value.shape, (Elements{2, 10, 7}));
  for (const Cell& cell : key.cells) EXPECT_EQ(cell, (Cell{"derived", 0, 1}));
  const Reserve expected{Reserve::Kind::derived,
                         0,
                         {{2, 10, 7}, {0, {70, 7, 1}}},
                         0,
                         "computed from kv_b_proj.weight"};
  EXPECT_EQ(std::ranges::count_if(layout.parameter_classes,
                                  [&](const ParameterClass& c) {
                                    return c.reserves == std::vector<Reserve>{expected};
                                  }),
            1);
}

TEST(LayOut, a_tied_embedding_lies_on_the_first_and_the_last_stage) {
  const Layout layout = lay_out_config(small_config("qwen3"), "pp=3,tp=2");
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(has_parameter(layout, rank, 0), rank < 2 || rank >= 4) << rank;
    EXPECT_EQ(has_parameter(layout, rank, static_cast<int>(layout.parameters.size()) - 1),
              rank >= 4);
  }
}

// -- Scales of blocks -----------------------------------------------------------------------------

// Weights that are not all of whole blocks of 128.
ModelConfig quantised_config() {
  ModelConfig config = small_config("deepseek-v3");
  config.hidden = 256;
  config.layers = 2;
  config.prediction_layers = 0;
  config.sparse_layer = {false, true};
  config.experts = 2;
  config.intermediate = config.expert_intermediate = 256;
  config.query_rank = 128;
  config.latent = 100;
  config.plain_head_size = config.rotary_head_size = config.value_head_size = 64;
  config.head_size = 128;
  config.scale_block = 128;
  return config;
}

TEST(LayOut, scales_are_cut_as_the_blocks_of_their_weights) {
  const Layout layout = lay_out_config(quantised_config(), "tp=2");
  check(layout);
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(rows_of(layout, 1, layer + "mlp.gate_up_proj.weight_scale_inv"),
            "0-0 <- model.layers.0.mlp.gate_proj.weight_scale_inv 1-1\n"
            "1-1 <- model.layers.0.mlp.up_proj.weight_scale_inv 1-1\n");
  // 164 rows of the second are two blocks, the last of them cut short.
  EXPECT_EQ(rows_of(layout, 1, layer + "self_attn.fused_qkv_a_proj.weight_scale_inv"),
            "0-0 <- model.layers.0.self_attn.q_a_proj.weight_scale_inv 0-0\n"
            "1-2 <- model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv 0-1\n");
  const Image image = image_of(layout, 1);
  EXPECT_EQ(image.at(layer + "self_attn.kv_b_proj.weight_scale_inv").shape, (Elements{2, 1}));
  EXPECT_EQ(image.at("model.layers.1.mlp.experts.routed_experts.w13_weight_scale_inv").shape,
            (Elements{2, 2, 2}));
  EXPECT_EQ(image.at("model.layers.1.mlp.experts.routed_experts.w2_weight_scale_inv").shape,
            (Elements{2, 2, 1}));
  for (const TensorInfo& tensor : layout.tensors) {
    const bool holds_scales = tensor.name.ends_with("_scale_inv");
    const bool is_plain = tensor.name.find("norm") != std::string::npos ||
                          tensor.name.find("mlp.gate.") != std::string::npos ||
                          tensor.name == "model.embed_tokens.weight" ||
                          tensor.name == "lm_head.weight";
    const bool is_bias = tensor.name.ends_with("e_score_correction_bias");
    EXPECT_EQ(tensor.dtype, holds_scales || is_bias ? DType::f32
                            : is_plain              ? DType::bf16
                                                    : DType::f8_e4m3)
        << tensor.name;
  }
  for (const Instance& instance : layout.instances) {
    const auto parameter = static_cast<std::size_t>(instance.parameter);
    const auto c = static_cast<std::size_t>(layout.parameters[parameter].parameter_class);
    EXPECT_EQ(layout.parameter_classes[c].dtype,
              layout.tensors[static_cast<std::size_t>(instance.tensor)].dtype);
  }
  EXPECT_EQ(layout.tensors, [] {
    const ModelConfig config = quantised_config();
    return tensors_of(family_of(config), config);
  }());
}

TEST(LayOut, every_scale_lies_once) {
  const ModelConfig config = quantised_config();
  expect_each_element_once(config, "tp=2", {1, 1, 2});
  expect_each_element_once(config, "tp=2,experts=linear", {1, 1, 2, true});
  expect_each_element_once(config, "dp=2,experts=linear", {1, 2, 1, true});
}

// -- Stacked experts ------------------------------------------------------------------------------

// The same image with each expert's elements where the stacks of its layer have them.
Image as_stacked(const Image& image, const ModelConfig& config, std::vector<std::string>& names) {
  const std::int64_t size = config.expert_intermediate * config.hidden;
  Image stacked = image;
  for (auto& [name, parameter] : stacked) {
    for (Cell& cell : parameter.cells) {
      std::string tensor(cell.tensor);
      const std::size_t router = tensor.find("block_sparse_moe.");
      if (router != std::string::npos) tensor.replace(router, 17, "mlp.");
      const std::size_t experts = tensor.find(".experts.");
      if (experts == std::string::npos && router == std::string::npos) continue;
      if (experts != std::string::npos) {
        const std::string rest = tensor.substr(experts + 9);
        const std::int64_t expert = std::stoll(rest);
        const std::string projection = rest.substr(rest.find('.') + 1);
        const bool is_down = projection == "down_proj.weight" || projection == "w2.weight";
        const bool is_up = projection == "up_proj.weight" || projection == "w3.weight";
        tensor = tensor.substr(0, experts + 9) + (is_down ? "down_proj" : "gate_up_proj");
        cell.element += is_down ? expert * size : (2 * expert + (is_up ? 1 : 0)) * size;
      }
      const auto known = std::ranges::find(names, tensor);
      cell.tensor = known == names.end() ? "unknown" : std::string_view(*known);
    }
  }
  return stacked;
}

TEST(LayOut, stacked_experts_lie_where_single_ones_do) {
  for (const char* family : {"mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3"}) {
    const ModelConfig config = small_config(family);
    for (const char* engine : {"tp=1", "tp=4", "dp=2", "tp=2,dp=2", "pp=2,tp=2", "replicas=2,tp=2",
                               "tp=2,experts=linear", "tp=4,experts=linear",
                               "dp=2,tp=2,experts=round_robin", "pp=2,dp=2,experts=round_robin"}) {
      SCOPED_TRACE(std::string(family) + " " + engine);
      const Layout each = lay_out_config(config, engine);
      const Layout stacked =
          lay_out(family_of(config, ExpertForm::stacked), config, parse_spec(engine));
      check(stacked);
      EXPECT_EQ(stacked.tensors, [&] {
        std::vector<TensorInfo> all = tensors_of(family_of(config, ExpertForm::stacked), config);
        std::erase_if(all, [&](const TensorInfo& t) {
          return std::ranges::find(stacked.tensors, t.name, &TensorInfo::name) ==
                 stacked.tensors.end();
        });
        return all;
      }());
      std::vector<std::string> names;
      for (const TensorInfo& tensor : stacked.tensors) names.push_back(tensor.name);
      for (int rank = 0; rank < each.rank_count; ++rank) {
        EXPECT_EQ(
            difference(image_of(stacked, rank), as_stacked(image_of(each, rank), config, names)),
            "");
      }
    }
  }
}

TEST(LayOut, a_stacked_expert_may_lie_in_several_slots_of_a_rank) {
  const ModelConfig config = small_config("deepseek-v3");
  EngineOptions options;
  // The first layer has expert 5 twice on a rank, and neighbours in neighbouring slots.
  options.expert_of_slot = {
      {5, 0, 1, 5, 2, 3, 4, 0}, {0, 1, 2, 3, 4, 5, 5, 5}, {3, 3, 3, 3, 5, 4, 2, 1}};
  options.expert_of_slot[2][3] = 0;
  const Spec engine = parse_spec("tp=2,experts=linear");
  const Layout each = lay_out(family_of(config), config, engine, options);
  const Layout stacked = lay_out(family_of(config, ExpertForm::stacked), config, engine, options);
  check(stacked);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : stacked.tensors) names.push_back(tensor.name);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(difference(image_of(stacked, rank), as_stacked(image_of(each, rank), config, names)),
              "");
  }
}

TEST(LayOut, stacks_of_float8_come_with_the_stacks_of_their_scales) {
  const ModelConfig config = quantised_config();
  const Layout layout = lay_out(family_of(config, ExpertForm::stacked), config, parse_spec("tp=2"));
  check(layout);
  const std::string experts = "model.layers.1.mlp.experts.";
  const ParameterImage scales =
      image_of(layout, 1).at(experts + "routed_experts.w13_weight_scale_inv");
  EXPECT_EQ(scales.shape, (Elements{2, 2, 2}));
  // Of [2, 4, 2]: the second row of blocks of each gate, and of each up.
  const std::string both = experts + "gate_up_proj_scale_inv";
  for (const auto& [at, element] : {std::pair(0, 2), {2, 6}, {4, 10}, {6, 14}}) {
    EXPECT_EQ(scales.cells[static_cast<std::size_t>(at)], (Cell{both, element, 1}));
  }
  ModelConfig narrow = config;
  narrow.expert_intermediate = narrow.intermediate = 192;
  try {
    lay_out(family_of(narrow, ExpertForm::stacked), narrow, parse_spec("tp=1"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "lay out: a fused weight begins inside a block of scales\n  row  192\n  block  128\n"
              "  tensor  model.layers.{}.mlp.up_proj.weight");
  }
}

// -- Cases that went wrong elsewhere, reduced -----------------------------------------------------

// One dense layer of float8 whose queries, keys and values are 256, 128 and 128 rows.
ModelConfig dense_float8() {
  ModelConfig config = worked_config();
  config.hidden = 130;
  config.intermediate = 256;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_size = 128;
  config.scale_block = 128;
  return config;
}

TEST(LayOut, scales_of_blocks_that_are_cut_short_are_counted_up) {
  // The number of scale rows was rounded down: 130 rows have 2, and [256, 384] has [2, 3].
  ModelConfig config = dense_float8();
  config.heads = 3;
  config.kv_heads = 3;
  std::map<std::string, Elements> shape_of;
  for (const TensorInfo& tensor : tensors_of(family_of(config), config)) {
    shape_of[tensor.name] = tensor.shape;
  }
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shape_of.at(layer + "self_attn.o_proj.weight"), (Elements{130, 384}));
  EXPECT_EQ(shape_of.at(layer + "self_attn.o_proj.weight_scale_inv"), (Elements{2, 3}));
  EXPECT_EQ(shape_of.at(layer + "mlp.gate_proj.weight_scale_inv"), (Elements{2, 2}));
  const Image image = image_of(lay_out_config(config, "tp=1"), 0);
  EXPECT_EQ(image.at(layer + "self_attn.o_proj.weight_scale_inv").shape, (Elements{2, 3}));
}

TEST(LayOut, scale_rows_of_a_fused_weight_are_divided_once) {
  // They were cut at the weights' rows, or divided twice: of 256, 128 and 128 rows they are 0-1, 2
  // and 3.
  EXPECT_EQ(rows_of(lay_out_config(dense_float8(), "tp=1"), 0,
                    "model.layers.0.self_attn.qkv_proj.weight_scale_inv"),
            "0-1 <- model.layers.0.self_attn.q_proj.weight_scale_inv 0-1\n"
            "2-2 <- model.layers.0.self_attn.k_proj.weight_scale_inv 0-0\n"
            "3-3 <- model.layers.0.self_attn.v_proj.weight_scale_inv 0-0\n");
  // Two ranks share the only KV head, and its scales.
  EXPECT_EQ(rows_of(lay_out_config(dense_float8(), "tp=2"), 1,
                    "model.layers.0.self_attn.qkv_proj.weight_scale_inv"),
            "0-0 <- model.layers.0.self_attn.q_proj.weight_scale_inv 1-1\n"
            "1-1 <- model.layers.0.self_attn.k_proj.weight_scale_inv 0-0\n"
            "2-2 <- model.layers.0.self_attn.v_proj.weight_scale_inv 0-0\n");
}

TEST(LayOut, columns_split_with_their_scales_or_not_at_all) {
  // A shard of columns was taken to begin on a block: of 256 each rank has one, of 384 the second
  // begins inside the second.
  ModelConfig config = dense_float8();
  const Layout layout = lay_out_config(config, "tp=2");
  const Image image = image_of(layout, 1);
  const ParameterImage& scales = image.at("model.layers.0.mlp.down_proj.weight_scale_inv");
  EXPECT_EQ(scales.shape, (Elements{2, 1}));
  const std::string down = "model.layers.0.mlp.down_proj.weight_scale_inv";
  EXPECT_EQ(scales.cells, (std::vector<Cell>{{down, 1, 1}, {down, 3, 1}}));
  config.heads = config.kv_heads = 6;
  config.head_size = 64;
  EXPECT_EQ(refusal_of(config, "tp=2"),
            "unsupported: lay out: a cut falls inside a block of scales\n"
            "  box  [0:192, 0:130]\n  weight  [384, 130]\n  block  128\n"
            "  tensor  model.layers.{}.self_attn.q_proj.weight_scale_inv");
}

TEST(LayOut, the_size_of_a_block_is_not_told_by_shapes) {
  // 1000 rows with 8 rows of scales are no blocks of 125: a cut there is inside the first of 128.
  ModelConfig config = dense_float8();
  config.intermediate = 1000;
  config.heads = config.kv_heads = 8;
  EXPECT_EQ(refusal_of(config, "tp=8"),
            "unsupported: lay out: a cut falls inside a block of scales\n"
            "  box  [0:125, 0:130]\n  weight  [1000, 130]\n  block  128\n"
            "  tensor  model.layers.{}.mlp.gate_proj.weight_scale_inv");
}

// Four experts in two groups, in the second of two layers.
ModelConfig four_experts() {
  ModelConfig config = small_config("deepseek-v3");
  config.layers = 2;
  config.prediction_layers = 0;
  config.sparse_layer = {false, true};
  config.experts = 4;
  config.expert_groups = 2;
  return config;
}

TEST(LayOut, experts_that_are_dealt_are_where_the_map_says) {
  // Dealt to two ranks, the second slot of rank 0 was filled with expert 1 for expert 2.
  EXPECT_EQ(experts_of(lay_out_config(four_experts(), "tp=2,experts=round_robin")),
            "0: 0 2\n1: 1 3\n");
}

TEST(LayOut, every_slot_of_redundant_experts_is_fed) {
  // Six slots were made and four mapped: the others kept what lay there.
  const ModelConfig config = four_experts();
  for (const ExpertForm form : {ExpertForm::each, ExpertForm::stacked}) {
    const Layout layout = lay_out(family_of(config, form), config,
                                  parse_spec("tp=2,experts=linear"), {{}, {{0, 1, 2, 3, 0, 1}}});
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& [name, parameter] : image_of(layout, rank)) {
        for (const Cell& cell : parameter.cells) ASSERT_EQ(cell.writes, 1) << name;
        if (name.find("w13") != std::string::npos) {
          EXPECT_EQ(parameter.shape[0], 3);
        }
      }
    }
    if (form == ExpertForm::each) {
      EXPECT_EQ(experts_of(layout), "0: 0 1 2\n1: 3 0 1\n");
    }
  }
}

TEST(LayOut, gates_of_stacked_experts_are_above_their_ups) {
  // Two experts of one row and one column: [[g0; u0], [g1; u1]]. A consumer of single experts took
  // none of them, in silence.
  ModelConfig config = small_config("mixtral");
  config.layers = 1;
  config.experts = 2;
  config.expert_intermediate = 1;
  config.hidden = 1;
  const Layout layout = lay_out(family_of(config, ExpertForm::stacked), config, parse_spec("tp=1"));
  const std::string both = "model.layers.0.mlp.experts.gate_up_proj";
  const std::string experts = "model.layers.0.block_sparse_moe.experts.routed_experts.";
  EXPECT_EQ(image_of(layout, 0).at(experts + "w13_weight").cells,
            (std::vector<Cell>{{both, 0, 1}, {both, 1, 1}, {both, 2, 1}, {both, 3, 1}}));
  // Of two rows, a rank's gate is row `rank` and its up two rows on.
  config.expert_intermediate = 2;
  config.heads = config.kv_heads = 2;
  const Layout cut = lay_out(family_of(config, ExpertForm::stacked), config, parse_spec("tp=2"));
  EXPECT_EQ(image_of(cut, 1).at(experts + "w13_weight").cells,
            (std::vector<Cell>{{both, 1, 1}, {both, 3, 1}, {both, 5, 1}, {both, 7, 1}}));
}

TEST(LayOut, attention_under_dp_is_cut_by_tp_alone) {
  // Of eight ranks in two copies, rank 5 took slice 5 of 8 for slice 1 of 4.
  ModelConfig config = small_config("qwen3-moe");
  config.experts = 8;
  EXPECT_EQ(rows_of(lay_out_config(config, "dp=2,tp=4,experts=linear"), 5,
                    "model.layers.0.self_attn.qkv_proj.weight"),
            "0-11 <- model.layers.0.self_attn.q_proj.weight 12-23\n"
            "12-23 <- model.layers.0.self_attn.k_proj.weight 0-11\n"
            "24-35 <- model.layers.0.self_attn.v_proj.weight 0-11\n");
}

// -- Tied names, unused tensors, dtypes
// -------------------------------------------------------------

TEST(LayOut, a_tied_lm_head_is_a_second_name_on_the_embedding) {
  const Layout layout = lay_out_config(small_config("qwen3"), "tp=2");
  ASSERT_EQ(layout.parameters.front().name, "model.embed_tokens.weight");
  const Parameter& twin = layout.parameters.back();
  EXPECT_EQ(twin.name, "lm_head.weight");
  EXPECT_EQ(twin.storage, 0);
  const int index = static_cast<int>(layout.parameters.size()) - 1;
  EXPECT_EQ(local_shape(layout, 1, index), local_shape(layout, 1, 0));
  EXPECT_EQ(layout.unused,
            (std::vector<Unused>{
                {"lm_head.weight", "tied: the engine reads it from model.embed_tokens.weight"}}));
}

TEST(LayOut, a_bias_that_the_engine_lacks_is_unused) {
  ModelConfig config = small_config("qwen3");
  config.tied_embeddings = false;
  config.attention_bias = true;
  config.layers = 1;
  const Layout layout = lay_out_config(config, "tp=2");
  EXPECT_EQ(layout.unused, (std::vector<Unused>{{"model.layers.0.self_attn.o_proj.bias",
                                                 "the engine has no parameter for it"}}));
  EXPECT_EQ(layout.tensors.size() + 1, tensors_of(family_of(config), config).size());
}

TEST(LayOut, parameters_take_the_dtype_that_is_asked_for) {
  const ModelConfig config = small_config("llama");
  for (const DType dtype : {DType::f16, config.dtype}) {
    EngineOptions options;
    if (dtype != config.dtype) options.parameter_dtype = dtype;
    const Layout layout = lay_out(family_of(config), config, parse_spec("tp=2"), options);
    for (const TensorInfo& tensor : layout.tensors) EXPECT_EQ(tensor.dtype, dtype);
    for (const LayoutClass& c : layout.classes) EXPECT_EQ(c.dtype, dtype);
    for (const ParameterClass& c : layout.parameter_classes) EXPECT_EQ(c.dtype, dtype);
  }
}

TEST(LayOut, the_bias_of_a_router_is_float32_whatever_the_rest_is) {
  const ModelConfig config = small_config("deepseek-v3");
  const Layout layout = lay_out(family_of(config), config, parse_spec("tp=2"), {DType::f16});
  int biases = 0;
  for (const TensorInfo& tensor : layout.tensors) {
    const bool is_bias = tensor.name.ends_with("mlp.gate.e_score_correction_bias");
    biases += is_bias ? 1 : 0;
    EXPECT_EQ(tensor.dtype, is_bias ? DType::f32 : DType::f16) << tensor.name;
  }
  EXPECT_EQ(biases, 3);
}

TEST(LayOut, geometry_does_not_grow_with_layers) {
  ModelConfig config = parse_config(test_data("configs/llama-3.1-70b.json"));
  const Layout layout = lay_out_config(config, "replicas=4,tp=8");
  EXPECT_EQ(layout.parameters.size(), 483U);
  EXPECT_EQ(layout.tensors.size(), 723U);
  config.layers = 800;
  const Layout deep = lay_out_config(config, "replicas=4,tp=8");
  EXPECT_EQ(deep.parameters.size(), 4803U);
  EXPECT_EQ(deep.classes, layout.classes);
  EXPECT_EQ(deep.bindings, layout.bindings);
  EXPECT_EQ(deep.parameter_classes, layout.parameter_classes);
}

// -- Errors and text ------------------------------------------------------------------------------

TEST(LayOut, extents_that_tp_does_not_divide_are_refused) {
  ModelConfig config = worked_config();
  config.vocab = 192;
  EXPECT_EQ(refusal_of(config, "tp=3"),
            "mismatch: lay out: tp does not divide an extent\n"
            "  axis  tp=3\n  extent  num_attention_heads=8");
  config.heads = 12;
  config.kv_heads = 6;
  EXPECT_EQ(refusal_of(config, "replicas=2,tp=4"),
            "mismatch: lay out: tp does not divide an extent\n"
            "  axis  tp=4\n  extent  num_key_value_heads=6");
  EXPECT_EQ(refusal_of(config, "tp=12"), "accepted");
  config.heads = 9;
  config.kv_heads = 3;
  config.vocab = 576;
  EXPECT_EQ(refusal_of(config, "tp=9"),
            "mismatch: lay out: tp does not divide an extent\n"
            "  axis  tp=9\n  extent  intermediate_size=24");
  config.heads = 12;
  config.kv_heads = 3;
  EXPECT_EQ(refusal_of(config, "tp=4"),
            "mismatch: lay out: the KV heads do not divide tp\n"
            "  axis  tp=4\n  extent  num_key_value_heads=3");
  config.vocab = 100;
  EXPECT_EQ(refusal_of(config, "tp=3"),
            "mismatch: lay out: tp does not divide an extent\n"
            "  axis  tp=3\n  extent  padded vocab_size=128");
}

TEST(LayOut, axes_that_engines_do_not_have_are_refused) {
  EXPECT_EQ(refusal_of(worked_config(), "fsdp=2,tp=2"),
            "invalid_argument: read engine mesh: an axis is not known\n"
            "  spec  fsdp=2,tp=2\n  axis  fsdp\n  known  replicas, pp, dp, tp, experts");
}

TEST(LayOut, experts_and_stages_that_do_not_fit_are_refused) {
  const ModelConfig config = small_config("deepseek-v3");
  EXPECT_EQ(refusal_of(config, "pp=5"),
            "mismatch: lay out: fewer layers than stages\n  axis  pp=5\n"
            "  extent  num_hidden_layers=4");
  EXPECT_EQ(refusal_of(config, "tp=2,experts=random"),
            "invalid_argument: lay out: the way to spread experts is not known\n"
            "  experts  random\n  known  linear, round_robin");
  EXPECT_EQ(refusal_of(worked_config(), "tp=2,experts=linear"),
            "invalid_argument: lay out: the model has no experts to spread\n"
            "  experts  linear\n  model_type  llama");
  EXPECT_EQ(refusal_of(config, "dp=2,tp=4,experts=linear"),
            "mismatch: lay out: fewer experts than ranks to spread them over\n"
            "  experts  6\n  ranks  8");
  EXPECT_EQ(refusal_of(config, "dp=4,tp=2"),
            "mismatch: lay out: dp * tp does not divide an extent\n"
            "  axis  dp * tp=8\n  extent  experts' intermediate size=12");
  EXPECT_EQ(refusal_of(config, "tp=8"),
            "mismatch: lay out: tp does not divide an extent\n"
            "  axis  tp=8\n  extent  num_attention_heads=4");
}

TEST(LayOut, cuts_inside_a_block_of_scales_are_refused) {
  ModelConfig config = quantised_config();
  EXPECT_EQ(refusal_of(config, "tp=4"),
            "unsupported: lay out: a cut falls inside a block of scales\n"
            "  box  [0:256, 0:64]\n  weight  [256, 256]\n  block  128\n"
            "  tensor  model.layers.{}.self_attn.o_proj.weight_scale_inv");
  config.expert_intermediate = 128;
  EXPECT_EQ(refusal_of(config, "tp=2"),
            "unsupported: lay out: a cut falls inside a block of scales\n"
            "  box  [0:64, 0:256]\n  weight  [128, 256]\n  block  128\n"
            "  tensor  model.layers.{}.mlp.experts.{e}.gate_proj.weight_scale_inv");
  EXPECT_EQ(refusal_of(config, "tp=2,experts=linear"),
            "unsupported: lay out: a cut falls inside a block of scales\n"
            "  box  [0:64, 0:256]\n  weight  [128, 256]\n  block  128\n"
            "  tensor  model.layers.{}.mlp.shared_experts.gate_proj.weight_scale_inv");
  config.query_rank = 200;
  EXPECT_EQ(refusal_of(config, "tp=2"),
            "unsupported: lay out: a fused weight begins inside a block of scales\n"
            "  row  200\n  block  128\n"
            "  tensor  model.layers.{}.self_attn.kv_a_proj_with_mqa.weight");
}

TEST(LayOut, slots_that_do_not_fit_are_refused) {
  const ModelConfig config = small_config("deepseek-v3");
  const auto refusal = [&](const char* spec, std::vector<std::vector<int>> expert_of_slot) {
    try {
      lay_out(family_of(config), config, parse_spec(spec), {std::nullopt, expert_of_slot});
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.text();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("tp=2", {{0, 1, 2, 3, 4, 5}}),
            "invalid_argument: lay out: experts have slots only where they spread\n"
            "  spec  tp=2\n  hint  write experts=linear");
  EXPECT_EQ(refusal("tp=4,experts=linear", {{0, 1, 2, 3, 4, 5}}),
            "invalid_argument: lay out: the slots of experts do not divide by ranks\n"
            "  slots  6\n  ranks  4");
  EXPECT_EQ(refusal("tp=2,experts=linear", {{0, 1, 2, 3, 4, 6}}),
            "invalid_argument: lay out: a slot holds an expert that there is not\n"
            "  slot  5\n  expert  6\n  experts  6");
  EXPECT_EQ(refusal("tp=2,experts=linear", {{0, 1, 2, 3, 4, 4}}),
            "invalid_argument: lay out: no slot holds an expert\n  expert  5\n  slots  6");
  EXPECT_EQ(refusal("tp=2,experts=linear", {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}),
            "invalid_argument: lay out: the rows of expert slots are neither one nor one for each "
            "sparse layer\n  rows  2\n  sparse layers  3");
  EXPECT_EQ(refusal("tp=2,experts=linear",
                    {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5, 0, 1}}),
            "invalid_argument: lay out: rows of expert slots differ in length\n"
            "  row  2\n  slots  8\n  slots of row 0  6");
}

TEST(LayOut, explains_itself) {
  ModelConfig config = worked_config();
  config.tied_embeddings = true;
  expect_golden("explain_lay_out.txt", explain(lay_out_config(config, "replicas=2,tp=4")));
}

}  // namespace
}  // namespace crossmesh
