// SPDX-License-Identifier: Apache-2.0
// For tests: a job whose every rank is a thread, two trainers that hold rows and four engines that
// hold columns, and memory whose every element tells its place and version.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/session/session.h"
#include "crossmesh/transport/inproc.h"

namespace crossmesh::session_testing {

inline constexpr std::int64_t kRows = 6;
inline constexpr std::int64_t kColumns = 8;

inline TensorInfo tensor_named(const std::string& name) {
  return {name, DType::u16, {kRows, kColumns}};
}

inline std::vector<std::string> tensor_names() {
  return {"layers.0.w", "layers.1.w", "layers.1.odd"};
}

// One parameter per tensor; `pieces[role]` is the box of each rank, contiguous in its parameter.
inline Layout layout_of_boxes(const std::vector<Box>& boxes, const std::vector<int>& replicas) {
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

inline Layout trainer_layout() {
  return layout_of_boxes({{{0, 0}, {4, kColumns}}, {{4, 0}, {2, kColumns}}}, {0, 0});
}

// Two replicas, each of two ranks that hold half of the columns.
inline Layout engine_layout() {
  return layout_of_boxes({{{0, 0}, {kRows, 4}}, {{0, 4}, {kRows, 4}}}, {0, 0, 1, 1});
}

inline std::uint16_t value_at(int tensor, std::int64_t row, std::int64_t column,
                              std::int64_t version) {
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
  std::function<void(int)> on_wait = {};

  int rank_count() const { return source.rank_count + target.rank_count; }
  bool is_source(int rank) const { return rank < source.rank_count; }
  int side_rank(int rank) const { return is_source(rank) ? rank : rank - source.rank_count; }

  using MakeSession = std::function<std::unique_ptr<Session>(bool is_return)>;

  // Runs `program(rank, make_session)` on every rank; returns each rank's error text, or nothing.
  std::vector<std::string> run_processes(
      const std::function<void(int, const MakeSession&)>& program, int ranks_started = -1) {
    InprocHub hub;
    const std::string name = "5e55101d5e55101d5e55101d" + std::to_string(10'000'000 + ++runs_);
    const int started = ranks_started < 0 ? rank_count() : ranks_started;
    std::vector<std::string> errors(static_cast<std::size_t>(started));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < started; ++rank) {
      threads.emplace_back([&, rank] {
        const MakeSession make = [&](bool is_return) {
          SessionOptions session;
          session.session = name;
          session.source_count = source.rank_count;
          session.target_count = target.rank_count;
          session.rank = rank;
          session.timeout = timeout;
          session.is_return = is_return;
          if (on_wait) session.on_wait = [this, rank] { on_wait(rank); };
          return std::make_unique<Session>(session, make_inproc({&hub, name, rank}));
        };
        try {
          program(rank, make);
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error.text();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  // The same with one session per rank.
  std::vector<std::string> run(const std::function<void(int, Session&)>& program,
                               int ranks_started = -1) {
    return run_processes(
        [&](int rank, const MakeSession& make) {
          const std::unique_ptr<Session> session = make(false);
          program(rank, *session);
        },
        ranks_started);
  }

  static inline int runs_ = static_cast<int>(::getpid()) * 100;
};

}  // namespace crossmesh::session_testing
