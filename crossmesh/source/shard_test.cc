// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/source/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "crossmesh/base/error.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

using Extents = std::vector<std::int64_t>;

Catalog catalog_of(std::vector<TensorInfo> tensors) {
  Catalog catalog;
  catalog.tensors = std::move(tensors);
  return catalog;
}

// The boxes of the only tensor, by rank; `-` for none.
std::string boxes_of(const TensorInfo& tensor, const std::string& trainer) {
  const Layout layout = shard(catalog_of({tensor}), parse_spec(trainer));
  std::ostringstream text;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const std::vector<PlacedPiece> placed = pieces(layout, rank, 0);
    text << (rank > 0 ? " " : "") << (placed.empty() ? "-" : to_string(placed[0].piece.box));
  }
  return text.str();
}

struct Row {
  std::string name;
  TensorInfo tensor;
  std::string trainer;
  std::string expected;
};

TEST(Shard, splits_as_torch_does) {
  const std::string layer = "model.layers.0.";
  const Row kRows[] = {
      {"uneven rows: the last rank is short",
       {"w", DType::f32, {7, 2}},
       "fsdp=3",
       "[0:3, 0:2] [3:6, 0:2] [6:7, 0:2]"},
      {"few rows: the last ranks are empty",
       {"w", DType::f32, {5}},
       "fsdp=4",
       "[0:2] [2:4] [4:5] -"},
      {"a scalar is replicated", {"w", DType::f32, {}}, "fsdp=2,tp=2", "[] [] [] []"},
      {"replicas repeat",
       {"w", DType::f32, {4}},
       "dp_replicate=2,fsdp=2",
       "[0:2] [2:4] [0:2] [2:4]"},
      {"replicas may be the fast axis",
       {"w", DType::f32, {4}},
       "fsdp=2,dp_replicate=2",
       "[0:2] [0:2] [2:4] [2:4]"},
      {"tp splits before fsdp on dimension 0",
       {layer + "self_attn.q_proj.weight", DType::f32, {10, 3}},
       "fsdp=2,tp=2",
       "[0:3, 0:3] [5:8, 0:3] [3:5, 0:3] [8:10, 0:3]"},
      {"tp leaves a short shard, fsdp splits it",
       {"lm_head.weight", DType::f32, {7, 1}},
       "tp=2,fsdp=3",
       "[0:2, 0:1] [2:4, 0:1] - [4:5, 0:1] [5:6, 0:1] [6:7, 0:1]"},
      {"tp on dimension 1 and fsdp on dimension 0 make a grid",
       {layer + "mlp.down_proj.weight", DType::f32, {4, 6}},
       "fsdp=2,tp=2",
       "[0:2, 0:3] [0:2, 3:6] [2:4, 0:3] [2:4, 3:6]"},
      {"a norm is replicated over tp",
       {layer + "input_layernorm.weight", DType::f32, {4}},
       "fsdp=2,tp=2",
       "[0:2] [0:2] [2:4] [2:4]"},
      {"a row bias is replicated over tp",
       {layer + "mlp.down_proj.bias", DType::f32, {4}},
       "tp=2",
       "[0:4] [0:4]"},
      {"a suffix counts only from the start of a word",
       {"xlm_head.weight", DType::f32, {4, 1}},
       "tp=2",
       "[0:4, 0:1] [0:4, 0:1]"},
      {"a tensor without the dimension is replicated",
       {"mlp.down_proj.weight", DType::f32, {4}},
       "tp=2",
       "[0:4] [0:4]"},
  };
  for (const Row& row : kRows)
    EXPECT_EQ(boxes_of(row.tensor, row.trainer), row.expected) << row.name;
}

