// SPDX-License-Identifier: Apache-2.0
// One rank's part in a job: it joins, agrees with all others on one schedule before the first byte,
// then moves versions, each whole or not at all per engine replica. Trainer rank 0 coordinates.
//
//   join → agree → { update | receive }* → leave
//
// A failed update ends its attempt and not the job, as long as all trainers live. A session belongs
// to one thread and starts none of its own (ZeroMQ has its I/O thread).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/session/digest_mode.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

enum class Phase : std::uint8_t { join, agree, ready, start, move, complete, commit, leave };
std::string_view name_of(Phase phase);
Phase phase_from_name(std::string_view name);  // Throws: invalid_argument listing the phases

struct SessionOptions {
  std::string session;   // 32 hexadecimal digits: the job's own name
  int source_count = 0;  // trainer ranks, 0 .. source_count - 1
  int target_count = 0;  // engine ranks, which follow: rank source_count + t is engine rank t
  int rank = 0;          // this one, among all
  std::chrono::milliseconds timeout{10'000};         // without any progress, in every wait
  std::chrono::milliseconds agree_timeout{60'000};   // while ranks reserve their memory, if longer
  std::chrono::milliseconds ready_timeout{600'000};  // for work outside: a training step, a check
  DigestMode digest = DigestMode::sampled;           // the same on every rank
  // Of an engine rank's process that was started again: join and agree wait for the others' next
  // update, as long as `ready_timeout`.
  bool is_return = false;
  std::function<void(Phase)> on_phase;  // called when this rank enters a phase
  // Called at least five times a second while this rank waits for others or moves bytes. What it
  // throws ends the call, as any failure of this rank does.
  std::function<void()> on_wait;
  // For tests: whether a control message of this kind, to this rank, is lost on its way.
  std::function<bool(std::string_view, int)> is_lost;
};

// Where a rank's parameters live: the buffers that hold them, and each parameter's place. Indexed
// by the layout's parameters; a parameter that this rank does not hold has buffer -1. The memory
// stays where it is until the session ends.
struct ParameterPlace {
  int buffer = -1;
  std::int64_t offset_bytes = 0;
};
struct ParameterMemory {
  std::vector<Buffer> buffers;
  std::vector<ParameterPlace> places;
};

// The engine's own loader, for tensors that take the fallback: it gets the whole tensor, row-major,
// in the checkpoint's dtype, and writes what belongs to this rank. The bytes are gone afterwards.
using FallbackLoader = std::function<void(const TensorInfo&, std::span<const std::byte>)>;

// What an engine rank serves.
struct EngineState {
  enum class Kind : std::uint8_t {
    whole,  // every parameter at `version`
    torn,   // bytes of a failed attempt, or of no version, are in; the next full update mends it
  };
  Kind kind = Kind::whole;
  std::int64_t version = 0;  // 0: what it held before the first update
};
// `whole at 3`, `torn`
std::string to_string(const EngineState& state);

// What one rank moved in one update.
struct UpdateReport {
  std::int64_t version = 0;
  Attempt attempt = 0;     // counts all tries of the session
  std::int64_t epoch = 0;  // counts who was lost and who came back
  double seconds = 0;      // on the coordinator: `start` sent to the last commit acknowledged
  std::int64_t bytes = 0;  // source bytes that left or reached this rank
  std::int64_t bytes_fallback = 0;
  std::int64_t staging_bytes_peak = 0;
  double digest_seconds = 0;      // of this rank, those of a call of `digest` before included
  std::int64_t digest_bytes = 0;  // of the targets' dtypes
};

class Session {
 public:
  // Throws: invalid_argument when ranks and counts do not fit.
  Session(SessionOptions options, std::unique_ptr<Transport> transport);
  ~Session();

  // Every rank calls it. Blocks until all ranks are there. An engine rank whose process ended
  // between updates, or in one that failed, and was started again, joins the running job.
  // Throws: timed_out naming the ranks that did not come; invalid_argument where another process is
  // this rank.
  void join();

  // Every rank calls it with its side's whole layout and its own memory. Layouts are exchanged
  // once, the plan is compiled and proven on every rank, and the fingerprints are compared. Throws,
  // on every rank: mismatch naming the tensor, the ranks and both values; whatever compile and
  // arrange throw. Nothing has moved then. A rank that comes back alone is compared with what the
  // others agreed on, and sent away alone where it differs; its state is torn until it has
  // received.
  void agree(const Layout& layout, const ScheduleOptions& options, const ParameterMemory& memory,
             FallbackLoader loader = {});

  // Requires: agree.
  const Schedule& schedule() const;

  // Every rank calls it, outside an update: compares what trainer ranks hold as replicas of each
  // other. Engines take from all of them, to share the work, and would serve a mixture if they
  // drifted apart. It reads all weights that more than one rank holds, and moves none.
  // Throws, on every rank: mismatch naming the tensor, two ranks and both digests.
  void check_replicas();

  // On trainer ranks, with the weights of `version` in place, which stay as they are until its
  // update ends: digests them beforehand. Without this call `update` does it, while engines pull.
  void digest(std::int64_t version);

  // On trainer ranks, with the weights of `version` in place. Blocks until the update ends. The
  // weights may be overwritten afterwards. Engine ranks that are lost meanwhile may come back; it
  // waits for each for at most the time limit.
  // Throws: invalid_argument when `version` is not above the last one, or below 1; aborted,
  // peer_lost or timed_out, naming the rank and the phase; mismatch naming the tensor, both ranks
  // and both digests when what arrived is not what was given: no replica that got it commits.
  // can_retry() tells then whether every rank may try again, with this version or a later one.
  UpdateReport update(std::int64_t version);

  // On engine ranks. Blocks until this rank serves the next version.
  // Throws: as update; state() then tells what the parameters hold.
  UpdateReport receive();

  EngineState state() const;

  // Whether the last call failed and ended no more than an attempt: the next update, or receive,
  // makes a new one. What is still on its way of the old one is dropped.
  bool can_retry() const;

  // The newest version that this rank knows to be everyone's; 0 before the first. A rank that came
  // back knows it after join.
  std::int64_t version() const;

  // A collective of the caller's own: everyone gives, everyone gets all, by rank.
  std::vector<nlohmann::json> exchange(std::string_view tag, const nlohmann::json& value);

  // Every rank calls it. After it, a closed connection is no loss.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crossmesh
