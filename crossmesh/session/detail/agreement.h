// SPDX-License-Identifier: Apache-2.0
// How ranks come to run one schedule: layouts meet on the coordinator, disagreement is named by
// tensor and rank, and the schedules' fingerprints are compared before the first byte.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/session/detail/desk.h"
#include "crossmesh/session/moves.h"

namespace crossmesh {

// Throws: mismatch when the joiner was started for another job: other counts, another transport.
void check_joiner(const Desk& desk, const SessionOptions& options, std::string_view transport,
                  const Message& message);

// Throws: invalid_argument naming the parameter whose place does not hold what the layout says.
void check_memory(const Layout& layout, int side_rank, const ParameterMemory& memory);

// Gives this rank's layout, gets the other side's. Each distinct layout travels once.
// Throws: mismatch naming the tensor, the ranks and both values where one side's ranks differ.
Layout exchange_layouts(Desk& desk, const Layout& own, const ScheduleOptions& options);

// What ranks learn about the sources' places.
struct PublishedPlaces {
  std::map<int, SourcePlaces> sources;           // on an engine rank: of each source
  std::map<int, nlohmann::json> relays_of_rank;  // on the coordinator: what each engine rank got
};

// Compares schedules and hands each engine the places of every source. `own_places(t)` tells what
// this source rank publishes for engine rank t.
// Throws: mismatch naming the ranks and both fingerprints.
PublishedPlaces exchange_places(Desk& desk, const Schedule& schedule,
                                const std::function<SourcePlaces(int)>& own_places);

// -- The coordinator's, of one rank --------------------------------------------------------------

// Throws: mismatch when the rank offers other options, or another schedule.
void check_offer(const Desk& desk, const ScheduleOptions& own, const Message& offer);
void check_schedule(const Desk& desk, const std::string& own_fingerprint, const Message& agreed);

// What two ranks of one side disagree about; `b` is what rank_b has said.
Error layout_disagreement(const Desk& desk, const Layout& a, int rank_a, const Message& b);

// What a rank of the other side compiles.
nlohmann::json layout_body(const Layout& layout);

// Every trainer must be about to send the same version.
void check_versions(const Desk& desk, const std::map<int, Message>& ready, std::int64_t version);

// Engine ranks, as ranks of the job, by replica.
std::map<int, std::vector<int>> ranks_of_replicas(const Schedule& schedule, int source_count);

// Bytes of the largest opaque tensor that this engine rank takes; 0 when there is none.
std::int64_t fallback_bytes(const Schedule& schedule, int target_rank);

std::string describe_update(const Desk& desk, const std::map<int, std::vector<int>>& waiting,
                            const std::string& acknowledgements);

}  // namespace crossmesh
