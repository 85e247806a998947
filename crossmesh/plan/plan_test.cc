// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/testing.h"

namespace crossmesh {
namespace {

using testing::at;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{} {}", name_of(error.code()), error.text());
  }
  return "no error";
}

// q and k rows shared by two trainer ranks; q is 4 rows of 3, k is 2.
Layout two_trainers() {
  return testing::hand_layout({
      {"q",
       {{"q", DType::bf16, testing::plain({4, 3}), {{{{0, 0}, {3, 3}}}, {{{3, 0}, {1, 3}}}}}},
       {0, 1}},
      {"k",
       {{"k", DType::bf16, testing::plain({2, 3}), {{{{0, 0}, {1, 3}}}, {{{1, 0}, {1, 3}}}}}},
       {0, 1}},
  });
}

// Two engine ranks, each with half the rows of q, then half of k, in one parameter.
Layout two_engines() {
  return testing::hand_layout(
      {{"qk",
        {{"q", DType::bf16, testing::plain({4, 3}), {{{{0, 0}, {2, 3}}}, {{{2, 0}, {2, 3}}}}},
         {"k", DType::bf16, testing::plain({2, 3}), {{{{0, 0}, {1, 3}}}, {{{1, 0}, {1, 3}}}}}},
        {0, 1}}});
}

TEST(Compile, fused_rows_text) {
  Layout source = two_trainers();
  source.tensors.push_back({"lm_head", DType::bf16, {4, 3}});
  source.tensors.push_back({"extra", DType::bf16, {1}});
  Layout target = two_engines();
  target.unused = {{"lm_head", "tied to q"}};
  EXPECT_EQ(explain(compile(source, target)),
            "plan of model\n"
            "source: 2 ranks, 4 tensors, 2 parameters, 2 classes\n"
            "target: 2 ranks, 2 tensors, 1 parameters, 2 classes\n"
            "2 classes, 2 instances, 5 copies\n"
            "class 0  source class 0 [4, 3] BF16, target class 0 [4, 3] BF16\n"
            "  same dtype, 3 copies, 12 distinct elements\n"
            "  role 0 <- 0  [6]  source [1]+0  target [1]+0\n"
            "  role 1 <- 0  [3]  source [1]+6  target [1]+0\n"
            "  role 1 <- 1  [3]  source [1]+0  target [1]+3\n"
            "class 1  source class 1 [2, 3] BF16, target class 1 [2, 3] BF16\n"
            "  same dtype, 2 copies, 6 distinct elements\n"
            "  role 0 <- 0  [3]  source [1]+0  target [1]+0\n"
            "  role 1 <- 1  [3]  source [1]+0  target [1]+0\n"
            "instances of class 0: 1\n"
            "  q -> qk\n"
            "instances of class 1: 1\n"
            "  k -> qk +6\n"
            "unused: 2\n"
            "  lm_head  (tied to q)\n"
            "  extra  (no engine parameter takes it)\n");
}

TEST(Compile, equal_layers_are_one_class) {
  std::vector<testing::HandParameter> source;
  std::vector<testing::HandParameter> target;
  const Space space = testing::plain({6});
  for (int layer = 0; layer < 50; ++layer) {
    const std::string name = fmt::format("layers.{}.norm", layer);
    source.push_back({name, {{name, DType::f32, space, {{{{0}, {3}}}, {{{3}, {3}}}}}}, {0, 1}});
    target.push_back({name, {{name, DType::bf16, space, {{{{0}, {6}}}}}}, {0, 0, 0}});
  }
  const Plan plan = compile(testing::hand_layout(source), testing::hand_layout(target));
  EXPECT_EQ(plan.classes.size(), 1u);
  EXPECT_EQ(plan.classes[0].conversion, Conversion::cast);
  EXPECT_EQ(plan.instances.size(), 50u);
  EXPECT_EQ(plan.instances[7], (PlanInstance{7, 7, 0, false}));
  EXPECT_EQ(copy_count(plan), 50 * 3 * 2);
}

TEST(Compile, opaque_tensors_need_no_conversion_and_have_no_class) {
  Layout source = two_trainers();
  Layout target = two_engines();
  target.classes[0].dtype = DType::i16;
  target.reasons = {"--opaque q"};
  target.instances[0].opaque_reason = 0;
  const Plan plan = compile(source, target);
  EXPECT_EQ(plan.instances[0], (PlanInstance{0, 0, -1, true}));
  EXPECT_EQ(plan.instances[1], (PlanInstance{1, 1, 0, false}));
}

