// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/space.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// Every way to write n as a product of factors greater than 1, at most `count` of them.
std::vector<Shape> factorisations(std::int64_t n, int count) {
  std::vector<Shape> all{{n}};
  if (count == 1) return all;
  for (std::int64_t f = 2; f < n; ++f) {
    if (n % f != 0) continue;
    for (const Shape& rest : factorisations(n / f, count - 1)) {
      Shape shape{f};
      for (const std::int64_t r : rest) shape.push_back(r);
      all.push_back(shape);
    }
  }
  return all;
}

Space one_dimension(const Shape& factors) { return {factors, {factors.size()}}; }

// Flat indices of a box, in its row-major order.
std::vector<std::int64_t> indices_of(const Box& box, const Shape& factors) {
  std::vector<std::int64_t> indices{0};
  for (int f = 0; f < factors.size(); ++f) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t index : indices) {
      for (std::int64_t i = 0; i < box.shape[f]; ++i) {
        EXPECT_LT(box.origin[f] + i, factors[f]);
        longer.push_back(index * factors[f] + box.origin[f] + i);
      }
    }
    indices = longer;
  }
  return indices;
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = begin; i < end; ++i) indices.push_back(i);
  return indices;
}

// Every box of a space with these factors.
std::vector<Box> boxes_of(const Shape& factors) {
  std::vector<Box> boxes{Box{}};
  for (const std::int64_t factor : factors) {
    std::vector<Box> longer;
    for (const Box& head : boxes) {
      for (std::int64_t begin = 0; begin <= factor; ++begin) {
        for (std::int64_t end = begin; end <= factor; ++end) {
          Box box = head;
          box.origin.push_back(begin);
          box.shape.push_back(end - begin);
          longer.push_back(box);
        }
      }
    }
    boxes = longer;
  }
  return boxes;
}

bool refines(const Shape& fine, const Shape& coarse) {
  int at = fine.size();
  for (int c = coarse.size() - 1; c >= 0; --c) {
    std::int64_t product = 1;
    while (product < coarse[c] && at > 0) product *= fine[--at];
    if (product != coarse[c]) return false;
  }
  return true;
}

TEST(Space, peel_holds_exactly_the_interval_in_order_and_in_few_boxes) {
  for (const std::int64_t n : {1, 2, 6, 7, 8, 12, 16, 24, 36}) {
    for (const Shape& factors : factorisations(n, 4)) {
      for (std::int64_t begin = 0; begin <= n; ++begin) {
        for (std::int64_t end = begin; end <= n; ++end) {
          const std::vector<Box> boxes = peel(begin, end, factors);
          std::vector<std::int64_t> indices;
          for (const Box& box : boxes) {
            for (const std::int64_t index : indices_of(box, factors)) indices.push_back(index);
          }
          ASSERT_EQ(indices, range(begin, end)) << to_string(factors);
          ASSERT_LE(static_cast<int>(boxes.size()), 2 * factors.size() - 1) << to_string(factors);
        }
      }
    }
  }
}

TEST(Space, peel_is_not_slower_for_long_intervals) {
  const std::int64_t rows = std::int64_t{1} << 40;
  EXPECT_EQ(peel(3, rows * 4 - 1, {rows, 4}),
            (std::vector<Box>{{{0, 3}, {1, 1}}, {{1, 0}, {rows - 2, 4}}, {{rows - 1, 0}, {1, 3}}}));
}

