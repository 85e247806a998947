// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/gather.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

namespace crossmesh::detail {
namespace {

using Visit = std::function<void(std::int64_t, std::int64_t)>;

// Every pair of byte offsets that a nest of equal element sizes visits.
void visit_bytes(const LoopNest& nest, const Visit& visit, int loop = 0, std::int64_t source = 0,
                 std::int64_t target = 0) {
  if (loop == nest.counts.size()) {
    for (std::int64_t i = 0; i < nest.run_count * nest.source_element_bytes; ++i) {
      visit(source + i, target + i);
    }
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[loop]; ++i) {
    visit_bytes(nest, visit, loop + 1, source + i * nest.source_strides[loop],
                target + i * nest.target_strides[loop]);
  }
}

struct Named {
  const char* name;
  LoopNest nest;
  std::int64_t stretch_count;
  std::int64_t buffer_bytes;
};

TEST(Gather, dense_runs_become_one_stretch_and_sparse_ones_stay_apart) {
  const Named rows[] = {
      {"a run", {{}, {}, {}, 100, 2, 2}, 1, 200},
      {"every other 48 bytes", {{10}, {96}, {48}, 48, 1, 1}, 1, 9 * 96 + 48},
      {"one byte of four", {{10}, {4}, {1}, 1, 1, 1}, 1, 37},
      {"one byte of nine", {{10}, {9}, {1}, 1, 1, 1}, 10, 10},
      {"backwards", {{3}, {-2}, {2}, 2, 1, 1}, 1, 6},
      {"the same run again", {{5}, {0}, {8}, 8, 1, 1}, 1, 8},
      {"a transpose", {{3, 4}, {2, 6}, {8, 2}, 1, 2, 2}, 1, 24},
      {"sparse rows of dense runs", {{4, 8}, {1000, 4}, {16, 2}, 2, 1, 1}, 4, 4 * 30},
      {"nothing", {{0}, {1}, {1}, 5, 1, 1}, 0, 0},
  };
  for (const Named& row : rows) {
    const Gather gather = gather_of(row.nest);
    EXPECT_EQ(run_total(gather.stretches), row.stretch_count) << row.name;
    EXPECT_EQ(gather.buffer_bytes, row.buffer_bytes) << row.name;
  }
}

TEST(Gather, both_steps_together_move_what_the_nest_moves) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    LoopNest nest;
    const auto size = static_cast<std::int32_t>(1 << below(3));
    nest.source_element_bytes = nest.target_element_bytes = size;
    nest.run_count = 1 + below(4);
    const auto loops = static_cast<int>(below(4));
    std::int64_t span = nest.run_count * size;
    for (int d = 0; d < loops; ++d) {
      nest.counts.push_back(1 + below(4));
      nest.source_strides.push_back(below(120) - 40);
      nest.target_strides.push_back(0);
    }
    for (int d = loops - 1; d >= 0; --d) {
      nest.target_strides[d] = span + below(3);
      span = nest.target_strides[d] * nest.counts[d];
    }
    const Gather gather = gather_of(nest);
    ASSERT_LE(gather.buffer_bytes, kGatherFactor * element_count(nest) * size);
    // Where each byte of the buffer comes from, and then each byte of the target.
    constexpr std::int64_t kNowhere = -1'000'000;
    std::vector<std::int64_t> buffer(static_cast<std::size_t>(gather.buffer_bytes), kNowhere);
    visit_bytes(gather.stretches, [&](std::int64_t source, std::int64_t at) {
      buffer.at(static_cast<std::size_t>(at)) = source + gather.source_offset_bytes;
    });
    std::vector<std::int64_t> target(static_cast<std::size_t>(span), kNowhere);
    visit_bytes(gather.scatter, [&](std::int64_t at, std::int64_t t) {
      target.at(static_cast<std::size_t>(t)) =
          buffer.at(static_cast<std::size_t>(at + gather.scatter_offset_bytes));
    });
    std::vector<std::int64_t> expected(static_cast<std::size_t>(span), kNowhere);
    visit_bytes(nest, [&](std::int64_t source, std::int64_t t) {
      expected.at(static_cast<std::size_t>(t)) = source;
    });
    ASSERT_EQ(target, expected) << round;
  }
}

}  // namespace
}  // namespace crossmesh::detail
