// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/checked.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Checked, products_that_fit_are_exact_and_others_throw) {
  EXPECT_EQ(checked_product(std::array<std::int64_t, 3>{1 << 20, 1 << 20, 1 << 20}), 1LL << 60);
  EXPECT_EQ(checked_product(std::array<std::int64_t, 0>{}), 1);
  EXPECT_EQ(checked_product(std::array<std::int64_t, 3>{kMax, kMax, 0}), 0);
  EXPECT_THROW(checked_product(std::array<std::int64_t, 2>{kMax, 2}), Error);
  EXPECT_THROW(checked_add(kMax, 1), Error);
}

TEST(Checked, ceil_div_does_not_wrap_at_the_top) {
  EXPECT_EQ(ceil_div(kMax, kMax), 1);
  EXPECT_EQ(ceil_div(7, 3), 3);
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(round_up(17, 16), 32);
}

}  // namespace
}  // namespace crossmesh
