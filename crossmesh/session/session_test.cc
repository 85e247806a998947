// SPDX-License-Identifier: Apache-2.0
// Whole jobs, every rank a thread: two trainers that hold rows, engines that hold columns.
#include "crossmesh/session/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "crossmesh/session/testing.h"

namespace crossmesh {
namespace {

using namespace session_testing;

// The right job, `updates` times, each checked.
std::vector<std::string> run_and_check(Job& job, int updates, std::vector<int>& wrong_of_rank) {
  wrong_of_rank.assign(static_cast<std::size_t>(job.rank_count()), 0);
  return job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    FallbackLoader loader = [&](const TensorInfo& tensor, std::span<const std::byte> bytes) {
      memory.visit([&](int t, std::int64_t r, std::int64_t c, std::byte* at) {
        if (own.tensors[static_cast<std::size_t>(t)].name != tensor.name) return;
        std::memcpy(at, bytes.data() + (r * kColumns + c) * 2, 2);
      });
    };
    session.agree(own, job.options, memory.memory, loader);
    for (int version = 1; version <= updates; ++version) {
      if (job.is_source(rank)) {
        memory.write(version);
        session.update(version);
      } else {
        session.receive();
        EXPECT_EQ(to_string(session.state()), "whole at " + std::to_string(version));
        wrong_of_rank[static_cast<std::size_t>(rank)] += memory.wrong_elements(version);
      }
      session.exchange("checked", version);
    }
    session.leave();
  });
}

void expect_right(Job& job) {
  std::vector<int> wrong;
  const auto errors = run_and_check(job, 3, wrong);
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
  EXPECT_EQ(wrong, std::vector<int>(wrong.size()));
}

TEST(Session, every_engine_serves_each_version_whole) {
  Job job;
  expect_right(job);
}

TEST(Session, the_packed_route_gives_the_same_bytes_within_its_bound) {
  for (const std::int64_t bytes : {256, 300, 4096}) {
    Job job;
    job.options.route = Route::packed;
    job.options.staging_bytes_max = bytes;
    expect_right(job);
  }
}

TEST(Session, an_opaque_tensor_goes_through_the_loader_on_both_routes) {
  for (const Route route : {Route::direct, Route::packed}) {
    Job job;
    job.options.route = route;
    job.target.reasons = {"asked for"};
    job.target.instances[2].opaque_reason = 0;
    expect_right(job);
  }
}

TEST(Session, more_trainers_than_parts_and_one_engine) {
  Job job;
  job.source = layout_of_boxes({{{0, 0}, {kRows, kColumns}}}, {0, 0});
  job.target = layout_of_boxes({{{0, 0}, {kRows, kColumns}}}, {0});
  expect_right(job);
}

TEST(Session, a_layout_that_differs_is_named_on_every_rank) {
  Job job;
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    Layout own = job.is_source(rank) ? job.source : job.target;
    if (rank == 4) std::swap(own.instances[1].parameter, own.instances[2].parameter);
    RankMemory memory(own, job.side_rank(rank));
    session.agree(own, job.options, memory.memory);
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(
        error.starts_with("agree: ranks of one side have different layouts\n"
                          "  tensor  layers.1.w\n  engine 0 (rank 2)  "))
        << error;
    EXPECT_NE(error.find("\n  engine 2 (rank 4)  "), std::string::npos) << error;
  }
}

TEST(Session, an_option_that_differs_is_named) {
  Job job;
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    ScheduleOptions options;
    if (rank == 1) options.staging_bytes_max = 99;
    session.agree(own, options, memory.memory);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "agree: ranks were started with different options\n  option  staging_bytes_max\n"
              "  trainer 0 (rank 0)  67108864\n  trainer 1 (rank 1)  99");
  }
}

TEST(Session, trainers_at_different_versions_are_named) {
  Job job;
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    session.agree(own, job.options, memory.memory);
    if (!job.is_source(rank)) {
      session.receive();
    } else {
      session.update(rank == 1 ? 7 : 6);
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "update: trainers are at different versions\n  trainer 0 (rank 0)  6\n"
              "  trainer 1 (rank 1)  7");
  }
}