TEST(Compile, reserves_count_as_filled) {
  const Space space = testing::plain({3, 2});
  Layout source =
      testing::hand_layout({{"t", {{"t", DType::bf16, space, {{{{0, 0}, {3, 2}}}}}}, {0}}});
  Layout target = source;
  target.parameter_classes[0].shape_of_role = {{4, 2}};
  target.parameter_classes[0].strides_of_role = {{2, 1}};
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: an element is never filled\n"
            "  parameter  t\n"
            "  rank  0\n"
            "  shape  [4, 2]\n"
            "  element  6\n"
            "  filled  6 of 8");
  target.parameter_classes[0].reserves = {
      {Reserve::Kind::fill, 0, {{1, 2}, {6, {2, 1}}}, 0, "padding"}};
  EXPECT_EQ(compile(source, target).instances.size(), 1u);
  target.parameter_classes[0].reserves[0].region = {{2, 2}, {4, {2, 1}}};
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: an element is filled twice\n"
            "  parameter  t\n"
            "  rank  0\n"
            "  shape  [4, 2]\n"
            "  element  4\n"
            "  by  t\n"
            "  by  a reserve (padding)");
}

TEST(Compile, gaps_between_rows_belong_to_nobody) {
  const Space space = testing::plain({3, 2});
  Layout source =
      testing::hand_layout({{"t", {{"t", DType::bf16, space, {{{{0, 0}, {3, 2}}}}}}, {0}}});
  Layout target = source;
  target.parameter_classes[0].shape_of_role = {{3, 2}};
  target.parameter_classes[0].strides_of_role = {{5, 1}};
  target.classes[0].pieces_of_role[0][0].view.strides = {5, 1};
  EXPECT_EQ(compile(source, target).classes[0].copies,
            (std::vector<Copy>{{0, 0, {3, 2}, {0, {2, 1}}, {0, {5, 1}}}}));
  target.classes[0].pieces_of_role[0][0].view.strides = {4, 1};
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: an element is filled twice\n"
            "  parameter  t\n"
            "  rank  0\n"
            "  shape  [3, 2]\n"
            "  element  4\n"
            "  by  t\n"
            "  by  a gap between rows");
}

TEST(Compile, tied_names_are_one_storage) {
  Layout source = two_trainers();
  Layout target = two_engines();
  target.parameters.push_back(target.parameters[0]);
  target.parameters[1].name = "twin";
  EXPECT_EQ(compile(source, target).instances.size(), 2u);
  target.parameters[1].storage = 1;
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: an element is never filled\n"
            "  parameter  twin\n"
            "  rank  0\n"
            "  shape  [9]\n"
            "  element  0\n"
            "  filled  0 of 9");
}

TEST(Compile, two_tensors_in_one_place_are_named) {
  Layout target = two_engines();
  target.instances[1].offset = 3;
  EXPECT_EQ(error_of([&] { compile(two_trainers(), target); }),
            "mismatch compile: an element is filled twice\n"
            "  parameter  qk\n"
            "  rank  0\n"
            "  shape  [9]\n"
            "  element  3\n"
            "  by  q\n"
            "  by  k");
  target.instances[1].offset = 7;
  EXPECT_EQ(error_of([&] { compile(two_trainers(), target); }),
            "mismatch compile: a piece lies outside its parameter\n"
            "  parameter  qk\n"
            "  rank  0\n"
            "  shape  [9]\n"
            "  element  9\n"
            "  by  k");
}

TEST(Compile, equal_opaque_regions_may_be_written_by_several_loaders) {
  Layout source = two_trainers();
  Layout target = two_engines();
  target.reasons = {"unknown loader"};
  const int whole_class = static_cast<int>(target.classes.size());
  target.classes.push_back(
      {testing::plain({9}), DType::bf16, {{{{{0}, {9}}, {0, {1}}}}, {{{{0}, {9}}, {0, {1}}}}}});
  for (Instance& instance : target.instances) {
    instance.layout_class = whole_class;
    instance.offset = 0;
    instance.opaque_reason = 0;
  }
  EXPECT_EQ(compile(source, target).instances.size(), 2u);
}

