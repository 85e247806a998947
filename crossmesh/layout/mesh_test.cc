// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/mesh.h"

#include <gtest/gtest.h>

#include <array>

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

}  // namespace
}  // namespace crossmesh
