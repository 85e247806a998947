// SPDX-License-Identifier: Apache-2.0
// Whole jobs whose attempts fail, and whose engine ranks end and come back; every rank is a thread.
#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "crossmesh/session/session.h"
#include "crossmesh/session/testing.h"

namespace crossmesh {
namespace {

using namespace session_testing;

constexpr int kReturning = 3;  // engine 1, whose peer in the replica is rank 2
constexpr std::chrono::milliseconds kPatience{30'000};

// One process of a rank: what it holds, and its session.
struct Process {
  Process(Job& the_job, int the_rank, std::unique_ptr<Session> the_session,
          std::optional<Layout> other = {})
      : job(the_job),
        rank(the_rank),
        layout(other ? *other : (job.is_source(rank) ? job.source : job.target)),
        memory(layout, job.side_rank(rank)),
        session(std::move(the_session)) {
    session->join();
    session->agree(layout, job.options, memory.memory,
                   [this](const TensorInfo& tensor, std::span<const std::byte> bytes) {
                     load(tensor, bytes);
                   });
  }

  void load(const TensorInfo& tensor, std::span<const std::byte> bytes) {
    if (loader_fails) throw std::runtime_error("no such parameter");
    memory.visit([&](int t, std::int64_t r, std::int64_t c, std::byte* at) {
      if (layout.tensors[static_cast<std::size_t>(t)].name != tensor.name) return;
      std::memcpy(at, bytes.data() + (r * kColumns + c) * 2, 2);
    });
  }

  UpdateReport move(std::int64_t version) {
    if (job.is_source(rank)) {
      memory.write(version);
      return session->update(version);
    }
    const UpdateReport report = session->receive();
    EXPECT_EQ(to_string(session->state()), "whole at " + std::to_string(version));
    EXPECT_EQ(memory.wrong_elements(version), 0) << rank;
    return report;
  }

  // The error of a move that fails.
  std::string fail(std::int64_t version) {
    try {
      if (job.is_source(rank)) {
        memory.write(version);
        session->update(version);
      } else {
        session->receive();
        session->exchange("served", rank);  // its replica may be whole by now
      }
    } catch (const Error& error) {
      return error.text();
    }
    return "no error";
  }

  Job& job;
  int rank;
  Layout layout;
  RankMemory memory;
  bool loader_fails = false;
  std::unique_ptr<Session> session;
};

Job patient_job() {
  Job job;
  job.timeout = kPatience;
  return job;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

TEST(Return, an_engine_that_ends_between_updates_comes_back_for_the_next) {
  for (const Route route : {Route::direct, Route::packed}) {
    Job job = patient_job();
    job.options.route = route;
    expect_no_errors(job.run_processes([&](int rank, const Job::MakeSession& make) {
      std::optional<Process> process(std::in_place, job, rank, make(false));
      for (int version = 1; version <= 4; ++version) {
        const UpdateReport report = process->move(version);
        EXPECT_EQ(report.version, version);
        EXPECT_EQ(report.attempt, static_cast<Attempt>(version));
        EXPECT_EQ(report.epoch, version < 3 ? 0 : 2);
        if (rank != kReturning || version != 2) continue;
        process.reset();
        process.emplace(job, rank, make(true));
        EXPECT_EQ(to_string(process->session->state()), "torn");
        EXPECT_EQ(process->session->version(), 2);
      }
      process->session->leave();
    }));
  }
}

TEST(Return, several_engines_may_come_back_at_once) {
  Job job = patient_job();
  expect_no_errors(job.run_processes([&](int rank, const Job::MakeSession& make) {
    std::optional<Process> process(std::in_place, job, rank, make(false));
    for (int version = 1; version <= 4; ++version) {
      process->move(version);
      if (job.is_source(rank) || version == 4) continue;
      process.reset();
      process.emplace(job, rank, make(true));
    }
    process->session->leave();
  }));
}

TEST(Return, an_engine_with_another_layout_is_sent_away_by_name) {
  Job job = patient_job();
  std::string refusal;
  expect_no_errors(job.run_processes([&](int rank, const Job::MakeSession& make) {
    std::optional<Process> process(std::in_place, job, rank, make(false));
    process->move(1);
    if (rank == kReturning) {
      process.reset();
      Layout other = job.target;
      std::swap(other.instances[1].parameter, other.instances[2].parameter);
      try {
        process.emplace(job, rank, make(true), other);
      } catch (const Error& error) {
        refusal = error.text();
      }
      process.emplace(job, rank, make(true));
    }
    process->move(2);
    process->session->leave();
  }));
  EXPECT_TRUE(
      refusal.starts_with("agree: ranks of one side have different layouts\n  tensor  layers.1.w\n"
                          "  engine 0 (rank 2)  "))
      << refusal;
  EXPECT_NE(refusal.find("\n  engine 1 (rank 3)  "), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("\n  hint  all ranks of a side must be started with the same model"),
            std::string::npos)
      << refusal;
}

TEST(Return, an_engine_that_does_not_come_back_is_named_and_may_come_later) {
  Job job;
  job.timeout = std::chrono::milliseconds(1500);
  std::latch failed(job.rank_count() - 1);
  std::vector<std::string> texts(static_cast<std::size_t>(job.rank_count()));
  expect_no_errors(job.run_processes([&](int rank, const Job::MakeSession& make) {
    std::optional<Process> process(std::in_place, job, rank, make(false));
    process->move(1);
    if (rank == kReturning) {
      process.reset();
      failed.wait();
      process.emplace(job, rank, make(true));
    } else {
      texts[static_cast<std::size_t>(rank)] = process->fail(2);
      EXPECT_TRUE(process->session->can_retry());
      if (!job.is_source(rank)) {
        EXPECT_EQ(to_string(process->session->state()), "whole at 1");
      }
      failed.count_down();
    }
    process->move(2);
    EXPECT_FALSE(process->session->can_retry());
    process->session->leave();
  }));
  for (int rank = 0; rank < job.rank_count(); ++rank) {
    if (rank == kReturning) continue;
    const std::string& text = texts[static_cast<std::size_t>(rank)];
    const std::size_t seconds = text.find("  seconds waited  ");
    const std::size_t hint = text.find("  hint  ");
    ASSERT_TRUE(seconds != std::string::npos && hint != std::string::npos) << text;
    EXPECT_EQ(text.substr(0, seconds) + text.substr(hint),
              "session: a rank's process ended, and none came back in its place\n"
              "  lost  engine 1 (rank 3)\n  phase  ready\n  seen by  trainer 0 (rank 0)\n"
              "  hint  see what that process printed last; the rank may be started again")
        << rank;
  }
}

// A job whose update of version 2 fails on one engine rank, since its loader throws. It then goes
// on, or ends and comes back.
void expect_second_attempt(Route route, bool comes_back) {
  Job job = patient_job();
  job.options.route = route;
  job.target.reasons = {"asked for"};
  job.target.instances[2].opaque_reason = 0;
  std::vector<std::string> texts(static_cast<std::size_t>(job.rank_count()));
  expect_no_errors(job.run_processes([&](int rank, const Job::MakeSession& make) {
    std::optional<Process> process(std::in_place, job, rank, make(false));
    process->move(1);
    process->loader_fails = rank == kReturning;
    texts[static_cast<std::size_t>(rank)] = process->fail(2);
    EXPECT_TRUE(process->session->can_retry());
    if (rank == kReturning) {
      EXPECT_EQ(to_string(process->session->state()), "torn");
    }
    process->loader_fails = false;
    if (rank == kReturning && comes_back) {
      process.reset();
      process.emplace(job, rank, make(true));
      EXPECT_EQ(process->session->version(), 1);
    }
    EXPECT_EQ(process->move(2).attempt, 3u);
    EXPECT_EQ(process->move(3).attempt, 4u);
    process->session->leave();
  }));
  for (const std::string& text : texts) {
    EXPECT_EQ(text,
              "session: a callback failed\n  phase  move\n  at  engine 1 (rank 3)\n"
              "  what  no such parameter");
  }
}

TEST(Return, an_attempt_that_failed_is_made_again) {
  for (const Route route : {Route::direct, Route::packed}) expect_second_attempt(route, false);
}

TEST(Return, an_engine_that_ends_with_its_attempt_comes_back_for_another) {
  for (const Route route : {Route::direct, Route::packed}) expect_second_attempt(route, true);
}

}  // namespace
}  // namespace crossmesh
