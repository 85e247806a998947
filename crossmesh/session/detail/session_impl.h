// SPDX-License-Identifier: Apache-2.0
// What a session holds, for the files that are its parts.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/session/detail/desk.h"
#include "crossmesh/session/detail/digest_talk.h"
#include "crossmesh/session/detail/readmission.h"
#include "crossmesh/session/giver.h"
#include "crossmesh/session/session.h"
#include "crossmesh/session/taker.h"

namespace crossmesh {

struct Session::Impl {
  Impl(SessionOptions session_options, std::unique_ptr<Transport> session_transport)
      : options(std::move(session_options)),
        transport(std::move(session_transport)),
        desk(options, *transport) {}

  bool is_source() const { return options.rank < options.source_count; }
  int side_rank() const { return is_source() ? options.rank : options.rank - options.source_count; }

  // Runs one call of the session; a failure ends the job for everyone, or in an update the attempt.
  template <typename Call>
  auto guarded(Call&& call, bool is_update = false) {
    if (broken) {
      throw Error(ErrorCode::aborted, "session: an earlier failure ended this job")
          .with("failure", *broken);
    }
    desk.enter_call(is_update);
    may_retry = false;
    const auto here = [&](Error error) {
      return std::move(error)
          .with("phase", name_of(desk.phase()))
          .with("at", desk.title(options.rank));
    };
    try {
      return call();
    } catch (const Error& error) {
      end_with(error);
      throw;
    } catch (const std::bad_alloc&) {
      const Error error = here(Error(ErrorCode::out_of_memory, "session: memory is exhausted"));
      end_with(error);
      throw error;
    } catch (const std::exception& other) {
      const Error error =
          here(Error(ErrorCode::internal, "session: a callback failed")).with("what", other.what());
      end_with(error);
      throw error;
    }
  }

  void end_with(const Error& error);
  void end_attempt(Attempt attempt);

  void enroll_memory(const Layout& layout, const ParameterMemory& memory);
  void enroll_staging();
  void load_opaque(int tensor);
  void prepare_moves(const std::map<int, SourcePlaces>& sources);
  void connect_peers();
  void come_back(const Message& standing);
  SourcePlaces own_places(int peer) const;
  std::chrono::milliseconds ready_limit() const { return options.ready_timeout; }

  std::function<bool()> giving(std::int64_t version);
  void gather_ready(std::int64_t version);
  bool readmit();
  std::int64_t await_start(std::int64_t version);
  void connect(int peer);
  UpdateReport coordinate(std::int64_t version);
  UpdateReport follow(std::int64_t version);
  UpdateReport take(std::int64_t version);
  void serve_version(std::int64_t version);
  void commit_replicas(std::map<int, std::vector<int>>& waiting);
  UpdateReport report(std::int64_t version) const;

  SessionOptions options;
  std::unique_ptr<Transport> transport;
  Desk desk;
  std::optional<std::string> broken;
  std::optional<Schedule> schedule;
  std::vector<std::string> addresses;

  std::vector<RegionPlace> places;
  RegionBytes region_bytes;
  SharedMemory staging;
  GiverStaging giver_staging;
  Mapping fallback;
  Region fallback_region = -1;
  FallbackLoader loader;
  std::optional<Giver> giver;
  std::optional<Taker> taker;
  std::optional<TrainerDigests> given_digests;
  std::optional<TakenDigests> taken_digests;
  std::optional<Readmission> readmission;  // the coordinator's

  bool came_back = false;
  bool may_retry = false;
  bool is_cancelled = true;  // nobody moves bytes of a failed attempt any more
  std::int64_t last_version = 0;
  std::int64_t epoch = 0;  // of the newest attempt
  EngineState state;
  Attempt whole_attempt = 0;  // which made the engine's state whole
};

}  // namespace crossmesh
