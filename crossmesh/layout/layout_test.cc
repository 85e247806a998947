// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/layout.h"

#include <gtest/gtest.h>

#include "crossmesh/layout/interner.h"

namespace crossmesh {
namespace {

// Two ranks share q and k rows of one fused parameter; rank 2 has no part.
Layout fused_layout() {
  Layout layout;
  layout.rank_count = 3;
  layout.replica_of_rank = {0, 0, 1};
  layout.tensors = {{"q", DType::bf16, {4, 3}}, {"k", DType::bf16, {4, 3}}};
  Interner interner(layout);
  LayoutClass rows{Space::plain(std::vector<std::int64_t>{4, 3}), DType::bf16, {}};
  rows.pieces_of_role = {{{{{0, 0}, {2, 3}}, {0, {3, 1}}}}, {{{{2, 0}, {2, 3}}, {0, {3, 1}}}}};
  const int rows_class = interner.layout_class(rows);
  const int both = interner.binding({{0, 1, -1}});
  const int fused = interner.parameter_class({DType::bf16, {{4, 3}, {4, 3}}, {}, {}});
  layout.parameters = {{"qk", fused, both, 0}};
  layout.instances = {{0, 0, rows_class, both, 0, -1}, {1, 0, rows_class, both, 6, -1}};
  return layout;
}

TEST(Layout, pieces_are_placed_by_the_instance) {
  const Layout layout = fused_layout();
  const auto of_k = pieces(layout, 1, 1);
  ASSERT_EQ(of_k.size(), 1u);
  EXPECT_EQ(of_k[0].instance, 1);
  EXPECT_EQ(of_k[0].parameter, 0);
  EXPECT_EQ(of_k[0].piece, (Piece{{{2, 0}, {2, 3}}, {6, {3, 1}}}));
  EXPECT_EQ(pieces(layout, 2, 0).size(), 0u);
}

TEST(Layout, a_rank_without_a_role_lacks_the_parameter) {
  const Layout layout = fused_layout();
  EXPECT_TRUE(has_parameter(layout, 1, 0));
  EXPECT_FALSE(has_parameter(layout, 2, 0));
  EXPECT_EQ(local_shape(layout, 1, 0), (Shape{4, 3}));
  EXPECT_EQ(local_strides(layout, 1, 0), (Strides{3, 1}));
}

TEST(Layout, storage_reaches_one_past_the_last_element) {
  EXPECT_EQ(storage_elements({4, 3}, {3, 1}), 12);
  EXPECT_EQ(storage_elements({4, 3}, {8, 2}), 29);
  EXPECT_EQ(storage_elements({4, 0}, {8, 2}), 0);
  EXPECT_EQ(storage_elements({}, {}), 1);
}

}  // namespace
}  // namespace crossmesh
