// SPDX-License-Identifier: Apache-2.0
// Whole jobs, every rank a thread: two trainers that hold rows, engines that hold columns.
#include "crossmesh/session/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "crossmesh/layout/interner.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/inproc.h"

namespace crossmesh {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kColumns = 8;
constexpr int kTrainers = 2;

TensorInfo tensor_named(const std::string& name) { return {name, DType::u16, {kRows, kColumns}}; }

std::vector<std::string> tensor_names() { return {"layers.0.w", "layers.1.w", "layers.1.odd"}; }

// One parameter per tensor; `pieces[role]` is the box of each rank, contiguous in its parameter.
Layout layout_of_boxes(const std::vector<Box>& boxes, const std::vector<int>& replicas) {
  Layout layout;
  layout.rank_count = static_cast<int>(replicas.size());
  layout.replica_of_rank = replicas;
  Interner interner(layout);
  LayoutClass geometry{Space::plain(std::vector<std::int64_t>{kRows, kColumns}), DType::u16, {}};
  ParameterClass shape{DType::u16, {}, {}, {}};
  for (const Box& box : boxes) {
    geometry.pieces_of_role.push_back({{box, {0, contiguous_strides(box.shape)}}});
    shape.shape_of_role.push_back(box.shape);
    shape.strides_of_role.push_back(contiguous_strides(box.shape));
  }
  Binding binding;
  for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
    binding.role_of_rank.push_back(static_cast<int>(rank % boxes.size()));
  }
  const int c = interner.layout_class(geometry);
  const int p = interner.parameter_class(shape);
  const int b = interner.binding(binding);
  for (const std::string& name : tensor_names()) {
    const int index = static_cast<int>(layout.tensors.size());
    layout.tensors.push_back(tensor_named(name));
    layout.parameters.push_back({name, p, b, index});
    layout.instances.push_back({index, index, c, b, 0, -1});
  }
  return layout;
}

Layout trainer_layout() {
  return layout_of_boxes({{{0, 0}, {4, kColumns}}, {{4, 0}, {2, kColumns}}}, {0, 0});
}

// Two replicas, each of two ranks that hold half of the columns.
Layout engine_layout() {
  return layout_of_boxes({{{0, 0}, {kRows, 4}}, {{0, 4}, {kRows, 4}}}, {0, 0, 1, 1});
}

std::uint16_t value_at(int tensor, std::int64_t row, std::int64_t column, std::int64_t version) {
  return static_cast<std::uint16_t>(version * 1000 + tensor * 100 + row * kColumns + column);
}

// The memory of one rank: its parameters side by side.
struct RankMemory {
  RankMemory(const Layout& layout, int rank) : layout_(layout), rank_(rank) {
    std::int64_t bytes = 0;
    for (int p = 0; p < static_cast<int>(layout.parameters.size()); ++p) {
      memory.places.push_back({0, bytes});
      const Shape& shape = local_shape(layout, rank, p);
      bytes += shape[0] * shape[1] * 2;
    }
    shared = reserve_shared("crossmesh-test", bytes);
    memory.buffers = {{shared.mapping.data(), bytes, shared.fd.get(), 0}};
  }

  // Calls visit(tensor, row, column, place of the element).
  void visit(const std::function<void(int, std::int64_t, std::int64_t, std::byte*)>& call) {
    for (int p = 0; p < static_cast<int>(layout_.parameters.size()); ++p) {
      std::byte* at =
          shared.mapping.data() + memory.places[static_cast<std::size_t>(p)].offset_bytes;
      const Box box = pieces(layout_, rank_, p).front().piece.box;
      for (std::int64_t r = 0; r < box.shape[0]; ++r) {
        for (std::int64_t c = 0; c < box.shape[1]; ++c, at += 2) {
          call(p, box.origin[0] + r, box.origin[1] + c, at);
        }
      }
    }
  }

  void write(std::int64_t version) {
    visit([&](int t, std::int64_t r, std::int64_t c, std::byte* at) {
      const std::uint16_t value = value_at(t, r, c, version);
      std::memcpy(at, &value, sizeof value);
    });
  }

  int wrong_elements(std::int64_t version) {
    int wrong = 0;
    visit([&](int t, std::int64_t r, std::int64_t c, std::byte* at) {
      std::uint16_t value = 0;
      std::memcpy(&value, at, sizeof value);
      wrong += value != value_at(t, r, c, version);
    });
    return wrong;
  }

  const Layout& layout_;
  int rank_;
  SharedMemory shared;
  ParameterMemory memory;
};

struct Job {
  Layout source = trainer_layout();
  Layout target = engine_layout();
  ScheduleOptions options;
  std::chrono::milliseconds timeout{5000};

  int rank_count() const { return source.rank_count + target.rank_count; }
  bool is_source(int rank) const { return rank < source.rank_count; }
  int side_rank(int rank) const { return is_source(rank) ? rank : rank - source.rank_count; }

  // Runs `program(rank, session)` on every rank; returns each rank's error text, or nothing.
  std::vector<std::string> run(const std::function<void(int, Session&)>& program,
                               int ranks_started = -1) {
    InprocHub hub;
    const std::string name = "5e55101d5e55101d5e55101d" + std::to_string(10'000'000 + ++runs_);
    const int started = ranks_started < 0 ? rank_count() : ranks_started;
    std::vector<std::string> errors(static_cast<std::size_t>(started));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < started; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          SessionOptions session;
          session.session = name;
          session.source_count = source.rank_count;
          session.target_count = target.rank_count;
          session.rank = rank;
          session.timeout = timeout;
          Session own(session, make_inproc({&hub, name, rank}));
          program(rank, own);
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error.text();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  static inline int runs_ = static_cast<int>(::getpid()) * 100;
};

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
