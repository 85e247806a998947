// SPDX-License-Identifier: Apache-2.0
// How the digests of both ends meet. A trainer's go, as one fingerprint for each engine rank, by
// way of the coordinator; the engine compares. Only where they differ does it send its digests of
// the pair back, and the trainer names the tensor.
//
//   trainer  → coordinator: digests { of: [[engine, fingerprint]] }    coordinator → engine, turned
//   engine   → coordinator: differs { trainer, tensors, sums, bytes }  coordinator → trainer
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/schedule/schedule.h"
#include "crossmesh/session/detail/desk.h"
#include "crossmesh/session/digests.h"

namespace crossmesh {

// A trainer rank's part; on rank 0 the coordinator's as well.
class TrainerDigests {
 public:
  // Requires: desk and schedule outlive it.
  TrainerDigests(Desk& desk, const Schedule& schedule, DigestMode mode, GivenDigests given)
      : desk_(desk), schedule_(schedule), mode_(mode), given_(std::move(given)) {}

  // Digests all of `version`, unless that was done.
  void compute(std::int64_t version);

  // What was computed may not be what the next attempt gives.
  void forget() { version_ = -1; }

  // Starts an update, from what was computed for this version if there is any.
  void begin(std::int64_t version);

  // Does the next thing: digests some bytes, sends, passes on, answers. Returns whether anything
  // was done. Throws: mismatch when an engine got something else.
  bool step();

  // Whether engines have, or get, what they need to compare.
  bool finished() const;

  // On the coordinator: whose digests are missing, or nothing.
  std::string waiting_for() const;

  const DigestCost& cost() const { return given_.cost(); }

 private:
  std::vector<int> missing() const;
  void sum_up();
  bool send();
  bool spread();
  void answer(int engine, const Message& message) const;

  Desk& desk_;
  const Schedule& schedule_;
  DigestMode mode_;
  GivenDigests given_;
  std::int64_t version_ = -1;
  // Of what each peer is given, once all is digested.
  std::map<int, std::string> fingerprint_of_peer_;
  bool is_sent_ = false;
  bool is_spread_ = false;
};

// An engine rank's part, once every byte is in place. Blocks until the trainers' digests are there,
// for `limit` without progress: longer than the coordinator, who knows which of them is missing.
// Throws: what the coordinator makes of it when they differ: mismatch.
void compare_digests(Desk& desk, const TakenDigests& taken, std::chrono::milliseconds limit);

}  // namespace crossmesh