TEST(Shard, tp_splits_each_name_on_its_dimension) {
  const std::map<std::string, std::string> expected = {
      {"model.embed_tokens.weight", "rows"},
      {"lm_head.weight", "rows"},
      {"model.norm.weight", "whole"},
      {"model.layers.3.self_attn.q_proj.weight", "rows"},
      {"model.layers.3.self_attn.k_proj.weight", "rows"},
      {"model.layers.3.self_attn.v_proj.weight", "rows"},
      {"model.layers.3.self_attn.q_proj.bias", "rows"},
      {"model.layers.3.self_attn.k_proj.bias", "rows"},
      {"model.layers.3.self_attn.v_proj.bias", "rows"},
      {"model.layers.3.self_attn.o_proj.weight", "columns"},
      {"model.layers.3.self_attn.o_proj.bias", "whole"},
      {"model.layers.3.self_attn.q_norm.weight", "whole"},
      {"model.layers.3.mlp.gate_proj.weight", "rows"},
      {"model.layers.3.mlp.up_proj.weight", "rows"},
      {"model.layers.3.mlp.gate_proj.bias", "rows"},
      {"model.layers.3.mlp.up_proj.bias", "rows"},
      {"model.layers.3.mlp.down_proj.weight", "columns"},
      {"model.layers.3.mlp.down_proj.bias", "whole"},
      {"model.layers.3.post_attention_layernorm.weight", "whole"},
  };
  const std::map<std::string, std::string> kind_of_boxes = {
      {"[0:1, 0:2] [1:2, 0:2]", "rows"},
      {"[0:2, 0:1] [0:2, 1:2]", "columns"},
      {"[0:2, 0:2] [0:2, 0:2]", "whole"},
  };
  for (const auto& [name, kind] : expected) {
    EXPECT_EQ(kind_of_boxes.at(boxes_of({name, DType::f32, {2, 2}}, "tp=2")), kind) << name;
  }
}

// -- Every small world ----------------------------------------------------------------------------

using Rows = std::vector<std::int64_t>;

// The chunks that torch.chunk gives, by walking: full chunks until the rows run out.
Rows naive_chunk(const Rows& rows, int count, int index) {
  const std::size_t parts = static_cast<std::size_t>(count);
  const std::size_t size = (rows.size() + parts - 1) / parts;
  Rows chunk;
  std::size_t at = 0;
  for (int i = 0; i <= index; ++i) {
    chunk.clear();
    while (chunk.size() < size && at < rows.size()) chunk.push_back(rows[at++]);
  }
  return chunk;
}

// The flat elements of the shard whose kept rows of each dimension are `kept`, in order.
Rows flat_elements(const std::vector<Rows>& kept, const Extents& shape) {
  Rows elements = {0};
  for (std::size_t d = 0; d < kept.size(); ++d) {
    Rows next;
    for (const std::int64_t base : elements) {
      for (const std::int64_t i : kept[d]) next.push_back(base * shape[d] + i);
    }
    elements = std::move(next);
  }
  return elements;
}

struct World {
  std::vector<std::pair<std::string, int>> axes;
  std::string text() const {
    std::string text;
    for (const auto& [name, size] : axes) {
      text += (text.empty() ? "" : ",") + name + "=" + std::to_string(size);
    }
    return text;
  }
  int size(const std::string& axis) const {
    for (const auto& [name, size] : axes) {
      if (name == axis) return size;
    }
    return 1;
  }
  int coordinate(const std::string& axis, int rank) const {
    for (auto at = axes.rbegin(); at != axes.rend(); ++at) {
      if (at->first == axis) return rank % at->second;
      rank /= at->second;
    }
    return 0;
  }
};

Rows expected_elements(const World& world, int rank, const Extents& shape, int tp_dim) {
  std::vector<Rows> kept;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Rows rows;
    for (std::int64_t i = 0; i < shape[d]; ++i) rows.push_back(i);
    if (static_cast<int>(d) == tp_dim) {
      rows = naive_chunk(rows, world.size("tp"), world.coordinate("tp", rank));
    }
    if (d == 0) rows = naive_chunk(rows, world.size("fsdp"), world.coordinate("fsdp", rank));
    kept.push_back(rows);
  }
  return flat_elements(kept, shape);
}

