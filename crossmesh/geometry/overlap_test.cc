// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace crossmesh {
namespace {

bool any_overlap(const std::vector<Box>& boxes) {
  for (std::size_t a = 0; a < boxes.size(); ++a) {
    for (std::size_t b = a + 1; b < boxes.size(); ++b) {
      if (intersect(boxes[a], boxes[b])) return true;
    }
  }
  return false;
}

void expect_agrees(const std::vector<Box>& boxes) {
  const auto pair = find_overlap(boxes);
  ASSERT_EQ(pair.has_value(), any_overlap(boxes));
  if (!pair) return;
  ASSERT_LT(pair->first, pair->second);
  ASSERT_TRUE(intersect(boxes[static_cast<std::size_t>(pair->first)],
                        boxes[static_cast<std::size_t>(pair->second)]));
}

// Cuts a box at random until there are `count`: a tiling.
std::vector<Box> random_tiling(std::mt19937& random, std::size_t count) {
  std::vector<Box> boxes{whole({40, 30, 20})};
  while (boxes.size() < count) {
    Box& box = boxes[random() % boxes.size()];
    const int d = static_cast<int>(random() % 3);
    if (box.shape[d] < 2) continue;
    const std::int64_t cut = 1 + static_cast<std::int64_t>(random()) % (box.shape[d] - 1);
    Box rest = box;
    rest.origin[d] += cut;
    rest.shape[d] -= cut;
    box.shape[d] = cut;
    boxes.push_back(rest);
  }
  return boxes;
}

TEST(Overlap, tilings_are_disjoint_and_a_box_that_grows_is_found) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Box> boxes = random_tiling(random, 2 + random() % 60);
    ASSERT_EQ(find_overlap(boxes), std::nullopt);
    Box& box = boxes[random() % boxes.size()];
    const int d = static_cast<int>(random() % 3);
    ++box.shape[d];
    expect_agrees(boxes);
    box.shape[d] -= 2;
    expect_agrees(boxes);
  }
}

TEST(Overlap, random_boxes_agree_with_comparing_each_with_each) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Box> boxes;
    for (std::size_t b = 0; b < 1 + random() % 24; ++b) {
      Box box;
      for (int d = 0; d < 2; ++d) {
        box.origin.push_back(static_cast<std::int64_t>(random() % 20));
        box.shape.push_back(static_cast<std::int64_t>(random() % 5));
      }
      boxes.push_back(box);
    }
    expect_agrees(boxes);
  }
}

TEST(Overlap, many_equal_boxes_overlap) {
  EXPECT_EQ(find_overlap(std::vector<Box>(1000, whole({3, 3}))), std::pair(0, 1));
}

TEST(Overlap, no_boxes_and_empty_boxes_are_disjoint) {
  EXPECT_EQ(find_overlap({}), std::nullopt);
  EXPECT_EQ(find_overlap(std::vector<Box>(20, whole({3, 0}))), std::nullopt);
}

TEST(Overlap, two_scalars_overlap) {
  EXPECT_EQ(find_overlap(std::vector<Box>(2, Box{})), std::pair(0, 1));
  EXPECT_EQ(find_overlap(std::vector<Box>(20, Box{})), std::pair(0, 1));
}

}  // namespace
}  // namespace crossmesh
