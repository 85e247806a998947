// SPDX-License-Identifier: Apache-2.0
// `crossmesh move` as one rank sees it: every rank runs the same program. Trainer ranks read their
// shards and write new weights before each update; engine ranks check every element after it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/fault.h"
#include "cli/request.h"
#include "crossmesh/base/error.h"
#include "crossmesh/session/session.h"
#include "crossmesh/target/family.h"
#include "crossmesh/transport/transport.h"
#include "crossmesh/transport/way.h"

namespace crossmesh::cli {

// What each update is measured beside: see move_floor.h.
enum class FloorKind : std::uint8_t { none, memcpy, runs };

struct MoveOptions {
  Request request;
  std::string transport = "shm";
  ShmWay way = ShmWay::automatic;  // of shm; attach and ring are tried on private memory
  bool colocate = false;           // trainer i and engine i are one process
  DigestMode digest = DigestMode::sampled;
  int iterations = 3;
  std::optional<Phase> pause;  // stop every rank there, in the last update
  FloorKind floor = FloorKind::memcpy;
  double timeout_seconds = 10;
  std::string dump;  // the folder for the engine ranks' parameters in the end; empty: none
  bool check_replicas = false;  // before each update
  FaultOptions faults;
  const Family* family = nullptr;  // another table than the model's own, for tests
};

struct RankOptions {
  MoveOptions move;
  std::string session;
  int rank = 0;                      // among all: trainers first
  std::function<void()> on_pause;    // called in the phase that --pause names
  std::function<void()> on_restart;  // called where this rank is to be killed and started again
};

// How many ranks the specs ask for. Throws: as parse_spec, shard and lay_out.
struct RankCounts {
  int trainers = 0;
  int engines = 0;
};

// What one rank has to say in the end.
struct RankOutcome {
  int rank = 0;
  std::string title;  // `engine 1 (rank 3)`
  std::string state;  // engines: `whole at 3`, `torn`; trainers: `done`, `aborted`
  std::optional<Error> error;
  nlohmann::ordered_json result;  // on rank 0, when all went well: what `move --json` prints
};

nlohmann::ordered_json to_json(const RankOutcome& outcome);
RankOutcome outcome_from_json(const nlohmann::ordered_json& json);

// Runs one rank from join to leave, over the transport that `open_transport` makes. Never throws:
// what went wrong is in the outcome. `on_iteration(done)` is called on rank 0.
RankOutcome run_rank(const RankOptions& options,
                     const std::function<std::unique_ptr<Transport>()>& open_transport,
                     const std::function<void(int)>& on_iteration = {});

// Everything that can be refused is refused here, before a process starts or a byte is written.
// Throws: whatever opening the model, laying out, compiling and arranging throw.
RankCounts check_move(const MoveOptions& options);

// Runs all ranks as threads of this process. Returns an outcome for each rank.
std::vector<RankOutcome> move_in_threads(const MoveOptions& options);

// A fresh 128-bit name, as 32 hexadecimal digits.
std::string new_session_name();

}  // namespace crossmesh::cli
