// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/pull.h"

#include <algorithm>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using detail::Connection;
using detail::PeerState;
using detail::Roster;
using detail::Turn;

// Bytes that one peer gets before the next has its turn: enough for streaming copies to run at the
// speed of memory, and a few milliseconds at most for a cancel to wait.
constexpr std::int64_t kTurnBytes = std::int64_t{8} << 20;

Error peer_error(ErrorCode code, std::string_view what, const Roster& roster, int peer) {
  return Error(code, std::string(what)).with("peer", peer).with("rank", roster.rank);
}

std::string_view name_of(Direction direction) {
  return direction == Direction::give ? "give" : "take";
}

Connection& require_open(Roster& roster, int peer, std::string_view verb) {
  if (peer == roster.rank) return detail::own_connection(roster);
  const auto found = roster.connections.find(peer);
  if (found == roster.connections.end()) {
    throw peer_error(ErrorCode::invalid_argument,
                     fmt::format("{}: the peer is not connected", verb), roster, peer);
  }
  if (found->second.state != PeerState::open) {
    throw peer_error(ErrorCode::peer_lost, fmt::format("{}: the peer is gone", verb), roster, peer);
  }
  return found->second;
}

void check_attempt(const Roster& roster, const Batch& batch, const detail::Stream& stream,
                   Attempt cancelled_attempt) {
  const auto refuse = [&](std::string_view what, std::string_view key, Attempt other) {
    throw peer_error(ErrorCode::invalid_argument, what, roster, batch.peer)
        .with("direction", name_of(batch.direction))
        .with("attempt", batch.attempt)
        .with(key, other);
  };
  if (batch.attempt <= cancelled_attempt) {
    refuse(batch.attempt == 0 ? "post: attempts start at 1" : "post: the attempt was cancelled",
           "cancelled_attempt", cancelled_attempt);
  }
  if (batch.attempt < stream.attempt()) {
    refuse("post: a newer attempt was posted", "newer_attempt", stream.attempt());
  }
  if (batch.attempt > stream.attempt() && !stream.is_idle()) {
    refuse("post: an older attempt is neither done nor cancelled", "older_attempt",
           stream.attempt());
  }
}

// Throws peer_lost for one peer that went and was not reported.
// Returns whether one left that owed nothing.
bool report_gone(Roster& roster) {
  bool has_left = false;
  for (auto& [peer, connection] : roster.connections) {
    if (connection.state == PeerState::open || connection.is_reported) continue;
    connection.is_reported = true;
    if (connection.state == PeerState::left && !connection.had_unfinished) {
      has_left = true;
      continue;
    }
    throw peer_error(ErrorCode::peer_lost,
                     connection.state == PeerState::left
                         ? "advance: the peer left before its transfers were done"
                         : "advance: the peer closed its connection or died",
                     roster, peer);
  }
  return has_left;
}

bool has_unreported(const Roster& roster) {
  for (const auto& [peer, connection] : roster.connections) {
    if (connection.state != PeerState::open && !connection.is_reported) return true;
  }
  return false;
}

// Throws: limit_exceeded.
std::int64_t rounded_ring_bytes(std::int64_t bytes) {
  if (bytes < detail::kRingBytesMin) {
    throw Error(ErrorCode::limit_exceeded, "open: a ring is too small")
        .with("ring_bytes", bytes)
        .with("ring_bytes_min", detail::kRingBytesMin);
  }
  return bytes / detail::kRingBytesMin * detail::kRingBytesMin;
}

// The ways that were taken with the peer, joined by `+`.
std::string ways_of(const Connection& connection) {
  std::string ways;
  for (const ShmWay way : kShmWays) {
    if ((connection.traffic.ways >> static_cast<std::uint32_t>(way) & 1u) == 0) continue;
    if (!ways.empty()) ways += '+';
    ways += name_of(way);
  }
  return ways;
}

