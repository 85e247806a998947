// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "crossmesh/session/testing.h"

namespace crossmesh {
namespace {

using namespace session_testing;

// Two replicas of two trainer ranks that hold rows: ranks 0 and 2 hold the same, and 1 and 3.
Job job_of_replicas() {
  Job job;
  job.source = layout_of_boxes({{{0, 0}, {4, kColumns}}, {{4, 0}, {2, kColumns}}}, {0, 0, 0, 0});
  return job;
}

// Adds `change` to one element of a tensor, on one trainer.
struct Drift {
  int trainer = 0;
  int tensor = 0;
  std::int64_t row = 0;
  std::uint16_t change = 0;
};

std::vector<std::string> check(const Job& job, const std::vector<Drift>& drifts) {
  Job running = job;
  return running.run([&](int rank, Session& session) {
    const Layout& layout = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(layout, job.side_rank(rank));
    memory.write(1);
    for (const Drift& drift : drifts) {
      if (drift.trainer != rank) continue;
      memory.visit([&](int t, std::int64_t r, std::int64_t c, std::byte* at) {
        if (t != drift.tensor || r != drift.row || c != 3) return;
        std::uint16_t value = 0;
        std::memcpy(&value, at, sizeof value);
        value = static_cast<std::uint16_t>(value + drift.change);
        std::memcpy(at, &value, sizeof value);
      });
    }
    session.join();
    session.agree(layout, {}, memory.memory);
    session.check_replicas();
    session.leave();
  });
}

TEST(Replicas, that_are_equal_pass) {
  EXPECT_EQ(check(job_of_replicas(), {}), std::vector<std::string>(8));
  EXPECT_EQ(check({}, {}), std::vector<std::string>(6));
}

TEST(Replicas, ranks_that_hold_other_parts_are_not_compared) {
  EXPECT_EQ(check({}, {{0, 0, 1, 5}, {1, 1, 4, 7}}), std::vector<std::string>(6));
}

TEST(Replicas, that_drifted_apart_are_an_error_on_every_rank) {
  const std::vector<std::string> errors = check(job_of_replicas(), {{3, 1, 5, 1}, {3, 2, 4, 9}});
  ASSERT_EQ(errors.size(), 8u);
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_TRUE(
        error.starts_with("replicas: two trainer ranks hold different weights\n"
                          "  tensor  layers.1.w\n  trainer 1  "))
        << error;
    EXPECT_NE(error.find("\n  trainer 3  "), std::string::npos);
    EXPECT_TRUE(
        error.ends_with("\n  tensors that differ  2\n  hint  engines would serve a mixture: "
                        "make the trainer's replicas equal before the update"))
        << error;
  }
}

TEST(Replicas, two_changes_do_not_cancel_each_other) {
  const std::uint16_t less = static_cast<std::uint16_t>(-4);
  const std::vector<std::string> errors = check(job_of_replicas(), {{2, 0, 0, 4}, {2, 0, 1, less}});
  EXPECT_NE(errors[0].find("trainer 2"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace crossmesh
