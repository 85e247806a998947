// SPDX-License-Identifier: Apache-2.0
// Counts allocations of compile, arrange and totals while names and ranks grow:
// what a plan costs is a sum of names and ranks, and never their product.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "crossmesh/base/counting_new.h"
#include "crossmesh/plan/testing.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

// How ranks grow: as more roles, each with a part, or as more players of the same roles.
enum class Growth { roles, players };

// `names` equal tensors of 1024 rows, cut by rows over the roles of each side.
Layout side(int names, int ranks, int roles) {
  std::vector<testing::HandParameter> parameters;
  for (int n = 0; n < names; ++n) {
    const std::string name = fmt::format("layers.{}.weight", n);
    testing::HandTensor tensor{name, DType::bf16, testing::plain({1024, 2}), {}};
    for (int role = 0; role < roles; ++role) {
      tensor.boxes_of_role.push_back({{{role * 1024 / roles, 0}, {1024 / roles, 2}}});
    }
    testing::HandParameter parameter{name, {tensor}, {}};
    for (int rank = 0; rank < ranks; ++rank) parameter.role_of_rank.push_back(rank % roles);
    parameters.push_back(std::move(parameter));
  }
  return testing::hand_layout(parameters);
}

struct Costs {
  std::int64_t compile = 0;
  std::int64_t arrange = 0;
  std::int64_t totals = 0;
};

Costs costs_of(Growth growth, bool is_opaque, int names, int ranks) {
  const int roles = growth == Growth::roles ? ranks : 4;
  Layout source = side(names, ranks, roles);
  Layout target = side(names, ranks, growth == Growth::roles ? 8 : 4);
  target.reasons = {"asked"};
  for (Instance& instance : target.instances) instance.opaque_reason = is_opaque ? 0 : -1;
  Costs costs;
  std::int64_t before = testing::allocation_count;
  Plan plan = compile(std::move(source), std::move(target));
  costs.compile = testing::allocation_count - before;
  before = testing::allocation_count;
  const Schedule schedule = arrange(std::move(plan));
  costs.arrange = testing::allocation_count - before;
  before = testing::allocation_count;
  const Totals sums = totals(schedule);
  costs.totals = testing::allocation_count - before;
  EXPECT_EQ(sums.bytes_unique, std::int64_t{names} * 4096);
  return costs;
}

TEST(Allocations, grow_with_names_plus_ranks) {
  constexpr int kNames = 64, kRanks = 64;
  for (const Growth growth : {Growth::roles, Growth::players}) {
    for (const bool is_opaque : {false, true}) {
      const auto cost = [&](int names, int ranks) {
        return costs_of(growth, is_opaque, names, ranks);
      };
      // What is left of f(2n, 2m) - f(2n, m) - f(n, 2m) + f(n, m) is the product alone: one
      // allocation per name and rank would leave n * m.
      const Costs both = cost(2 * kNames, 2 * kRanks), names = cost(2 * kNames, kRanks);
      const Costs ranks = cost(kNames, 2 * kRanks), neither = cost(kNames, kRanks);
      constexpr std::int64_t kAllowed = kNames * kRanks / 100;
      EXPECT_LE(both.compile - names.compile - ranks.compile + neither.compile, kAllowed);
      EXPECT_LE(both.arrange - names.arrange - ranks.arrange + neither.arrange, kAllowed);
      EXPECT_LE(both.totals - names.totals - ranks.totals + neither.totals, kAllowed);
      EXPECT_GT(neither.compile, 0);
    }
  }
}

}  // namespace
}  // namespace crossmesh