TEST(Compile, a_missing_tensor_is_named) {
  Layout source = two_trainers();
  source.tensors[1].name = "other";
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: the source lacks a tensor that is wanted\n"
            "  tensor  k\n"
            "  shape  [2, 3]\n"
            "  parameter  qk\n"
            "  hint  the checkpoint and the engine's config are of different models");
  source = two_trainers();
  source.instances.pop_back();
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: no source rank holds a tensor that is wanted\n"
            "  tensor  k\n"
            "  shape  [2, 3]\n"
            "  parameter  qk\n"
            "  hint  the checkpoint and the engine's config are of different models");
}

TEST(Compile, another_shape_is_named) {
  Layout source = two_trainers();
  source.tensors[0].shape = {3, 4};
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: a tensor has another shape than the engine wants\n"
            "  tensor  q\n"
            "  source shape  [3, 4]\n"
            "  target shape  [4, 3]\n"
            "  parameter  qk\n"
            "  hint  the checkpoint and the engine's config are of different models");
}

TEST(Compile, dtypes_outside_the_table_are_named) {
  Layout source = two_trainers();
  source.classes[1].dtype = DType::i8;
  source.tensors[1].dtype = DType::i8;
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "unsupported compile: no conversion between the dtypes of a tensor\n"
            "  source dtype  I8\n"
            "  target dtype  BF16\n"
            "  tensor  k\n"
            "  parameter  qk\n"
            "  hint  crossmesh casts between F32, F16 and BF16; let the engine load it as opaque");
}

TEST(Compile, a_tensor_has_one_dtype) {
  Layout source = two_trainers();
  source.tensors[1].dtype = DType::i8;
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: the elements of a tensor have another dtype than it\n"
            "  side  source\n"
            "  tensor dtype  I8\n"
            "  element dtype  BF16\n"
            "  tensor  k\n"
            "  parameter  qk");
}

TEST(Compile, a_role_that_no_rank_plays_cannot_give) {
  Layout source = two_trainers();
  source.bindings[0].role_of_rank = {0, 0};
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: no source rank plays a role that is read\n"
            "  source role  1\n"
            "  target role  1\n"
            "  elements  [3]\n"
            "  tensor  q\n"
            "  parameter  qk");
  // Nobody asks for it either: the only engine rank plays role 0.
  Layout target = two_engines();
  target.bindings[0].role_of_rank = {0, 0};
  EXPECT_EQ(compile(source, target).instances.size(), 2u);
}

TEST(Compile, an_opaque_tensor_must_be_held_whole) {
  Layout source = two_trainers();
  source.bindings[0].role_of_rank = {0, 0};
  Layout target = two_engines();
  target.bindings[0].role_of_rank = {0, 0};
  target.reasons = {"asked"};
  target.instances[0].opaque_reason = 0;
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: no source rank plays a role that is read\n"
            "  source role  1\n"
            "  target role  0\n"
            "  elements  [3]\n"
            "  tensor  q\n"
            "  parameter  qk");
}

TEST(Compile, an_empty_plan_is_refused) {
  Layout target = two_engines();
  target.instances.clear();
  EXPECT_EQ(error_of([&] { compile(two_trainers(), target); }),
            "invalid_argument compile: the target wants no tensor\n"
            "  source tensors  2\n"
            "  target parameters  1");
}

TEST(Compile, other_models_are_refused) {
  Layout source = two_trainers();
  source.model = "draft";
  EXPECT_EQ(error_of([&] { compile(source, two_engines()); }),
            "mismatch compile: the two sides speak of different models\n"
            "  source model  draft\n"
            "  target model  model");
}

TEST(Compile, sub_byte_boxes_fall_on_bytes) {
  const auto side = [](std::int64_t rows) {
    return testing::hand_layout({{"t",
                                  {{"t",
                                    DType::f4,
                                    testing::plain({2, 3}),
                                    {{{{0, 0}, {rows, 3}}}, {{{rows, 0}, {2 - rows, 3}}}}}},
                                  {0, 1}}});
  };
  EXPECT_EQ(compile(side(2), side(2)).instances.size(), 1u);
  EXPECT_EQ(error_of([&] { compile(side(2), side(1)); }),
            "unsupported compile: a box of a sub-byte dtype splits a byte\n"
            "  dtype  F4\n"
            "  source  [3]:[1]+0\n"
            "  target  [3]:[1]+0\n"
            "  tensor  t\n"
            "  parameter  t");
}

