// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/mesh.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 3> kAxes = {"a", "b", "c"};
constexpr SideAxes kSide = {"test", kAxes};

std::string refusal_of(const Spec& spec) {
  try {
    mesh_of(spec, kSide);
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "accepted";
}

TEST(Mesh, the_last_axis_written_is_the_fastest) {
  const Mesh mesh = mesh_of({"b=2,a=3", {{"b", "2"}, {"a", "3"}}, {}}, kSide);
  EXPECT_EQ(mesh, (Mesh{6, {{"b", 2, 3}, {"a", 3, 1}}}));
  for (int b = 0; b < 2; ++b) {
    for (int a = 0; a < 3; ++a) {
      EXPECT_EQ(coordinate(mesh, "b", b * 3 + a), b);
      EXPECT_EQ(coordinate(mesh, "a", b * 3 + a), a);
      EXPECT_EQ(coordinate(mesh, "c", b * 3 + a), 0);
    }
  }
  EXPECT_EQ(size_of_axis(mesh, "a"), 3);
  EXPECT_EQ(size_of_axis(mesh, "c"), 1);
}

TEST(Mesh, a_spec_that_the_side_does_not_take_is_refused) {
  EXPECT_EQ(refusal_of({"x=2", {{"x", "2"}}, {}}),
            "invalid_argument: read test mesh: an axis is not known\n"
            "  spec  x=2\n"
            "  axis  x\n"
            "  known  a, b, c");
  EXPECT_EQ(refusal_of({"a=2,a=3", {{"a", "2"}, {"a", "3"}}, {}}),
            "invalid_argument: read test mesh: an axis is repeated\n"
            "  spec  a=2,a=3\n"
            "  axis  a");
  EXPECT_EQ(refusal_of({"a=2,fast", {{"a", "2"}}, {"fast"}}),
            "invalid_argument: read test mesh: no option is known\n"
            "  spec  a=2,fast\n"
            "  option  fast");
  EXPECT_EQ(refusal_of({"a=1000000,b=1000000,c=1000000",
                        {{"a", "1000000"}, {"b", "1000000"}, {"c", "1000000"}},
                        {}}),
            "invalid_argument: read test mesh: too many ranks\n"
            "  spec  a=1000000,b=1000000,c=1000000\n"
            "  ranks_max  1000000");
}

TEST(Mesh, words_are_no_axes) {
  static constexpr std::array<std::string_view, 1> kWords = {"way"};
  constexpr SideAxes kWordy = {"test", kAxes, kWords};
  EXPECT_EQ(mesh_of({"way=x,a=2", {{"way", "x"}, {"a", "2"}}, {}}, kWordy),
            (Mesh{2, {{"a", 2, 1}}}));
  try {
    mesh_of({"x=2", {{"x", "2"}}, {}}, kWordy);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "read test mesh: an axis is not known\n  spec  x=2\n  axis  x\n"
              "  known  a, b, c, way");
  }
}

TEST(Mesh, stages_before_the_last_take_the_layers_that_are_left_over) {
  const auto layers_of = [](int layers, int stages) {
    std::vector<int> counts(static_cast<std::size_t>(stages), 0);
    int before = 0;
    for (int layer = 0; layer < layers; ++layer) {
      const int stage = stage_of_layer(layer, layers, stages);
      EXPECT_TRUE(stage == before || stage == before + 1);
      before = stage;
      ++counts[static_cast<std::size_t>(stage)];
    }
    return counts;
  };
  EXPECT_EQ(layers_of(8, 3), (std::vector{3, 3, 2}));
  EXPECT_EQ(layers_of(7, 3), (std::vector{2, 3, 2}));
  // The rule, told otherwise: one more for stages -2, -3, ... as long as layers are left over.
  for (int stages = 1; stages <= 8; ++stages) {
    for (int layers = stages; layers <= 30; ++layers) {
      std::vector<int> expected(static_cast<std::size_t>(stages), layers / stages);
      for (int back = 2; back < layers % stages + 2; ++back) {
        ++expected[static_cast<std::size_t>(stages - back)];
      }
      EXPECT_EQ(layers_of(layers, stages), expected) << layers << " on " << stages;
    }
  }
}

}  // namespace
}  // namespace crossmesh