// The elements that a layout puts on a rank, in the order of their places in the parameter; checks
// that the parameter is exactly they.
Rows laid_elements(const Layout& layout, int rank, int tensor) {
  const Extents& shape = layout.tensors[static_cast<std::size_t>(tensor)].shape;
  std::map<std::int64_t, std::int64_t> element_of_place;
  for (const PlacedPiece& placed : pieces(layout, rank, tensor)) {
    EXPECT_EQ(placed.parameter, tensor);
    const auto& [box, view] = placed.piece;
    std::vector<Rows> kept, local;
    for (int d = 0; d < box.shape.size(); ++d) {
      kept.emplace_back();
      for (std::int64_t i = 0; i < box.shape[d]; ++i) kept.back().push_back(box.origin[d] + i);
    }
    Rows places = {view.offset};
    for (int d = 0; d < box.shape.size(); ++d) {
      Rows next;
      for (const std::int64_t base : places) {
        for (std::int64_t i = 0; i < box.shape[d]; ++i) next.push_back(base + i * view.strides[d]);
      }
      places = std::move(next);
    }
    const Rows elements = flat_elements(kept, shape);
    for (std::size_t i = 0; i < places.size(); ++i) {
      EXPECT_TRUE(element_of_place.emplace(places[i], elements[i]).second);
    }
  }
  Rows elements;
  for (const auto& [place, element] : element_of_place) {
    EXPECT_EQ(place, static_cast<std::int64_t>(elements.size()));
    elements.push_back(element);
  }
  const Shape& local = local_shape(layout, rank, tensor);
  EXPECT_EQ(storage_elements(local, local_strides(layout, rank, tensor)),
            static_cast<std::int64_t>(elements.size()));
  EXPECT_EQ(local_strides(layout, rank, tensor), contiguous_strides(local));
  return elements;
}

std::vector<World> small_worlds() {
  std::vector<World> worlds;
  std::vector<std::string> names = {"dp_replicate", "fsdp", "tp"};
  do {
    for (int a = 1; a <= 3; ++a) {
      for (int b = 1; b <= 3; ++b) {
        for (int c = 1; c <= 3; ++c)
          worlds.push_back({{{names[0], a}, {names[1], b}, {names[2], c}}});
      }
    }
  } while (std::next_permutation(names.begin(), names.end()));
  return worlds;
}

TEST(Shard, every_small_world_equals_the_walk_through_its_elements) {
  const std::vector<std::pair<std::string, int>> kNames = {
      {"model.norm.weight", -1}, {"lm_head.weight", 0}, {"layers.0.mlp.down_proj.weight", 1}};
  std::vector<TensorInfo> tensors;
  std::vector<int> tp_dims;
  for (const auto& [name, tp_dim] : kNames) {
    std::vector<Extents> shapes = {{}};
    for (std::int64_t a = 0; a <= 7; ++a) shapes.push_back({a});
    for (std::int64_t a = 0; a <= 7; a += 3) {
      for (std::int64_t b = 0; b <= 7; ++b) shapes.push_back({b, a});
      for (std::int64_t b = 0; b <= 4; ++b) shapes.push_back({a, b, 2});
    }
    for (const Extents& shape : shapes) {
      const std::string prefix = "t" + std::to_string(tensors.size()) + ".";
      tensors.push_back({prefix + name, DType::bf16, shape});
      tp_dims.push_back(tp_dim < static_cast<int>(shape.size()) ? tp_dim : -1);
    }
  }
  const Catalog catalog = catalog_of(tensors);
  for (const World& world : small_worlds()) {
    SCOPED_TRACE(world.text());
    const Layout layout = shard(catalog, parse_spec(world.text()));
    check(layout);
    ASSERT_EQ(layout.replica_of_rank,
              std::vector<int>(static_cast<std::size_t>(layout.rank_count)));
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::map<std::int64_t, int> count_of_element;
      for (int rank = 0; rank < layout.rank_count; ++rank) {
        const Rows elements = laid_elements(layout, rank, static_cast<int>(t));
        ASSERT_EQ(elements, expected_elements(world, rank, tensors[t].shape, tp_dims[t]));
        for (const std::int64_t element : elements) ++count_of_element[element];
      }
      int copies = world.size("dp_replicate");
      if (tp_dims[t] < 0) copies *= world.size("tp");
      if (tensors[t].shape.empty()) copies *= world.size("fsdp");
      for (const auto& [element, count] : count_of_element) ASSERT_EQ(count, copies);
      ASSERT_EQ(static_cast<std::int64_t>(count_of_element.size()), element_count(tensors[t]));
    }
  }
}