TEST(Compile, reinterpreted_views_are_proven_in_bits) {
  // A parameter of bytes that a bf16 tensor fills.
  Layout source = testing::hand_layout(
      {{"t", {{"t", DType::bf16, testing::plain({3, 2}), {{{{0, 0}, {3, 2}}}}}}, {0}}});
  Layout target = source;
  target.parameter_classes[0] = {DType::u8, {{12}}, {{1}}, {}};
  EXPECT_EQ(compile(source, target).instances.size(), 1u);
  target.parameter_classes[0].shape_of_role = {{13}};
  EXPECT_EQ(error_of([&] { compile(source, target); }),
            "mismatch compile: an element is never filled\n"
            "  parameter  t\n"
            "  rank  0\n"
            "  shape  [13]\n"
            "  element  12\n"
            "  filled  12 of 13");
}

// What a target rank finds in its parameters after all copies, against what its layout wants.
void expect_right_elements(const Plan& plan, std::uint64_t seed) {
  std::map<std::pair<int, int>, std::map<std::int64_t, std::int64_t>> filled;  // (parameter, rank)
  std::map<std::pair<int, int>, std::map<std::int64_t, std::int64_t>> wanted;
  for (const PlanInstance& instance : plan.instances) {
    const Instance& source = plan.source.instances[at(instance.source_instance)];
    const Instance& target = plan.target.instances[at(instance.target_instance)];
    ASSERT_EQ(plan.source.tensors[at(source.tensor)].name,
              plan.target.tensors[at(target.tensor)].name);
    const std::int64_t tag = std::int64_t{target.tensor} << 32;
    const PlanClass& c = plan.classes[at(instance.plan_class)];
    for (int rank = 0; rank < plan.target.rank_count; ++rank) {
      const int role = plan.target.bindings[at(target.binding)].role_of_rank[at(rank)];
      if (role < 0) continue;
      const auto key = std::pair(target.parameter, rank);
      for (const auto& [place, element] :
           testing::elements_of(plan.target.classes[at(target.layout_class)], role)) {
        wanted[key][place + target.offset] = tag + element;
      }
      for (int k = c.first_copy_of_target_role[at(role)];
           k < c.first_copy_of_target_role[at(role) + 1]; ++k) {
        const Copy& copy = c.copies[at(k)];
        std::map<std::int64_t, std::int64_t> held;
        for (const auto& [place, element] :
             testing::elements_of(plan.source.classes[at(source.layout_class)], copy.source_role)) {
          held[place] = tag + element;
        }
        const auto read = testing::places_of(copy.counts, copy.source);
        const auto written = testing::places_of(copy.counts, copy.target);
        for (std::size_t i = 0; i < read.size(); ++i) {
          ASSERT_TRUE(held.contains(read[i])) << seed;
          ASSERT_TRUE(filled[key].emplace(written[i] + target.offset, held[read[i]]).second)
              << seed;
        }
      }
    }
  }
  std::erase_if(filled, [](const auto& entry) { return entry.second.empty(); });
  ASSERT_EQ(filled, wanted) << seed;
}

TEST(Compile, random_sides_give_each_rank_its_elements) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const testing::RandomPair pair = testing::random_pair(seed);
    ASSERT_NO_FATAL_FAILURE(expect_right_elements(compile(pair.source, pair.target), seed));
  }
}

TEST(Plan, every_part_is_in_the_fingerprint) {
  const Plan plan = compile(two_trainers(), two_engines());
  EXPECT_EQ(fingerprint(plan), fingerprint(compile(two_trainers(), two_engines())));
  const auto differs = [&](const std::function<void(Plan&)>& change) {
    Plan other = plan;
    change(other);
    return fingerprint(other) != fingerprint(plan);
  };
  EXPECT_TRUE(differs([](Plan& p) { p.source.rank_count = 3; }));
  EXPECT_TRUE(differs([](Plan& p) { p.target.instances[0].offset = 1; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].source_class = 1; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].conversion = Conversion::cast; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].copies[0].source.offset = 1; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].copies[0].target.strides[0] = 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].copies[0].counts[0] = 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].first_copy_of_target_role[1] = 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.classes[0].unique_elements = 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.instances[0].source_instance = 1; }));
  EXPECT_TRUE(differs([](Plan& p) { p.instances[0].opaque = true; }));
  EXPECT_TRUE(differs([](Plan& p) { p.unused = {{"a", "b"}}; }));
}

}  // namespace
}  // namespace crossmesh