void offer(detail::Bench& bench, Connection& connection, const detail::BatchFacts& facts) {
  connection.traffic.ways |= facts.ways;
  connection.packs |= facts.packs;
  detail::publish(connection);
  // What fits is there at once, though this rank may be busy until it advances.
  detail::pack_turn(bench, connection, bench.ring_bytes);
}

}  // namespace

PullTransport::PullTransport(const PullOptions& options, std::unique_ptr<detail::Venue> venue)
    : enrolment_(venue->shares_addresses(), options.way),
      roster_(detail::open_roster(
          {options.session_name, options.rank, options.way, options.copies_within_process},
          std::move(venue))) {
  roster_.enrolment = &enrolment_;
  bench_.roster = &roster_;
  bench_.enrolment = &enrolment_;
  bench_.ring_bytes = rounded_ring_bytes(options.ring_bytes);
}

PullTransport::~PullTransport() {
  try {
    for (auto& [peer, connection] : roster_.connections) detail::quiesce(roster_, connection);
  } catch (const Error&) {
    // A destructor has no one to tell; peers see that the sockets close.
  }
}

std::string_view PullTransport::name() const { return roster_.venue->name(); }

Region PullTransport::enroll(const Buffer& buffer) {
  const Region region = enrolment_.add(buffer);
  detail::tell_all(roster_, enrolment_.take_news());
  return region;
}

void PullTransport::retire(Region region) {
  if (enrolment_.find(region) == nullptr) {
    throw Error(ErrorCode::invalid_argument, "retire: no such region")
        .with("region", region)
        .with("rank", roster_.rank);
  }
  for (auto& [peer, connection] : roster_.connections) {
    if (connection.state == PeerState::open) detail::refresh_give(connection);
    const bool is_given = connection.give.names(region, true);
    if (!is_given && !connection.take.names(region, false)) continue;
    throw peer_error(ErrorCode::invalid_argument, "retire: an unfinished transfer names the region",
                     roster_, peer)
        .with("region", region)
        .with("direction", name_of(is_given ? Direction::give : Direction::take));
  }
  enrolment_.remove(region);
  detail::tell_all(roster_, enrolment_.take_news());
}

std::string PullTransport::address() const { return roster_.venue->address(); }

void PullTransport::connect(int peer, const std::string& address, Deadline deadline) {
  detail::meet(roster_, peer, address, deadline);
}

void PullTransport::disconnect(int peer) {
  const auto found = roster_.connections.find(peer);
  if (found == roster_.connections.end()) {
    throw peer_error(ErrorCode::invalid_argument, "disconnect: the peer is not connected", roster_,
                     peer);
  }
  Connection& connection = found->second;
  detail::quiesce(roster_, connection);
  if (connection.state == PeerState::open) {
    detail::announce(connection, {{{.kind = detail::MessageKind::bye}}});
    detail::drop(roster_, connection, PeerState::left);
  }
  roster_.connections.erase(found);
}

Ticket PullTransport::post(const Batch& batch) {
  Connection& connection = require_open(roster_, batch.peer, "post");
  const bool gives = batch.direction == Direction::give;
  detail::Stream& stream = gives ? connection.give : connection.take;
  if (gives) detail::refresh_give(connection);
  check_attempt(roster_, batch, stream, cancelled_attempt_);
  const auto count = static_cast<std::int64_t>(batch.transfers.size());
  const std::int64_t slot = batch.attempt == stream.attempt() ? stream.posted() : 0;
  if (count > detail::kSlotsMax - slot) {
    throw detail::slot_error(ErrorCode::limit_exceeded, "post: an attempt has too many transfers",
                             roster_, batch, slot)
        .with("slots_max", detail::kSlotsMax);
  }
  const detail::BatchFacts facts = checker_.check(roster_, connection, batch, slot);
  const std::int64_t first_slot =
      stream.append(batch.attempt, batch.transfers, facts.bytes, batch.witness);
  if (gives) offer(bench_, connection, facts);
  return {batch.peer, batch.direction, batch.attempt, first_slot, count};
}