// -- Size, text, errors ---------------------------------------------------------------------------

Catalog deep_catalog(int layers) {
  std::vector<TensorInfo> tensors = {{"model.embed_tokens.weight", DType::bf16, {101, 40}}};
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back({prefix + "input_layernorm.weight", DType::bf16, {40}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", DType::bf16, {48, 40}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", DType::bf16, {24, 40}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", DType::bf16, {24, 40}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", DType::bf16, {40, 48}});
  }
  return catalog_of(std::move(tensors));
}

TEST(Shard, geometry_does_not_grow_with_names) {
  const Layout few = shard(deep_catalog(1), parse_spec("fsdp=4,tp=2"));
  const Layout many = shard(deep_catalog(1000), parse_spec("fsdp=4,tp=2"));
  EXPECT_EQ(many.instances.size(), 5001U);
  EXPECT_EQ(few.classes.size(), 5U);
  EXPECT_EQ(few.bindings.size(), 2U);
  EXPECT_EQ(many.classes, few.classes);
  EXPECT_EQ(many.bindings, few.bindings);
  EXPECT_EQ(many.parameter_classes, few.parameter_classes);
}

// -- Experts and stages
// ----------------------------------------------------------------------------

// The box of each rank, `-` for none, of the tensor `name` of a model of `experts` experts and
// `layers` layers.
std::string boxes_in_model(const std::string& name, const std::string& trainer, int layers,
                           int experts) {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.";
    tensors.push_back({stem + "gate.weight", DType::bf16, {8, 4}});
    for (int expert = 0; expert < experts; ++expert) {
      const std::string one = stem + "experts." + std::to_string(expert) + ".";
      tensors.push_back({one + "up_proj.weight", DType::bf16, {8, 4}});
      tensors.push_back({one + "down_proj.weight", DType::bf16, {4, 8}});
    }
    tensors.push_back({stem + "shared_experts.up_proj.weight", DType::bf16, {8, 4}});
  }
  for (const char* other : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
    tensors.push_back({other, DType::bf16, {8, 4}});
  }
  const Layout layout = shard(catalog_of(tensors), parse_spec(trainer));
  check(layout);
  const auto at = std::ranges::find(tensors, name, &TensorInfo::name);
  std::ostringstream text;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const auto placed = pieces(layout, rank, static_cast<int>(at - tensors.begin()));
    text << (rank > 0 ? " " : "") << (placed.empty() ? "-" : to_string(placed[0].piece.box));
  }
  return text.str();
}

struct ModelRow {
  std::string name;
  std::string tensor;
  std::string trainer;
  std::string expected;
};

TEST(Shard, experts_lie_on_their_coordinate_and_the_rest_on_all_data_ranks) {
  const std::string layer = "model.layers.0.mlp.";
  const ModelRow kRows[] = {
      {"a dense tensor is split over fsdp and ep", layer + "gate.weight", "fsdp=2,ep=2",
       "[0:2, 0:4] [2:4, 0:4] [4:6, 0:4] [6:8, 0:4]"},
      {"numbered in the order written", layer + "gate.weight", "ep=2,tp=2,fsdp=2",
       "[0:2, 0:4] [2:4, 0:4] [0:2, 0:4] [2:4, 0:4] [4:6, 0:4] [6:8, 0:4] [4:6, 0:4] [6:8, 0:4]"},
      {"the first coordinate holds one expert more", layer + "experts.1.up_proj.weight",
       "fsdp=2,ep=2", "[0:4, 0:4] - [4:8, 0:4] -"},
      {"the last coordinate holds the rest", layer + "experts.2.up_proj.weight", "fsdp=2,ep=2",
       "- [0:4, 0:4] - [4:8, 0:4]"},
      {"a shared expert is a dense tensor", layer + "shared_experts.up_proj.weight", "tp=2,ep=2",
       "[0:2, 0:4] [2:4, 0:4] [4:6, 0:4] [6:8, 0:4]"},
      {"etp splits up by rows and fsdp each part", layer + "experts.0.up_proj.weight",
       "fsdp=2,etp=2", "[0:2, 0:4] [4:6, 0:4] [2:4, 0:4] [6:8, 0:4]"},
      {"etp splits down by columns", layer + "experts.0.down_proj.weight", "ep=2,etp=2",
       "[0:4, 0:4] [0:4, 4:8] - -"},
      {"tp repeats an expert", layer + "experts.0.down_proj.weight", "tp=2,fsdp=2",
       "[0:2, 0:8] [2:4, 0:8] [0:2, 0:8] [2:4, 0:8]"},
      {"etp ranks share dense tensors", layer + "gate.weight", "etp=2,fsdp=2",
       "[0:2, 0:4] [2:4, 0:4] [4:6, 0:4] [6:8, 0:4]"},
      {"past the experts there is none", layer + "experts.2.up_proj.weight", "ep=4",
       "- - [0:8, 0:4] -"},
  };
  for (const ModelRow& row : kRows) {
    EXPECT_EQ(boxes_in_model(row.tensor, row.trainer, 1, 3), row.expected) << row.name;
  }
}

