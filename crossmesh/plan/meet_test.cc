// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/meet.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/testing.h"

namespace crossmesh {
namespace {

using testing::at;

LayoutClass class_of(const testing::HandTensor& tensor) {
  std::vector<int> roles(tensor.boxes_of_role.size());
  return testing::hand_layout({{"p", {tensor}, roles}}).classes[0];
}

// What is wrong with `met`, by walking elements; empty when nothing is.
std::string complaint(const LayoutClass& source, const LayoutClass& target, const PlanClass& met) {
  std::set<std::int64_t> distinct;
  const int role_count = static_cast<int>(target.pieces_of_role.size());
  if (met.first_copy_of_target_role.size() != at(role_count) + 1) return "roles are missing";
  for (int role = 0; role < role_count; ++role) {
    std::map<std::int64_t, std::int64_t> wanted;
    for (const auto& [place, element] : testing::elements_of(target, role)) {
      wanted[place] = element;
      distinct.insert(element);
    }
    std::map<std::int64_t, std::int64_t> filled;
    for (int c = met.first_copy_of_target_role[at(role)];
         c < met.first_copy_of_target_role[at(role) + 1]; ++c) {
      const Copy& copy = met.copies[at(c)];
      if (copy.target_role != role) return "a copy stands with another role";
      std::map<std::int64_t, std::int64_t> held;
      for (const auto& [place, element] : testing::elements_of(source, copy.source_role)) {
        held[place] = element;
      }
      const auto read = testing::places_of(copy.counts, copy.source);
      const auto written = testing::places_of(copy.counts, copy.target);
      for (std::size_t i = 0; i < read.size(); ++i) {
        if (!held.contains(read[i])) return "a copy reads what its source does not hold";
        if (!filled.emplace(written[i], held[read[i]]).second) return "a place is filled twice";
      }
    }
    if (filled != wanted) return "a role has other elements than it wants";
  }
  if (met.unique_elements != static_cast<std::int64_t>(distinct.size())) return "unique elements";
  return "";
}

TEST(Meet, rows_meet_columns) {
  const LayoutClass rows = class_of(
      {"t", DType::bf16, testing::plain({5, 4}), {{{{0, 0}, {3, 4}}}, {{{3, 0}, {2, 4}}}}});
  const LayoutClass columns = class_of(
      {"t", DType::bf16, testing::plain({5, 4}), {{{{0, 0}, {5, 2}}}, {{{0, 2}, {5, 2}}}}});
  const PlanClass met = meet(rows, columns);
  const std::vector<Copy> expected = {
      {0, 0, {3, 2}, {0, {4, 1}}, {0, {2, 1}}},
      {1, 0, {2, 2}, {0, {4, 1}}, {6, {2, 1}}},
      {0, 1, {3, 2}, {2, {4, 1}}, {0, {2, 1}}},
      {1, 1, {2, 2}, {2, {4, 1}}, {6, {2, 1}}},
  };
  EXPECT_EQ(met.copies, expected);
  EXPECT_EQ(met.first_copy_of_target_role, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(met.unique_elements, 20);
}

TEST(Meet, what_continues_is_one_copy) {
  // The target's space is refined, but both lie in a line: an uneven shard is one run.
  const LayoutClass shards = class_of(
      {"t", DType::bf16, testing::plain({16, 3}), {{{{0, 0}, {6, 3}}}, {{{6, 0}, {10, 3}}}}});
  const LayoutClass grouped =
      class_of({"t", DType::bf16, {{4, 4, 3}, {2, 1}}, {{{{0, 0, 0}, {4, 4, 3}}}}});
  const std::vector<Copy> expected = {{0, 0, {18}, {0, {1}}, {0, {1}}},
                                      {1, 0, {30}, {0, {1}}, {18, {1}}}};
  EXPECT_EQ(meet(shards, grouped).copies, expected);
}

TEST(Meet, equal_roles_share_the_work) {
  const Space space = testing::plain({4});
  const LayoutClass twice = class_of({"t", DType::bf16, space, {{{{0}, {4}}}, {{{0}, {4}}}}});
  const LayoutClass halves = class_of({"t", DType::bf16, space, {{{{0}, {2}}}, {{{2}, {2}}}}});
  const std::vector<Copy> expected = {{0, 0, {2}, {0, {1}}, {0, {1}}},
                                      {1, 1, {2}, {2, {1}}, {0, {1}}}};
  EXPECT_EQ(meet(twice, halves).copies, expected);
}

TEST(Meet, overlapping_sources_give_each_element_once) {
  const Space space = testing::plain({6, 2});
  const LayoutClass source =
      class_of({"t", DType::bf16, space, {{{{0, 0}, {4, 2}}}, {{{2, 0}, {4, 2}}}}});
  const LayoutClass target = class_of({"t", DType::bf16, space, {{{{0, 0}, {6, 2}}}}});
  const std::vector<Copy> expected = {{0, 0, {8}, {0, {1}}, {0, {1}}},
                                      {1, 0, {4}, {4, {1}}, {8, {1}}}};
  EXPECT_EQ(meet(source, target).copies, expected);
}

TEST(Meet, thirds_across_query_groups) {
  // Four groups of [q q k v], rows of 2; the shards of 3 ranks (6, 6, 4 rows) split groups.
  const LayoutClass shards =
      class_of({"t",
                DType::bf16,
                testing::plain({16, 2}),
                {{{{0, 0}, {6, 2}}}, {{{6, 0}, {6, 2}}}, {{{12, 0}, {4, 2}}}}});
  const LayoutClass queries = class_of({"t",
                                        DType::bf16,
                                        {{4, 4, 2}, {2, 1}},
                                        {{{{0, 0, 0}, {2, 2, 2}}}, {{{2, 0, 0}, {2, 2, 2}}}}});
  const PlanClass met = meet(shards, queries);
  EXPECT_EQ(complaint(shards, queries, met), "");
  const std::vector<Copy> expected = {{0, 0, {4}, {0, {1}}, {0, {1}}},
                                      {0, 0, {4}, {8, {1}}, {4, {1}}},
                                      {1, 1, {4}, {4, {1}}, {0, {1}}},
                                      {2, 1, {4}, {0, {1}}, {4, {1}}}};
  EXPECT_EQ(met.copies, expected);
}

TEST(Meet, every_second_row) {
  const LayoutClass whole_rows =
      class_of({"t", DType::bf16, testing::plain({8, 3}), {{{{0, 0}, {8, 3}}}}});
  const LayoutClass interleaved = class_of({"t",
                                            DType::bf16,
                                            {{4, 2, 3}, {2, 1}},
                                            {{{{0, 0, 0}, {4, 1, 3}}}, {{{0, 1, 0}, {4, 1, 3}}}}});
  const std::vector<Copy> expected = {{0, 0, {4, 3}, {0, {6, 1}}, {0, {3, 1}}},
                                      {0, 1, {4, 3}, {3, {6, 1}}, {0, {3, 1}}}};
  EXPECT_EQ(meet(whole_rows, interleaved).copies, expected);
}

TEST(Meet, refinements_that_do_not_nest_are_flattened) {
  const LayoutClass by_threes = class_of({"t",
                                          DType::bf16,
                                          {{4, 3, 2}, {2, 1}},
                                          {{{{0, 0, 0}, {4, 2, 2}}}, {{{0, 2, 0}, {4, 1, 2}}}}});
  const LayoutClass by_twos = class_of({"t",
                                        DType::bf16,
                                        {{6, 2, 2}, {2, 1}},
                                        {{{{0, 0, 0}, {6, 1, 2}}}, {{{0, 1, 0}, {6, 1, 2}}}}});
  EXPECT_EQ(complaint(by_threes, by_twos, meet(by_threes, by_twos)), "");
  EXPECT_EQ(complaint(by_twos, by_threes, meet(by_twos, by_threes)), "");
}

TEST(Meet, too_many_intervals_are_refused) {
  const std::int64_t rows = std::int64_t{3} << 13;
  const LayoutClass by_threes = class_of({"t",
                                          DType::bf16,
                                          {{rows / 3, 3}, {2}},
                                          {{{{0, 0}, {rows / 3, 2}}}, {{{0, 2}, {rows / 3, 1}}}}});
  const LayoutClass by_twos = class_of({"t",
                                        DType::bf16,
                                        {{rows / 2, 2}, {2}},
                                        {{{{0, 0}, {rows / 2, 1}}}, {{{0, 1}, {rows / 2, 1}}}}});
  try {
    meet(by_threes, by_twos);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.text(),
              "compile: refinements do not nest, and take too many boxes\n"
              "  space  [24576=8192*3]\n"
              "  dimension  0\n"
              "  boxes  16384\n"
              "  limit  4096");
  }
}

TEST(Meet, a_box_that_nobody_holds_is_named) {
  const Space space = testing::plain({6, 2});
  const LayoutClass source = class_of({"t", DType::bf16, space, {{{{0, 0}, {4, 2}}}}});
  const LayoutClass target = class_of({"t", DType::bf16, space, {{}, {{{2, 0}, {4, 2}}}}});
  try {
    meet(source, target);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.text(),
              "compile: no source rank holds a wanted box\n"
              "  target role  1\n"
              "  space  [6, 2]\n"
              "  wanted  [2:6, 0:2]\n"
              "  missing  [4:6, 0:2]");
  }
}

TEST(Meet, other_shapes_are_refused) {
  const LayoutClass a = class_of({"t", DType::bf16, testing::plain({6}), {{{{0}, {6}}}}});
  const LayoutClass b = class_of({"t", DType::bf16, testing::plain({2, 3}), {{{{0, 0}, {2, 3}}}}});
  try {
    meet(a, b);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "compile: the two sides give a tensor other shapes\n"
              "  source shape  [6]\n"
              "  target shape  [2, 3]");
  }
}

