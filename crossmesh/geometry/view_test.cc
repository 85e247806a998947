// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/view.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

TEST(View, contiguous_strides_are_row_major) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({5}), (Strides{1}));
  EXPECT_EQ(contiguous_strides({}), (Strides{}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Strides{4, 4, 1}));
}

TEST(View, restrict_keeps_every_element_in_its_place) {
  const Box outer{{1, 2}, {3, 4}};
  const View view{7, {-5, 9}};
  const auto place = [](const Box& box, const View& v, std::int64_t i, std::int64_t j) {
    return v.offset + (i - box.origin[0]) * v.strides[0] + (j - box.origin[1]) * v.strides[1];
  };
  for (std::int64_t a = 1; a < 4; ++a) {
    for (std::int64_t b = 2; b < 6; ++b) {
      const Box inner{{a, b}, {4 - a, 6 - b}};
      const View inner_view = restrict(view, outer, inner);
      for (std::int64_t i = a; i < 4; ++i) {
        for (std::int64_t j = b; j < 6; ++j) {
          ASSERT_EQ(place(inner, inner_view, i, j), place(outer, view, i, j));
        }
      }
    }
  }
}

TEST(View, a_region_prints_shape_strides_and_offset) {
  EXPECT_EQ(to_string(StridedRegion{{2, 3}, {12, {3, 1}}}), "[2, 3]:[3, 1]+12");
}

}  // namespace
}  // namespace crossmesh