// The boxes of a stack of the experts of two layers, each with where it lies in the parameter.
std::string stack_boxes(const TensorInfo& stack, const std::string& trainer) {
  const Layout layout =
      shard(catalog_of({{"model.layers.1.mlp.gate.weight", DType::bf16, {8, 4}}, stack}),
            parse_spec(trainer));
  check(layout);
  std::ostringstream text;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    text << rank << ": " << to_string(local_shape(layout, rank, 1));
    for (const PlacedPiece& placed : pieces(layout, rank, 1)) {
      text << " " << to_string(placed.piece.box) << " at " << placed.piece.view.offset;
    }
    text << "\n";
  }
  return text.str();
}

TEST(Shard, a_stack_of_experts_is_split_by_expert_and_then_within) {
  const TensorInfo both{"model.layers.0.mlp.experts.gate_up_proj", DType::bf16, {5, 6, 4}};
  const TensorInfo down{"model.layers.0.mlp.experts.down_proj", DType::bf16, {5, 4, 3}};
  const TensorInfo scales{"model.layers.0.mlp.experts.down_proj_scale_inv", DType::f32, {5, 2, 2}};
  struct StackRow {
    std::string name;
    TensorInfo stack;
    std::string trainer;
    std::string expected;
  };
  const StackRow kRows[] = {
      {"fsdp splits experts", both, "fsdp=2",
       "0: [3, 6, 4] [0:3, 0:6, 0:4] at 0\n1: [2, 6, 4] [3:5, 0:6, 0:4] at 0\n"},
      {"ep splits experts, as torch.chunk does, and fsdp what each coordinate has", down,
       "ep=2,fsdp=2",
       "0: [2, 4, 3] [0:2, 0:4, 0:3] at 0\n1: [1, 4, 3] [2:3, 0:4, 0:3] at 0\n"
       "2: [1, 4, 3] [3:4, 0:4, 0:3] at 0\n3: [1, 4, 3] [4:5, 0:4, 0:3] at 0\n"},
      {"etp splits gates and ups alike", both, "etp=2",
       "0: [5, 4, 4] [0:5, 0:2, 0:4] at 0 [0:5, 3:5, 0:4] at 8\n"
       "1: [5, 2, 4] [0:5, 2:3, 0:4] at 0 [0:5, 5:6, 0:4] at 4\n"},
      {"etp splits the columns of down", down, "ep=2,etp=2",
       "0: [3, 4, 2] [0:3, 0:4, 0:2] at 0\n1: [3, 4, 1] [0:3, 0:4, 2:3] at 0\n"
       "2: [2, 4, 2] [3:5, 0:4, 0:2] at 0\n3: [2, 4, 1] [3:5, 0:4, 2:3] at 0\n"},
      {"tp repeats a stack, and replicas do", down, "dp_replicate=2,tp=2",
       "0: [5, 4, 3] [0:5, 0:4, 0:3] at 0\n1: [5, 4, 3] [0:5, 0:4, 0:3] at 0\n"
       "2: [5, 4, 3] [0:5, 0:4, 0:3] at 0\n3: [5, 4, 3] [0:5, 0:4, 0:3] at 0\n"},
      {"scales lie with their experts", scales, "ep=2,etp=2",
       "0: [3, 2, 2] [0:3, 0:2, 0:2] at 0\n1: [3, 2, 2] [0:3, 0:2, 0:2] at 0\n"
       "2: [2, 2, 2] [3:5, 0:2, 0:2] at 0\n3: [2, 2, 2] [3:5, 0:2, 0:2] at 0\n"},
      {"more coordinates than experts", down, "ep=4,fsdp=2",
       "0: [1, 4, 3] [0:1, 0:4, 0:3] at 0\n1: [1, 4, 3] [1:2, 0:4, 0:3] at 0\n"
       "2: [1, 4, 3] [2:3, 0:4, 0:3] at 0\n3: [1, 4, 3] [3:4, 0:4, 0:3] at 0\n"
       "4: [1, 4, 3] [4:5, 0:4, 0:3] at 0\n5: [0, 4, 3]\n6: [0, 4, 3]\n7: [0, 4, 3]\n"},
  };
  for (const StackRow& row : kRows) {
    EXPECT_EQ(stack_boxes(row.stack, row.trainer), row.expected) << row.name;
  }
}

