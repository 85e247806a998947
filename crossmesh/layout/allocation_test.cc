// SPDX-License-Identifier: Apache-2.0
// Counts allocations while names and ranks grow: what a layout costs is a sum of names and ranks,
// and never their product.
#include <gtest/gtest.h>

#include <functional>

#include "crossmesh/base/counting_new.h"
#include "crossmesh/layout/detail/sample_layout.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

struct Cost {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

Cost cost_of(const std::function<void()>& call) {
  const Cost before{testing::allocation_count, testing::allocated_bytes};
  call();
  return {testing::allocation_count - before.count, testing::allocated_bytes - before.bytes};
}

// f(2n, 2m) - f(2n, m) - f(n, 2m) + f(n, m): nothing is left of costs that are sums over names and
// over ranks; of one allocation per (name, rank) n * m would be left.
Cost mixed_cost(const std::function<Cost(int names, int ranks)>& f) {
  constexpr int kNames = 512, kRanks = 512;
  const Cost both = f(2 * kNames, 2 * kRanks), names = f(2 * kNames, kRanks);
  const Cost ranks = f(kNames, 2 * kRanks), neither = f(kNames, kRanks);
  return {both.count - names.count - ranks.count + neither.count,
          both.bytes - names.bytes - ranks.bytes + neither.bytes};
}

void expect_additive(const char* name, const std::function<void(const Layout&)>& call) {
  const Cost cost = mixed_cost([&](int names, int ranks) {
    const Layout layout = uniform_layout(names, ranks);
    return cost_of([&] { call(layout); });
  });
  EXPECT_LE(std::abs(cost.count), 64) << name;
  EXPECT_LE(std::abs(cost.bytes), 64 * 64) << name;
}

TEST(Allocation, nothing_allocates_per_name_and_rank) {
  const Cost building = mixed_cost(
      [](int names, int ranks) { return cost_of([&] { uniform_layout(names, ranks); }); });
  EXPECT_LE(std::abs(building.count), 64);
  EXPECT_LE(std::abs(building.bytes), 64 * 64);
  expect_additive("check", [](const Layout& layout) { check(layout); });
  expect_additive("fingerprint", [](const Layout& layout) { fingerprint(layout); });
  expect_additive("fingerprints_by_tensor",
                  [](const Layout& layout) { fingerprints_by_tensor(layout); });
  expect_additive("copy", [](const Layout& layout) { Layout copy = layout; });
}

TEST(Allocation, the_count_sees_a_product) {
  const Cost cost = mixed_cost([](int names, int ranks) {
    return cost_of([&] {
      for (int name = 0; name < names; ++name)
        std::vector<int> roles(static_cast<std::size_t>(ranks));
    });
  });
  EXPECT_GE(cost.bytes, 512 * 512 * 4);
}

}  // namespace
}  // namespace crossmesh
