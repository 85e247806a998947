// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/interner.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

LayoutClass row_class(std::int64_t rows) {
  return {
      Space::plain(std::vector<std::int64_t>{rows}), DType::f32, {{{{{0}, {rows}}, {0, {1}}}}, {}}};
}

TEST(Interner, equal_values_are_stored_once) {
  Layout layout;
  Interner interner(layout);
  EXPECT_EQ(interner.layout_class(row_class(4)), 0);
  EXPECT_EQ(interner.layout_class(row_class(5)), 1);
  EXPECT_EQ(interner.layout_class(row_class(4)), 0);
  EXPECT_EQ(interner.binding({{0, 1}}), 0);
  EXPECT_EQ(interner.binding({{0, -1}}), 1);
  EXPECT_EQ(interner.binding({{0, 1}}), 0);
  EXPECT_EQ(layout.classes, (std::vector<LayoutClass>{row_class(4), row_class(5)}));
  EXPECT_EQ(layout.bindings, (std::vector<Binding>{{{0, 1}}, {{0, -1}}}));
}

TEST(Interner, what_the_layout_holds_already_is_found) {
  Layout layout;
  EXPECT_EQ(Interner(layout).layout_class(row_class(4)), 0);
  EXPECT_EQ(Interner(layout).layout_class(row_class(4)), 0);
  EXPECT_EQ(layout.classes.size(), 1u);
}

TEST(Interner, a_parameter_class_without_strides_is_contiguous) {
  Layout layout;
  Interner interner(layout);
  EXPECT_EQ(interner.parameter_class({DType::f32, {{2, 3}, {0, 3}}, {}, {}}), 0);
  EXPECT_EQ(interner.parameter_class({DType::f32, {{2, 3}, {0, 3}}, {{3, 1}, {3, 1}}, {}}), 0);
  EXPECT_EQ(interner.parameter_class({DType::f32, {{2, 3}, {0, 3}}, {{1, 2}, {3, 1}}, {}}), 1);
  EXPECT_EQ(layout.parameter_classes[0].strides_of_role, (std::vector<Strides>{{3, 1}, {3, 1}}));
}

}  // namespace
}  // namespace crossmesh