// A grouped tensor's local part was sent as the whole, where half of four rows are a rank's.
TEST(Shard, a_shard_of_an_expert_says_which_part_of_the_whole_it_is) {
  const TensorInfo up{"model.layers.0.mlp.experts.0.up_proj.weight", DType::bf16, {4, 2}};
  const Layout layout = shard(catalog_of({up}), parse_spec("etp=2"));
  EXPECT_EQ(layout.tensors[0].shape, (Extents{4, 2}));
  EXPECT_EQ(to_string(local_shape(layout, 1, 0)), "[2, 2]");
  EXPECT_EQ(boxes_of(up, "etp=2"), "[0:2, 0:2] [2:4, 0:2]");
}

// The last rank's rows were left out: of 10 over four it has row 9.
TEST(Shard, a_short_last_shard_is_not_lost) {
  EXPECT_EQ(
      boxes_of({"model.layers.0.mlp.experts.0.up_proj.weight", DType::bf16, {10, 2}}, "etp=4"),
      "[0:3, 0:2] [3:6, 0:2] [6:9, 0:2] [9:10, 0:2]");
}

// A rank that has one of an expert's tensors and not the other has no part of it, not a part
// before its first row.
TEST(Shard, a_rank_without_an_expert_has_no_parameter_of_it) {
  const Layout layout =
      shard(catalog_of({{"model.layers.0.mlp.experts.0.up_proj.weight", DType::bf16, {4, 2}},
                        {"model.layers.0.mlp.experts.1.up_proj.weight", DType::bf16, {4, 2}}}),
            parse_spec("ep=2"));
  for (const int rank : {0, 1}) {
    for (const int tensor : {0, 1}) {
      EXPECT_EQ(has_parameter(layout, rank, tensor), rank == tensor);
      EXPECT_EQ(pieces(layout, rank, tensor).size(), rank == tensor ? 1U : 0U);
    }
  }
}

// Where layers have other numbers of experts, a rank's second one is not the same in each.
TEST(Shard, experts_are_counted_layer_by_layer) {
  std::vector<TensorInfo> tensors;
  for (const auto& [layer, experts] : {std::pair(0, 4), {1, 8}}) {
    for (int expert = 0; expert < experts; ++expert) {
      tensors.push_back(
          {fmt::format("model.layers.{}.mlp.experts.{}.up_proj.weight", layer, expert),
           DType::bf16,
           {2, 2}});
    }
  }
  const Layout layout = shard(catalog_of(tensors), parse_spec("ep=2"));
  std::string text;
  for (int t = 0; t < 12; ++t) {
    text += pieces(layout, 0, t).empty() ? '1' : '0';
    EXPECT_NE(pieces(layout, 0, t).empty(), pieces(layout, 1, t).empty());
  }
  EXPECT_EQ(text,
            "0011"
            "00001111");
}

