// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "crossmesh/layout/detail/sample_layout.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

TEST(Explain, the_sample_uses_every_part) {
  EXPECT_EQ(explain(sample_layout()), R"(layout of main: 4 ranks, 11 tensors, 10 parameters
  replica 0  ranks 0-1
  replica 1  ranks 2-3
binding 0
  role 0  ranks 0, 2
  role 1  ranks 1, 3
binding 1
  no part  ranks 1, 3
  role 0  ranks 0, 2
parameter class 0
  BF16
  roles 0-1  [3, 3]:[3, 1]
  role 1  fill 0x3f80 [1, 3]:[3, 1]+6  vocabulary padding
parameter class 1
  BF16
  roles 0-1  [4, 3]:[3, 1]
parameter class 2
  BF16
  roles 0-1  [2, 3]:[3, 1]
parameter class 3
  F32
  role 0  [4]:[1]
parameter class 4
  F32
  role 0  [4]:[1]
  role 0  kept [4]:[1]+0  set by the engine
tied parameters
  head.weight is embed.weight
parameters without tensors
  rope.inverse, binding 1, parameter class 4
class 0
  BF16 [5, 3]
  role 0  [0:3, 0:3] at [3, 1]+0
  role 1  [3:5, 0:3] at [3, 1]+0
instances of class 0
  embed.weight +0, binding 0, parameter class 0
class 1
  BF16 [4, 3]
  role 0  [0:2, 0:3] at [3, 1]+0
  role 1  [2:4, 0:3] at [3, 1]+0
instances of class 1
  layers.{0-2}.q.weight -> layers.{0-2}.qk.weight +0, binding 0, parameter class 1
  layers.{0-2}.k.weight -> layers.{0-2}.qk.weight +6, binding 0, parameter class 1
class 2
  BF16 [4=2*2, 3]
  role 0  [0:2, 0:1, 0:3] at [3, 3, 1]+0
  role 1  [0:2, 1:2, 0:3] at [3, 3, 1]+0
instances of class 2
  layers.{0-2}.w.weight +0, binding 0, parameter class 2
class 3
  F32 [4]
  role 0  [0:1] at [1]+3
          [1:4] at [-1]+2
  role 1  nothing
instances of class 3
  odd +0, binding 1, parameter class 3, opaque: its loader sorts rows
unused
  lm_head.weight  tied to embed.weight
)");
}

TEST(Explain, names_that_differ_in_numbers_are_one_line) {
  EXPECT_EQ(explain(uniform_layout(12, 8)), R"(layout of model: 8 ranks, 12 tensors, 12 parameters
  replica 0  ranks 0-3
  replica 1  ranks 4-7
binding 0
  role 0  ranks 0, 4
  role 1  ranks 1, 5
  role 2  ranks 2, 6
  role 3  ranks 3, 7
parameter class 0
  BF16
  roles 0-3  [2, 16]:[16, 1]
class 0
  BF16 [8, 16]
  role 0  [0:2, 0:16] at [16, 1]+0
  role 1  [2:4, 0:16] at [16, 1]+0
  role 2  [4:6, 0:16] at [16, 1]+0
  role 3  [6:8, 0:16] at [16, 1]+0
instances of class 0
  layers.{0-11}.weight +0, binding 0, parameter class 0
)");
}

TEST(Explain, roles_that_count_with_their_ranks_are_one_line) {
  Layout layout;
  layout.rank_count = 6;
  layout.replica_of_rank = {0, 0, 0, 1, 1, 1};
  layout.bindings = {{{0, 1, 2, 3, 4, 5}}, {{-1, -1, 0, 1, 2, -1}}, {{0, 1, 0, 1, 2, 3}}};
  EXPECT_EQ(explain(layout), R"(layout of model: 6 ranks, 0 tensors, 0 parameters
  replica 0  ranks 0-2
  replica 1  ranks 3-5
binding 0
  roles 0-5  ranks 0-5
binding 1
  no part  ranks 0-1, 5
  roles 0-2  ranks 2-4
binding 2
  role 0  ranks 0, 2
  role 1  ranks 1, 3
  roles 2-3  ranks 4-5
)");
}

std::string instances_of_names(const std::vector<std::pair<const char*, const char*>>& names) {
  Layout layout = uniform_layout(static_cast<int>(names.size()), 4);
  for (std::size_t i = 0; i < names.size(); ++i) {
    layout.tensors[i].name = names[i].first;
    layout.parameters[i].name = names[i].second;
    layout.instances[i].offset = static_cast<std::int64_t>(8 * i);
  }
  const std::string text = explain(layout);
  return text.substr(text.find("instances"));
}

TEST(Explain, a_full_product_of_numbers_is_one_line) {
  EXPECT_EQ(instances_of_names({{"a.0.b.0.w", "a.0.w"},
                                {"a.0.b.1.w", "a.0.w"},
                                {"a.0.b.5.w", "a.0.w"},
                                {"a.1.b.0.w", "a.1.w"},
                                {"a.1.b.1.w", "a.1.w"},
                                {"a.1.b.5.w", "a.1.w"}}),
            R"(instances of class 0
  a.{0-1}.b.{0-1, 5}.w -> a.{0-1}.w +0 to +40, binding 0, parameter class 0
)");
}

TEST(Explain, numbers_that_are_no_full_product_are_told_one_by_one) {
  EXPECT_EQ(instances_of_names({{"a.0.b.0", "a.0.b.0"},
                                {"a.0.b.1", "a.0.b.1"},
                                {"a.1.b.0", "a.1.b.0"},
                                {"a.01.b.7", "a.01.b.7"}}),
            R"(instances of class 0
  a.0.b.0 +0, binding 0, parameter class 0
  a.0.b.1 +8, binding 0, parameter class 0
  a.1.b.0 +16, binding 0, parameter class 0
  a.01.b.7 +24, binding 0, parameter class 0
)");
}

TEST(Explain, numbers_that_the_parameter_counts_otherwise_are_told_one_by_one) {
  EXPECT_EQ(instances_of_names({{"a.0", "b.1"}, {"a.1", "b.2"}}), R"(instances of class 0
  a.0 -> b.1 +0, binding 0, parameter class 0
  a.1 -> b.2 +8, binding 0, parameter class 0
)");
}

}  // namespace
}  // namespace crossmesh
