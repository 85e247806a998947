// SPDX-License-Identifier: Apache-2.0
// The transport in which the target pulls: it reads the source's regions, where they are, straight
// into its own, and says so in counters that both ends share. What it cannot reach the source
// packs into a ring. `inproc` and `shm` are this engine in two venues.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/transport/detail/batch_check.h"
#include "crossmesh/transport/detail/enrolment.h"
#include "crossmesh/transport/detail/pull_turn.h"
#include "crossmesh/transport/detail/roster.h"
#include "crossmesh/transport/detail/venue.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

struct PullOptions {
  std::string session_name;  // 32 lower-case hexadecimal digits
  int rank = 0;
  ShmWay way = ShmWay::automatic;                   // to memory of another process
  bool copies_within_process = true;                // whatever the way
  std::int64_t ring_bytes = std::int64_t{4} << 20;  // of the ring for one peer
};

class PullTransport final : public Transport {
 public:
  // Throws: invalid_argument when the session's name or the rank is none; io_failed.
  PullTransport(const PullOptions& options, std::unique_ptr<detail::Venue> venue);
  // No peer reads afterwards, unless one did not stop within two seconds.
  ~PullTransport() override;
  PullTransport(const PullTransport&) = delete;
  PullTransport& operator=(const PullTransport&) = delete;

  std::string_view name() const override;
  Region enroll(const Buffer& buffer) override;
  void retire(Region region) override;
  std::string address() const override;
  void connect(int peer, const std::string& address, Deadline deadline) override;
  void disconnect(int peer) override;

  Ticket post(const Batch& batch) override;
  bool advance(std::int64_t slice_bytes) override;
  Progress progress(const Ticket& ticket) const override;
  std::vector<int> wake_fds() const override;
  void cancel(Attempt attempt, Deadline deadline) override;

  std::vector<int> peers() const override;
  LinkFacts facts(int peer) const override;

 private:
  detail::Enrolment enrolment_;
  detail::Roster roster_;
  detail::Bench bench_;
  detail::BatchChecker checker_;
  Attempt cancelled_attempt_ = 0;  // the highest
  int last_served_peer_ = -1;
};

}  // namespace crossmesh
