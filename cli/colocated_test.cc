// SPDX-License-Identifier: Apache-2.0
#include "cli/colocated.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace crossmesh::cli {
namespace {

using Ranks = std::vector<std::vector<int>>;

TEST(Colocated, each_rank_has_a_process_or_shares_that_of_its_partner) {
  struct Row {
    const char* name;
    RankCounts counts;
    bool colocate;
    Ranks expected;
  };
  const Row rows[] = {
      {"apart", {2, 2}, false, {{0}, {1}, {2}, {3}}},
      {"as many", {2, 2}, true, {{0, 2}, {1, 3}}},
      {"more trainers", {3, 1}, true, {{0, 3}, {1}, {2}}},
      {"more engines", {1, 3}, true, {{0, 1}, {2}, {3}}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(ranks_of_processes(row.counts, row.colocate), row.expected) << row.name;
  }
}

TEST(PauseGate, opens_once_for_ranks_that_have_come_or_ended) {
  for (const bool has_ended : {false, true}) {
    std::atomic<int> pauses = 0;
    std::atomic<int> passed = 0;
    PauseGate gate(3, [&] {
      EXPECT_EQ(passed, 0);
      ++pauses;
    });
    const auto enter = [&] {
      gate.enter();
      ++passed;
      // Nothing is left to wait for.
      gate.leave();
    };
    std::thread first(enter);
    std::thread second(enter);
    if (has_ended) gate.leave();
    if (!has_ended) enter();
    first.join();
    second.join();
    EXPECT_EQ(pauses, 1);
    EXPECT_EQ(passed, has_ended ? 2 : 3);
  }
}

}  // namespace
}  // namespace crossmesh::cli
