// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/box.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using Elements = std::set<std::vector<std::int64_t>>;

Elements elements_of(const Box& box) {
  Elements elements{{}};
  for (int d = 0; d < box.shape.size(); ++d) {
    Elements longer;
    for (const auto& element : elements) {
      for (std::int64_t i = 0; i < box.shape[d]; ++i) {
        auto extended = element;
        extended.push_back(box.origin[d] + i);
        longer.insert(extended);
      }
    }
    elements = longer;
  }
  return elements;
}

std::vector<Box> small_boxes() {
  std::vector<Box> boxes;
  for (std::int64_t a = 0; a < 3; ++a) {
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t n = 0; n < 4; ++n) {
        for (std::int64_t m = 0; m < 3; ++m) boxes.push_back({{a, b}, {n, m}});
      }
    }
  }
  return boxes;
}

TEST(Box, intersect_and_contains_agree_with_sets_of_elements) {
  for (const Box& a : small_boxes()) {
    for (const Box& b : small_boxes()) {
      const Elements of_a = elements_of(a);
      Elements both;
      bool inside = true;
      for (const auto& element : elements_of(b)) {
        if (of_a.count(element) == 1) both.insert(element);
        inside = inside && of_a.count(element) == 1;
      }
      const auto found = intersect(a, b);
      ASSERT_EQ(found.has_value(), !both.empty()) << to_string(a) << to_string(b);
      if (found) {
        ASSERT_EQ(elements_of(*found), both) << to_string(a) << to_string(b);
      }
      ASSERT_EQ(contains(a, b), inside) << to_string(a) << to_string(b);
    }
    ASSERT_EQ(volume(a), static_cast<std::int64_t>(elements_of(a).size()));
    ASSERT_EQ(is_empty(a), elements_of(a).empty());
  }
}

TEST(Box, boxes_of_no_dimensions_hold_one_element) {
  const Box scalar;
  EXPECT_EQ(volume(scalar), 1);
  EXPECT_FALSE(is_empty(scalar));
  EXPECT_EQ(intersect(scalar, scalar), scalar);
  EXPECT_TRUE(contains(scalar, scalar));
  EXPECT_EQ(to_string(scalar), "[]");
}

TEST(Box, whole_starts_at_zero) {
  EXPECT_EQ(whole({3, 4}), (Box{{0, 0}, {3, 4}}));
  EXPECT_EQ(to_string(Box{{0, 2}, {4, 4}}), "[0:4, 2:6]");
}

TEST(Box, volume_of_a_huge_box_is_an_error_unless_it_is_empty) {
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(volume(whole({huge, huge, 0})), 0);
  try {
    volume(whole({huge, huge}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "multiply: sizes overflow 63 bits\n  a  1099511627776\n  b  1099511627776");
  }
}

}  // namespace
}  // namespace crossmesh
