// SPDX-License-Identifier: Apache-2.0
// The counters that two connected ranks share. They are the truth about what was offered, pulled
// and cancelled; sockets only carry bells. Each field has one writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// What the source of one direction writes.
struct alignas(64) SourceSide {
  std::atomic<std::uint64_t> offered{0};     // tally of transfers posted
  std::atomic<std::uint64_t> withdrawn{0};   // the highest attempt that may not be read
  std::atomic<std::uint64_t> packed{0};      // tally of chunks that lie in the ring or did
  std::atomic<std::uint64_t> is_starved{0};  // 1 while there is more to pack than room
  std::atomic<std::uint64_t> awaited{0};     // tally of transfers that it wants to hear of
};

// What the target of one direction writes.
struct alignas(64) TargetSide {
  std::atomic<std::uint64_t> acknowledged{0};  // tally of transfers whose bytes are in place
  std::atomic<std::uint64_t> pulling{0};       // the attempt that is read right now, or 0
  std::atomic<std::uint64_t> unpacked{0};      // tally of chunks whose room is free again
};

struct Lane {
  SourceSide source;
  TargetSide target;
};

// 1 while a bell for that rank is on its way, so that bells never fill a socket.
struct alignas(64) Bell {
  std::atomic<std::uint64_t> rung{0};
};

// Index 0 is the smaller rank of the two: lane 0 is what it gives, bell 0 is rung for it.
struct ControlPage {
  std::array<Lane, 2> lanes;
  std::array<Bell, 2> bells;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Owners: in one process both ends of a connection; else the one end that mapped it.
using ControlPagePtr = std::shared_ptr<ControlPage>;

// An attempt and a count of its transfers, in one word, so that they change together.
struct Tally {
  Attempt attempt = 0;
  std::int64_t count = 0;
};

constexpr std::uint64_t pack(Tally tally) {
  return std::uint64_t{tally.attempt} << 32 | static_cast<std::uint64_t>(tally.count);
}

constexpr Tally unpack(std::uint64_t word) {
  return {static_cast<Attempt>(word >> 32), static_cast<std::int64_t>(word & 0xffffffffu)};
}

// The most transfers of one attempt with one peer.
inline constexpr std::int64_t kSlotsMax = 0xffffffff;

}  // namespace crossmesh::detail