bool PullTransport::advance(std::int64_t slice_bytes) {
  detail::clear_nudge(roster_);
  detail::service(roster_, Deadline{});
  bool did_something = report_gone(roster_);
  for (auto& [peer, connection] : roster_.connections) {
    if (connection.give.is_idle()) continue;
    did_something |= detail::refresh_give(connection);
    const std::int64_t bytes = std::clamp<std::int64_t>(slice_bytes, 1, kTurnBytes);
    did_something |= detail::pack_turn(bench_, connection, bytes).did_something;
  }
  // Everyone in turn, from the peer after the one that was served last, until there is nothing to
  // pull from any or the budget is spent.
  std::size_t idle_count = 0;
  auto next = roster_.connections.upper_bound(last_served_peer_);
  for (std::int64_t left = std::max<std::int64_t>(1, slice_bytes);
       left > 0 && idle_count < roster_.connections.size(); ++next) {
    if (next == roster_.connections.end()) next = roster_.connections.begin();
    last_served_peer_ = next->first;
    const Turn turn = detail::pull_turn(bench_, next->second, std::min(left, kTurnBytes));
    idle_count = turn.did_something ? 0 : idle_count + 1;
    did_something |= turn.did_something;
    left -= turn.bytes;
  }
  return did_something || has_unreported(roster_);
}

Progress PullTransport::progress(const Ticket& ticket) const {
  const auto found = roster_.connections.find(ticket.peer);
  if (found == roster_.connections.end()) {
    throw peer_error(ErrorCode::invalid_argument, "progress: the peer is not connected", roster_,
                     ticket.peer);
  }
  const Connection& connection = found->second;
  return (ticket.direction == Direction::give ? connection.give : connection.take).progress(ticket);
}

std::vector<int> PullTransport::wake_fds() const { return {roster_.poller.get()}; }

void PullTransport::cancel(Attempt attempt, Deadline deadline) {
  cancelled_attempt_ = std::max(cancelled_attempt_, attempt);
  for (auto& [peer, connection] : roster_.connections) {
    if (connection.state != PeerState::open) continue;
    detail::stop_taking(connection, attempt);
    detail::withdraw(connection, attempt);
  }
  const detail::Listening listening(roster_);
  for (auto& [peer, connection] : roster_.connections) {
    while (detail::is_read(connection, attempt)) {
      if (detail::service(roster_, deadline)) continue;
      throw peer_error(ErrorCode::timed_out, "cancel: the peer is still reading", roster_, peer)
          .with("attempt", attempt);
    }
    if (connection.state != PeerState::open) continue;
    detail::refresh_give(connection);
    connection.give.stop(attempt);
  }
}

std::vector<int> PullTransport::peers() const {
  std::vector<int> peers;
  for (const auto& [peer, connection] : roster_.connections) {
    if (!connection.is_own && connection.state == PeerState::open) peers.push_back(peer);
  }
  return peers;
}

LinkFacts PullTransport::facts(int peer) const {
  LinkFacts facts;
  const auto found = roster_.connections.find(peer);
  if (found == roster_.connections.end() && peer == roster_.rank) {
    facts.way = "local";
    return facts;
  }
  if (found == roster_.connections.end()) {
    throw peer_error(ErrorCode::invalid_argument, "facts: the peer is not connected", roster_,
                     peer);
  }
  const Connection& connection = found->second;
  const detail::Traffic& traffic = connection.traffic;
  facts.way = std::string(roster_.venue->way());
  if (!roster_.venue->shares_addresses() && traffic.ways != 0) facts.way = ways_of(connection);
  if (connection.is_local()) facts.way = "local";
  facts.why_not_attach = connection.refusal.why;
  facts.bytes_pulled = traffic.pulled_bytes;
  if (traffic.pulled_seconds > 0) {
    facts.bytes_per_second = static_cast<double>(traffic.pulled_bytes) / traffic.pulled_seconds;
  }
  return facts;
}

}  // namespace crossmesh