TEST(Space, common_refinement_is_the_coarsest_that_refines_both) {
  int found = 0, missing = 0;
  for (const std::int64_t n : {1, 2, 6, 8, 12, 24, 36}) {
    const std::vector<Shape> all = factorisations(n, 5);
    for (const Shape& a : factorisations(n, 3)) {
      for (const Shape& b : factorisations(n, 3)) {
        const Shape* coarsest = nullptr;
        for (const Shape& fine : all) {
          if (!refines(fine, a) || !refines(fine, b)) continue;
          if (coarsest == nullptr || fine.size() < coarsest->size()) coarsest = &fine;
        }
        const auto space = common_refinement(one_dimension(a), one_dimension(b));
        ASSERT_EQ(space, common_refinement(one_dimension(b), one_dimension(a)));
        ASSERT_EQ(space.has_value(), coarsest != nullptr) << to_string(a) << to_string(b);
        if (space) {
          ASSERT_EQ(*space, one_dimension(*coarsest)) << to_string(a) << to_string(b);
        }
        (space ? found : missing) += 1;
      }
      ASSERT_EQ(common_refinement(one_dimension(a), one_dimension(a)), one_dimension(a));
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(missing, 100);
}

TEST(Space, refine_and_refine_strides_keep_every_element_and_its_place) {
  for (const std::int64_t n : {1, 6, 8, 12, 16}) {
    for (const Shape& coarse : factorisations(n, 3)) {
      Strides strides;
      for (int f = 0; f < coarse.size(); ++f) strides.push_back(100 - 37 * f);
      for (const Shape& fine : factorisations(n, 4)) {
        if (!refines(fine, coarse)) continue;
        const Strides fine_strides =
            refine_strides(strides, one_dimension(coarse), one_dimension(fine));
        const auto places = [](const Box& box, const Shape& factors, const Strides& s) {
          std::set<std::pair<std::int64_t, std::int64_t>> set;
          for (std::int64_t index : indices_of(box, factors)) {
            std::int64_t place = 0, rest = index;
            for (int f = factors.size() - 1; f >= 0; --f) {
              place += rest % factors[f] * s[f];
              rest /= factors[f];
            }
            EXPECT_TRUE(set.emplace(index, place).second) << "boxes overlap";
          }
          return set;
        };
        for (const Box& box : boxes_of(coarse)) {
          std::set<std::pair<std::int64_t, std::int64_t>> refined;
          std::int64_t total = 0;
          for (const Box& part : refine(box, one_dimension(coarse), one_dimension(fine))) {
            refined.merge(places(part, fine, fine_strides));
            total += volume(part);
          }
          ASSERT_EQ(refined, places(box, coarse, strides)) << to_string(coarse) << to_string(fine);
          ASSERT_EQ(total, volume(box));
        }
      }
    }
  }
}

TEST(Space, refine_splits_each_dimension_by_itself) {
  const Space coarse{{6, 4}, {1, 1}};
  const Space fine{{3, 2, 2, 2}, {2, 2}};
  EXPECT_EQ(refine({{1, 0}, {4, 2}}, coarse, fine),
            (std::vector<Box>{{{0, 1, 0, 0}, {1, 1, 1, 2}},
                              {{1, 0, 0, 0}, {1, 2, 1, 2}},
                              {{2, 0, 0, 0}, {1, 1, 1, 2}}}));
  EXPECT_EQ(refine_strides({4, 1}, coarse, fine), (Strides{8, 4, 2, 1}));
}

TEST(Space, factors_of_one_do_not_matter) {
  const Space a{{1, 6, 1}, {3}};
  const Space b{{2, 1, 3}, {3}};
  const Space both{{2, 3}, {2}};
  EXPECT_EQ(common_refinement(a, b), both);
  EXPECT_EQ(refine({{0, 1, 0}, {1, 3, 1}}, a, both),
            (std::vector<Box>{{{0, 1}, {1, 2}}, {{1, 0}, {1, 1}}}));
  EXPECT_EQ(refine_strides({70, 10, 7}, a, both), (Strides{30, 10}));
  EXPECT_EQ(refine_strides({50, 20, 10}, b, both), (Strides{50, 10}));
  const Space ones{{1, 1}, {2}};
  EXPECT_EQ(common_refinement(ones, ones), (Space{{1}, {1}}));
  EXPECT_EQ(refine({{0, 0}, {1, 1}}, ones, Space{{1}, {1}}), (std::vector<Box>{{{0}, {1}}}));
  EXPECT_EQ(refine({{0}, {1}}, Space{{1}, {1}}, ones), (std::vector<Box>{{{0, 0}, {1, 1}}}));
  EXPECT_EQ(refine({{2}, {3}}, Space{{6}, {1}}, Space{{1, 6}, {2}}),
            (std::vector<Box>{{{0, 2}, {1, 3}}}));
}

TEST(Space, an_empty_dimension_has_no_elements_and_one_factor) {
  const Space a{{3, 0, 2}, {2, 1}};
  const Space b{{0, 2}, {1, 1}};
  EXPECT_EQ(tensor_shape(a), (Shape{0, 2}));
  EXPECT_EQ(common_refinement(a, b), b);
  EXPECT_EQ(common_refinement(b, a), b);
  EXPECT_EQ(refine({{0, 0, 0}, {3, 0, 2}}, a, b), std::vector<Box>{});
  EXPECT_EQ(refine({{0, 1}, {0, 1}}, b, b), std::vector<Box>{});
  EXPECT_EQ(refine_strides({2, 2, 1}, a, b), (Strides{2, 1}));
  EXPECT_EQ(peel(0, 0, {3, 0}), std::vector<Box>{});
}

TEST(Space, a_scalar_has_one_box) {
  const Space scalar = Space::plain({});
  EXPECT_EQ(common_refinement(scalar, scalar), scalar);
  EXPECT_EQ(refine({}, scalar, scalar), std::vector<Box>{Box{}});
  EXPECT_EQ(to_string(scalar), "[]");
}

TEST(Space, a_refinement_past_the_dimensions_limit_is_nothing) {
  const Space a{{2, 2, 2, 2, 256}, {5}};
  const Space b{{256, 2, 2, 2, 2}, {5}};
  EXPECT_EQ(common_refinement(a, b), std::nullopt);
}

TEST(Space, text_shows_factors_where_there_are_some) {
  EXPECT_EQ(to_string(Space{{3, 4, 8}, {2, 1}}), "[12=3*4, 8]");
}

TEST(Space, too_many_dimensions_are_unsupported) {
  const std::vector<std::int64_t> shape(9, 2);
  try {
    Space::plain(shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "lay out: a tensor has too many dimensions\n  dimensions  9\n  limit  8");
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
}

}  // namespace
}  // namespace crossmesh