TEST(Shard, stages_hold_their_layers_and_the_ends_the_rest) {
  const std::string whole = "[0:8, 0:4]";
  EXPECT_EQ(boxes_in_model("model.embed_tokens.weight", "pp=3", 4, 0), whole + " - -");
  EXPECT_EQ(boxes_in_model("model.layers.0.mlp.gate.weight", "pp=3", 4, 0), whole + " - -");
  EXPECT_EQ(boxes_in_model("model.layers.1.mlp.gate.weight", "pp=3", 4, 0), "- " + whole + " -");
  EXPECT_EQ(boxes_in_model("model.layers.2.mlp.gate.weight", "pp=3", 4, 0), "- " + whole + " -");
  EXPECT_EQ(boxes_in_model("model.layers.3.mlp.gate.weight", "pp=3", 4, 0), "- - " + whole);
  EXPECT_EQ(boxes_in_model("model.norm.weight", "pp=3", 4, 0), "- - " + whole);
  EXPECT_EQ(boxes_in_model("lm_head.weight", "fsdp=2,pp=2", 4, 0), "- [0:4, 0:4] - [4:8, 0:4]");
  EXPECT_EQ(boxes_in_model("model.layers.1.mlp.experts.1.up_proj.weight", "pp=2,ep=2", 2, 2),
            "- - - " + whole);
}

TEST(Shard, more_stages_than_layers_are_refused) {
  try {
    boxes_in_model("lm_head.weight", "pp=3", 2, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.text(), "shard: fewer layers than stages\n  axis  pp=3\n  layers  2");
  }
}

TEST(Shard, explains_itself) {
  expect_golden("explain_shard.txt", explain(shard(deep_catalog(1), parse_spec("fsdp=3,tp=2"))));
}

std::string refusal_of(const TensorInfo& tensor, const std::string& trainer) {
  try {
    shard(catalog_of({tensor}), parse_spec(trainer));
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "accepted";
}

TEST(Shard, what_trainers_do_not_have_is_refused) {
  const TensorInfo tensor = {"w", DType::f32, {4}};
  EXPECT_EQ(refusal_of(tensor, "fsdp=2,replicas=2"),
            "invalid_argument: read trainer mesh: an axis is not known\n"
            "  spec  fsdp=2,replicas=2\n"
            "  axis  replicas\n"
            "  known  pp, dp_replicate, fsdp, ep, etp, tp");
  EXPECT_EQ(refusal_of(tensor, "fsdp=2,zero"),
            "invalid_argument: read trainer mesh: no option is known\n"
            "  spec  fsdp=2,zero\n"
            "  option  zero");
  EXPECT_EQ(refusal_of(tensor, "fsdp=0"),
            "invalid_argument: read spec: a size is not a number in its range\n"
            "  spec  fsdp=0\n"
            "  axis  fsdp\n"
            "  size  0\n"
            "  range  1 to 1000000");
}

TEST(Shard, a_cut_inside_a_byte_is_refused) {
  EXPECT_EQ(refusal_of({"w", DType::f4, {6, 2}}, "fsdp=4"), "accepted");
  EXPECT_EQ(refusal_of({"w", DType::f4, {6, 3}}, "fsdp=3"), "accepted");
  EXPECT_EQ(refusal_of({"w", DType::f4, {6, 3}}, "fsdp=2"),
            "unsupported: shard: a cut falls inside a byte\n"
            "  dtype  F4\n"
            "  shape  [6, 3]\n"
            "  box  [0:3, 0:3]\n"
            "  tensor  w");
  EXPECT_EQ(refusal_of({"mlp.down_proj.weight", DType::f4, {4, 6}}, "tp=2"),
            "unsupported: shard: a cut falls inside a byte\n"
            "  dtype  F4\n"
            "  shape  [4, 6]\n"
            "  box  [0:4, 0:3]\n"
            "  tensor  mlp.down_proj.weight");
}

TEST(Shard, a_tensor_with_too_many_dimensions_is_refused) {
  EXPECT_EQ(refusal_of({"w", DType::f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}}, "fsdp=2"),
            "unsupported: lay out: a tensor has too many dimensions\n"
            "  dimensions  9\n"
            "  limit  8\n"
            "  tensor  w");
}

}  // namespace
}  // namespace crossmesh