TEST(Meet, random_classes_agree_with_a_walk_over_elements) {
  int cases = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    testing::Random random(seed);
    const auto tensors = testing::random_tensors(random, 1, DType::bf16);
    const LayoutClass source = class_of(
        testing::random_tensor(random, tensors[0], {random.between(1, 4), false, DType::bf16}));
    const LayoutClass target = class_of(
        testing::random_tensor(random, tensors[0], {random.between(1, 4), true, DType::bf16}));
    ASSERT_EQ(complaint(source, target, meet(source, target)), "") << "seed " << seed;
    const LayoutClass whole{
        testing::plain(tensors[0].shape),
        DType::bf16,
        {{{{Index::filled(static_cast<int>(tensors[0].shape.size()), 0), Shape(tensors[0].shape)},
           {0, contiguous_strides(Shape(tensors[0].shape))}}}}};
    ASSERT_EQ(complaint(source, whole, meet_whole(source)), "") << "seed " << seed;
    ++cases;
  }
  EXPECT_EQ(cases, 6000);
}

TEST(Meet, wanted_elements_are_counted_over_classes_and_played_roles) {
  const LayoutClass rows =
      class_of({"t", DType::bf16, testing::plain({12}), {{{{0}, {6}}}, {{{6}, {6}}}}});
  const LayoutClass by_threes = class_of({"t", DType::bf16, {{4, 3}, {2}}, {{{{0, 0}, {4, 1}}}}});
  const LayoutClass by_twos = class_of({"t", DType::bf16, {{6, 2}, {2}}, {{{{0, 0}, {6, 1}}}}});
  const Binding first_only{{0, -1, 0}};
  EXPECT_EQ(wanted_elements({{&rows, nullptr}}), 12);
  EXPECT_EQ(wanted_elements({{&rows, &first_only}}), 6);
  EXPECT_EQ(wanted_elements({{&by_threes, nullptr}, {&by_twos, nullptr}}), 8);
  EXPECT_EQ(wanted_elements({{&by_threes, nullptr}, {&by_twos, nullptr}, {&rows, &first_only}}),
            10);
}

}  // namespace
}  // namespace crossmesh
