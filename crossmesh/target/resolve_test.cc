// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/resolve.h"

#include <gtest/gtest.h>

#include "crossmesh/base/error.h"
#include "crossmesh/target/cross_check.h"
#include "tests/error_of.h"

namespace crossmesh {
namespace {

using testing::error_of;

// Column 8x16 (of 16x16), row 16x8, norm 16 and a fused 24x16 without a loader, on 2 ranks.
LiveParameter column() {
  LiveParameter parameter;
  parameter.name = "c.weight";
  parameter.dtype = DType::bf16;
  parameter.shape = {8, 16};
  parameter.loader = {LoaderKind::column, true, 2};
  parameter.marks.output_dim = 0;
  return parameter;
}
LiveParameter row() {
  LiveParameter parameter = column();
  parameter.name = "r.weight";
  parameter.shape = {16, 8};
  parameter.loader.kind = LoaderKind::row;
  parameter.marks = {};
  parameter.marks.input_dim = 1;
  return parameter;
}
LiveParameter norm() {
  LiveParameter parameter;
  parameter.name = "n.weight";
  parameter.dtype = DType::bf16;
  parameter.shape = {16};
  parameter.loader = {LoaderKind::default_, false, {}};
  return parameter;
}
LiveParameter fused() {
  LiveParameter parameter = norm();
  parameter.name = "f.weight";
  parameter.shape = {24, 16};
  parameter.loader = {};
  return parameter;
}

AnnouncedTensor square(const std::string& name) { return {name, DType::bf16, {16, 16}, {}}; }

ResolveRequest request_of(std::vector<LiveParameter> parameters,
                          std::vector<AnnouncedTensor> tensors) {
  ResolveRequest request;
  request.parameters = std::move(parameters);
  request.tensors = std::move(tensors);
  request.rank_count = 2;
  request.shard_count = 2;
  return request;
}

// Of one tensor: its cut dimension as `dim 0`, `whole`, or the reason of its fallback.
std::string answer(const Destination& destination) {
  if (!destination.is_direct) return destination.reason;
  return destination.shard_dim ? "dim " + std::to_string(*destination.shard_dim) : "whole";
}
std::vector<std::string> answers(const ResolveRequest& request) {
  std::vector<std::string> result;
  for (const Destination& destination : resolve(request).destinations) {
    result.push_back(answer(destination));
  }
  return result;
}
using Answers = std::vector<std::string>;

TEST(M2n, M30_column_and_row_are_direct_on_their_declared_dims) {
  EXPECT_EQ(answers(request_of({column(), row()}, {square("c.weight"), square("r.weight")})),
            (Answers{"dim 0", "dim 1"}));
}

TEST(M2n, M31_norm_with_a_default_loader_is_whole) {
  EXPECT_EQ(answers(request_of({norm()}, {{"n.weight", DType::bf16, {16}, {}}})),
            (Answers{"whole"}));
}

TEST(M2n, M32_a_direct_tensor_names_the_live_parameter) {
  const Resolution resolution = resolve(request_of({norm(), column()}, {square("c.weight")}));
  EXPECT_EQ(resolution.destinations[0].parameter, 1);
}

TEST(M2n, M33_parameters_of_a_module_that_transforms_fall_back) {
  ResolveRequest request = request_of({row()}, {square("blk.h.0.r.weight")});
  request.parameters[0].name = "blk.h.0.r.weight";
  request.modules = {{"blk", "models.GPT2Model"}, {"other", "models.Plain"}};
  request.distrusted_types = {"models.GPT2Model"};
  EXPECT_EQ(answers(request), (Answers{"models.GPT2Model transforms what it loads"}));
}

TEST(M2n, M35_a_bias_without_a_loader_takes_its_weight_along) {
  LiveParameter bias = norm();
  bias.name = "r.bias";
  bias.loader = {};
  const ResolveRequest request =
      request_of({row(), bias}, {square("r.weight"), {"r.bias", DType::bf16, {16}, {}}});
  EXPECT_EQ(answers(request), (Answers{"its module is reloaded for r.bias", "it has no loader"}));
  EXPECT_TRUE(resolve(request).destinations[0].is_demoted);
  EXPECT_FALSE(resolve(request).destinations[1].is_demoted);
}

TEST(M2n, M44_what_is_distrusted_whole_falls_back_whole) {
  ResolveRequest request =
      request_of({column(), norm()}, {square("c.weight"), {"n.weight", DType::bf16, {16}, {}}});
  request.distrust_all = "the engine is quantised";
  EXPECT_EQ(answers(request), (Answers{"the engine is quantised", "the engine is quantised"}));
}

TEST(M2n, M45_the_coverage_line) {
  ResolveRequest request = request_of(
      {norm()}, {{"n.weight", DType::bf16, {32}, {}}, {"x.weight", DType::bf16, {1024, 1024}, {}}});
  request.parameters[0].shape = {32};
  request.tensors[1].feeds.emplace();
  EXPECT_EQ(to_string(coverage(request, resolve(request))),
            "1/2 parameters resharded directly into the model, 1 via full-tensor fallback; direct "
            "byte coverage: 64/2097216 bytes (0.0%)");
}

// One change to a column, row or norm that is direct without it, and the reason that it gives.
struct Change {
  std::string name;
  LiveParameter parameter;
  AnnouncedTensor tensor;
  std::string reason;
};

template <typename Edit>
LiveParameter edited(LiveParameter parameter, const Edit& edit) {
  edit(parameter);
  return parameter;
}

std::vector<Change> changes() {
  const auto kind = [](LoaderKind value) {
    return [value](LiveParameter& p) { p.loader.kind = value; };
  };
  const AnnouncedTensor c = square("c.weight");
  const AnnouncedTensor n{"n.weight", DType::bf16, {16}, {}};
  // clang-format off
  return {
      {"M34 unknown name", column(), square("x.weight"), "no parameter has its name"},
      {"M36 a function of its own", edited(column(), kind(LoaderKind::custom)), c, "its custom loader is not a plain copy"},
      {"M37 no loader", edited(column(), kind(LoaderKind::missing)), c, "it has no loader"},
      {"M38 a decorated default loader", edited(norm(), kind(LoaderKind::wrapped)), n, "its wrapped loader is not a plain copy"},
      {"arguments bound", edited(column(), kind(LoaderKind::partial)), c, "its partial loader is not a plain copy"},
      {"merged", edited(column(), kind(LoaderKind::merged)), c, "its merged loader is not a plain copy"},
      {"qkv", edited(column(), kind(LoaderKind::qkv)), c, "its qkv loader is not a plain copy"},
      {"vocab", edited(column(), kind(LoaderKind::vocab)), c, "its vocab loader is not a plain copy"},
      {"M39 a norm marked transposed", edited(norm(), [](auto& p) { p.marks.is_transposed = true; }), n, "it is marked is_transposed"},
      {"M40 packed_dim 0 is a mark", edited(column(), [](auto& p) { p.marks.packed_dim = 0; }), c, "it is marked packed_dim"},
      {"packed_factor 0", edited(column(), [](auto& p) { p.marks.packed_factor = 0; }), c, "it is marked packed_factor"},
      {"marlin_tile_size 0", edited(column(), [](auto& p) { p.marks.marlin_tile_size = 0; }), c, "it is marked marlin_tile_size"},
      {"scalars into an array", edited(norm(), [](auto& p) { p.marks.needs_scalar_to_array = true; }), n, "it is marked needs_scalar_to_array"},
      {"sharded before", edited(column(), [](auto& p) { p.marks.is_sharded_weight = true; }), c, "it is marked is_sharded_weight"},
      {"M41 another output_dim", edited(column(), [](auto& p) { p.marks.output_dim = 1; }), c, "the tensor is [16, 16], the parameter [8, 16]"},
      {"no output_dim", edited(column(), [](auto& p) { p.marks.output_dim.reset(); }), c, "it has no output_dim"},
      {"a negative output_dim", edited(column(), [](auto& p) { p.marks.output_dim = -1; }), c, "its output_dim is -1"},
      {"a dim that the tensor has not", edited(column(), [](auto& p) { p.marks.output_dim = 2; }), c, "the loader cuts dim 2 of [16, 16]"},
      {"the bias of a row layer", edited(row(), [](auto& p) { p.marks = {}; p.marks.output_dim = 0; }), square("r.weight"), "it has no input_dim"},
      {"M42 a fused parameter", fused(), square("f.weight"), "it has no loader"},
      {"M43 another dtype", edited(column(), [](auto& p) { p.dtype = DType::f32; }), c, "the tensor is BF16, the parameter F32"},
      {"not contiguous", edited(column(), [](auto& p) { p.is_contiguous = false; }), c, "its parameter is not contiguous"},
      {"an unbound column loader", edited(column(), [](auto& p) { p.loader.is_bound = false; }), c, "its column loader is bound to no layer"},
      {"a layer that is not cut", edited(column(), [](auto& p) { p.loader.owner_tp_size = 1; }), c, "its layer is cut by 1, the mesh by 2"},
      {"a layer that does not say", edited(column(), [](auto& p) { p.loader.owner_tp_size.reset(); }), c, "its layer is cut by nothing, the mesh by 2"},
      {"three halves", edited(column(), [](auto& p) { p.shape = {7, 16}; }), c, "the tensor is [16, 16], the parameter [7, 16], which are not 2 shards of dim 0"},
      {"another rank", edited(column(), [](auto& p) { p.shape = {8}; }), c, "the tensor is [16, 16], the parameter [8]"},
  };
  // clang-format on
}

TEST(Resolve, every_doubt_is_a_fallback_with_its_reason) {
  for (const Change& change : changes()) {
    EXPECT_EQ(answers(request_of({change.parameter}, {change.tensor})), (Answers{change.reason}))
        << change.name;
  }
}

TEST(Resolve, ranks_that_are_not_whole_replicas_fall_back) {
  ResolveRequest request = request_of({column()}, {square("c.weight")});
  request.rank_count = 3;
  EXPECT_EQ(answers(request), (Answers{"3 ranks are not whole replicas of 2 shards"}));
}

TEST(Resolve, a_second_name_falls_back_and_says_whose_it_is) {
  LiveParameter second;
  second.name = "lm_head.weight";
  second.alias_of = "n.weight";
  EXPECT_EQ(answers(request_of({norm(), second}, {{"lm_head.weight", DType::bf16, {16}, {}}})),
            (Answers{"a second name of n.weight"}));
}

// Split names feed the module of a direct entry: q, k and v are no names of live parameters.
TEST(Resolve, Z7_a_renamed_tensor_reloads_the_module_that_it_feeds) {
  LiveParameter weight = fused();
  weight.name = "m.qkv.weight";
  LiveParameter bias = norm();
  bias.name = "m.qkv.bias";
  ResolveRequest request =
      request_of({weight, bias, norm()}, {square("m.q.weight"),
                                          {"m.qkv.bias", DType::bf16, {16}, {}},
                                          {"n.weight", DType::bf16, {16}, {}}});
  request.tensors[0].feeds = {{"m.qkv.weight"}};
  const std::string none = "no parameter has its name";
  EXPECT_EQ(answers(request), (Answers{none, "its module is reloaded for m.q.weight", "whole"}));
  request.closure = Closure::names;
  EXPECT_EQ(answers(request), (Answers{none, "whole", "whole"})) << "what the old rule misses";
  request.closure = Closure::target_modules;
  request.tensors[0].feeds.reset();
  const std::string unknown = "it is not known what m.q.weight feeds";
  EXPECT_EQ(answers(request), (Answers{none, unknown, unknown}));
}

TEST(Resolve, a_tied_parameter_reloads_the_modules_of_all_its_names) {
  LiveParameter embed = norm();
  embed.name = "embed.weight";
  embed.loader.kind = LoaderKind::vocab;
  LiveParameter head;
  head.name = "head.weight";
  head.alias_of = "embed.weight";
  LiveParameter bias = norm();
  bias.name = "head.bias";
  EXPECT_EQ(
      answers(request_of({embed, head, bias}, {{"embed.weight", DType::bf16, {16}, {}},
                                               {"head.bias", DType::bf16, {16}, {}}})),
      (Answers{"its vocab loader is not a plain copy", "its module is reloaded for embed.weight"}));
}

TEST(Resolve, a_loader_that_is_known_to_write_elsewhere_is_not_trusted) {
  ResolveRequest request = request_of({norm(), column()}, {{"n.weight", DType::bf16, {16}, {}}});
  request.tensors[0].feeds = {{"c.weight"}};
  EXPECT_EQ(answers(request),
            (Answers{"its loader writes another parameter too, or only another"}));
}

TEST(Resolve, errors) {
  EXPECT_EQ(error_of([] {
              resolve(request_of({norm(), norm()}, {}));
            }),
            "resolve: two parameters have one name\n  parameter  n.weight");
  LiveParameter stray;
  stray.name = "a";
  stray.alias_of = "b";
  EXPECT_EQ(error_of([&] { resolve(request_of({stray}, {})); }),
            "resolve: a second name of no parameter\n  parameter  a\n  alias of  b");
  ResolveRequest request = request_of({}, {});
  request.shard_count = 0;
  EXPECT_EQ(error_of([&] { resolve(request); }),
            "resolve: an engine has at least one rank and shard\n  ranks  2\n  shards  0");
  request = request_of({norm()}, {square("q")});
  request.tensors[0].feeds = {{"x"}};
  EXPECT_EQ(error_of([&] { resolve(request); }),
            "resolve: a tensor feeds no such parameter\n  tensor  q\n  parameter  x");
  request.tensors[0].feeds.reset();
  EXPECT_EQ(error_of([&] { lay_out(request, resolve(request)); }),
            "resolve: it is not known what a tensor feeds\n  tensor  q\n"
            "  reason  no parameter has its name\n"
            "  hint  say which parameters its loader writes, or bake");
}

TEST(Resolve, its_layout_is_sound_and_says_where_each_shard_lies) {
  ResolveRequest request =
      request_of({column(), row(), norm(), fused()}, {square("c.weight"), square("r.weight")});
  request.rank_count = 4;
  request.tensors.push_back({"q", DType::bf16, {16, 16}, {{"f.weight"}}});
  const Layout layout = lay_out(request, resolve(request));
  check(layout);
  EXPECT_EQ(layout.replica_of_rank, (std::vector<int>{0, 0, 1, 1}));
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<PlacedPiece> c = pieces(layout, rank, 0);
    const std::vector<PlacedPiece> r = pieces(layout, rank, 1);
    ASSERT_EQ(c.size(), 1U);
    ASSERT_EQ(r.size(), 1U);
    const Box c_box{{8 * (rank % 2), 0}, {8, 16}};
    const Box r_box{{0, 8 * (rank % 2)}, {16, 8}};
    EXPECT_EQ(c[0].piece, (Piece{c_box, {0, {16, 1}}}));
    EXPECT_EQ(r[0].piece, (Piece{r_box, {0, {8, 1}}}));
  }
  EXPECT_EQ(layout.instances[2].opaque_reason, 0);
  EXPECT_EQ(layout.reasons, (std::vector<std::string>{"no parameter has its name"}));
  const ParameterClass& kept =
      layout.parameter_classes[static_cast<std::size_t>(layout.parameters[2].parameter_class)];
  ASSERT_EQ(kept.reserves.size(), 1U);
  EXPECT_EQ(kept.reserves[0].reason, "no announced tensor feeds it");
}

// Gates above ups in one tensor: each half is cut by itself, which no dimension says.
TEST(CrossCheck, the_fused_on_disk_trap_is_an_error_that_shows_both) {
  LiveParameter gate_up = column();
  gate_up.name = "gate_up.weight";
  gate_up.shape = {24, 8};
  const ResolveRequest request =
      request_of({gate_up}, {{"gate_up.weight", DType::bf16, {48, 8}, {}}});
  const Layout resolution = lay_out(request, resolve(request));
  Layout bake = resolution;
  std::vector<std::vector<Piece>>& roles = bake.classes[0].pieces_of_role;
  for (int rank = 0; rank < 2; ++rank) {
    const Box gate{{12 * rank, 0}, {12, 8}};
    const Box up{{24 + 12 * rank, 0}, {12, 8}};
    roles[static_cast<std::size_t>(rank)] = {{gate, {0, {8, 1}}}, {up, {96, {8, 1}}}};
  }
  check(bake);
  EXPECT_EQ(error_of([&] {
              cross_check({"resolution", resolution, 1}, {"bake", bake, 1});
            }),
            "cross-check: two layouts put a tensor to different places\n"
            "  tensor  gate_up.weight\n"
            "  parameter  gate_up.weight\n"
            "  rank  1\n"
            "  element  [12, 0]\n"
            "  resolution  nowhere\n"
            "  bake  place 0\n"
            "  elements that differ  192\n"
            "  hint  the loader does not copy as its marks say: distrust it");
}

// A layout of one rank that holds a tensor of [12] in these pieces.
Layout layout_of(const Space& space, std::vector<Piece> pieces) {
  LiveParameter parameter = norm();
  parameter.shape = {12};
  ResolveRequest request = request_of({parameter}, {{"n.weight", DType::bf16, {12}, {}}});
  request.rank_count = request.shard_count = 1;
  Layout layout = lay_out(request, resolve(request));
  layout.classes[0] = {space, DType::bf16, {std::move(pieces)}};
  check(layout);
  return layout;
}

const Space kTwelve{{12}, {1}};
const Space kThreeByFour{{3, 4}, {2}};
const Space kFourByThree{{4, 3}, {2}};

TEST(CrossCheck, equal_places_agree_however_they_are_cut) {
  const Layout whole = layout_of(kTwelve, {{{{0}, {12}}, {0, {1}}}});
  const Layout parts = layout_of(kTwelve, {{{{0}, {5}}, {0, {1}}}, {{{5}, {7}}, {5, {1}}}});
  const Layout by_four =
      layout_of(kThreeByFour, {{{{0, 0}, {3, 2}}, {0, {4, 1}}}, {{{0, 2}, {3, 2}}, {2, {4, 1}}}});
  const Layout by_three = layout_of(kFourByThree, {{{{0, 0}, {4, 3}}, {0, {3, 1}}}});
  for (const Layout* a : {&whole, &parts, &by_four, &by_three}) {
    for (const Layout* b : {&whole, &parts, &by_four, &by_three}) {
      EXPECT_EQ(first_disagreement({"a", *a}, {"b", *b}), std::nullopt);
    }
  }
}

TEST(CrossCheck, every_other_order_is_seen) {
  const Layout whole = layout_of(kTwelve, {{{{0}, {12}}, {0, {1}}}});
  const Layout turned = layout_of(kThreeByFour, {{{{0, 0}, {3, 4}}, {0, {1, 3}}}});
  const Layout short_by_one = layout_of(kTwelve, {{{{0}, {11}}, {0, {1}}}});
  const Layout swapped = layout_of(kTwelve, {{{{0}, {6}}, {6, {1}}}, {{{6}, {6}}, {0, {1}}}});
  EXPECT_EQ(first_disagreement({"a", whole}, {"b", turned}),
            (Disagreement{"n.weight", "n.weight", {1}, {1}, {3}, 10}));
  EXPECT_EQ(first_disagreement({"a", whole}, {"b", short_by_one}),
            (Disagreement{"n.weight", "n.weight", {11}, {11}, {}, 1}));
  EXPECT_EQ(first_disagreement({"a", short_by_one}, {"b", whole}),
            (Disagreement{"n.weight", "n.weight", {11}, {}, {11}, 1}));
  EXPECT_EQ(first_disagreement({"a", whole}, {"b", swapped}),
            (Disagreement{"n.weight", "n.weight", {0}, {0}, {6}, 12}));
}

TEST(CrossCheck, what_is_opaque_is_not_compared) {
  const Layout whole = layout_of(kTwelve, {{{{0}, {12}}, {0, {1}}}});
  Layout opaque = layout_of(kTwelve, {{{{0}, {11}}, {0, {1}}}});
  opaque.reasons = {"why"};
  opaque.instances[0].opaque_reason = 0;
  EXPECT_EQ(first_disagreement({"a", whole}, {"b", opaque}), std::nullopt);
  EXPECT_EQ(first_disagreement({"a", opaque}, {"b", whole}), std::nullopt);
}

}  // namespace
}  // namespace crossmesh