TEST(Session, a_version_that_does_not_grow_is_refused) {
  Job job;
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    session.agree(own, job.options, memory.memory);
    for (const int version : {5, 5}) {
      job.is_source(rank) ? session.update(version) : session.receive();
    }
  });
  EXPECT_EQ(errors[0], "update: versions must grow\n  rank  0\n  version  5\n  last version  5");
}

TEST(Session, ranks_that_do_not_come_are_named) {
  Job job;
  job.timeout = std::chrono::milliseconds(200);
  const auto errors = job.run([&](int, Session& session) { session.join(); }, 4);
  EXPECT_NE(errors[0].find("phase  join\n  at  trainer 0 (rank 0)\n  waiting for  join from "
                           "engine 2 (rank 4), engine 3 (rank 5)"),
            std::string::npos)
      << errors[0];
}

// Longer than a look around, so that the ranks that wait have time to tell each other of it.
TEST(Session, ranks_that_only_wait_do_not_keep_each_other_waiting) {
  Job job;
  job.timeout = std::chrono::milliseconds(900);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = job.run([&](int, Session& session) { session.join(); }, 5);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5 * job.timeout);
  const std::string lacks =
      "phase  join\n  at  trainer 0 (rank 0)\n  waiting for  join from engine 3 (rank 5)";
  for (const std::string& error : errors) {
    EXPECT_NE(error.find(lacks), std::string::npos) << error;
  }
}

TEST(Session, a_loader_that_throws_ends_the_update_everywhere_and_leaves_its_engine_torn) {
  Job job;
  job.target.reasons = {"asked for"};
  job.target.instances[2].opaque_reason = 0;
  std::vector<std::string> states(static_cast<std::size_t>(job.rank_count()));
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    session.agree(own, job.options, memory.memory,
                  [&](const TensorInfo&, std::span<const std::byte>) {
                    if (rank == 3) throw std::runtime_error("no such parameter");
                  });
    memory.write(1);
    try {
      job.is_source(rank) ? session.update(1) : session.receive();
      session.exchange("served", rank);  // the other replica may be whole by now
    } catch (const Error&) {
      states[static_cast<std::size_t>(rank)] = to_string(session.state());
      throw;
    }
  });
  EXPECT_EQ(states[3], "torn");
  EXPECT_EQ(errors[3],
            "session: a callback failed\n  phase  move\n  at  engine 1 (rank 3)\n"
            "  what  no such parameter");
  EXPECT_EQ(errors[0], errors[3]);
}

TEST(Session, what_is_thrown_while_a_rank_waits_ends_the_call_everywhere) {
  Job job;
  std::atomic<bool> stops{false};
  job.on_wait = [&](int rank) {
    if (rank == 3 && stops) throw Error(ErrorCode::aborted, "wait: the caller gave up");
  };
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    session.agree(own, job.options, memory.memory);
    if (job.is_source(rank)) session.update(1);
    if (rank == 3) stops = true;
    if (!job.is_source(rank)) session.receive();
  });
  EXPECT_EQ(errors, std::vector<std::string>(6, "wait: the caller gave up"));
}

TEST(Session, memory_that_does_not_hold_a_parameter_is_refused) {
  Job job;
  const auto errors = job.run([&](int rank, Session& session) {
    session.join();
    const Layout& own = job.is_source(rank) ? job.source : job.target;
    RankMemory memory(own, job.side_rank(rank));
    if (rank == 1) memory.memory.buffers[0].size_bytes -= 2;
    session.agree(own, job.options, memory.memory);
  });
  EXPECT_EQ(errors[1],
            "agree: a parameter does not fit its memory\n  parameter  layers.1.odd\n"
            "  rank of the side  1\n  shape  [2, 8]\n  bytes  32\n  buffer  0\n  offset  64\n"
            "  buffer bytes  94");
}

}  // namespace
}  // namespace crossmesh
