// SPDX-License-Identifier: Apache-2.0
// Bounded shared memory through which a source hands a target what the target cannot reach. Both
// ends cut the transfers alike and compute alone where each chunk lies; only counts of chunks are
// shared. It knows one peer's ring, and neither sockets nor tensors.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "crossmesh/memory/arena.h"
#include "crossmesh/memory/slice.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// Four chunks of a page each.
inline constexpr std::int64_t kRingBytesMin = std::int64_t{16} << 10;

// The most bytes that are packed as one: several chunks fit, and a chunk stays in a cache.
constexpr std::int64_t chunk_bytes_max(std::int64_t ring_bytes) {
  constexpr std::int64_t kCached = std::int64_t{256} << 10;
  return ring_bytes / 4 < kCached ? ring_bytes / 4 : kCached;
}

// Where a chunk lies. Positions count bytes of the attempt; offsets are in the ring.
struct RingPlace {
  std::int64_t offset_bytes = 0;
  std::int64_t end_position = 0;

  bool operator==(const RingPlace&) const = default;
};

// The place of a chunk after those that end at `position`. A chunk is never wrapped around.
// Requires: 0 < chunk_bytes <= chunk_bytes_max(ring_bytes).
struct RingStep {
  std::int64_t position = 0;
  std::int64_t chunk_bytes = 0;
};
RingPlace place_in_ring(std::int64_t ring_bytes, const RingStep& step);

// The source's end.
struct RingWriter {
  SharedMemory memory;
  Attempt attempt = 0;
  std::int64_t slot = 0;  // that is being packed, or the next one
  std::optional<Slices> slices;
  std::int64_t next_slice = 0;
  std::int64_t packed = 0;  // chunks of the attempt
  std::int64_t freed = 0;   // of them, those that the target unpacked
  std::int64_t position = 0;
  std::int64_t freed_position = 0;
  std::deque<std::int64_t> end_positions;  // of the chunks from `freed` to `packed`
};

void start_over(RingWriter& writer, Attempt attempt);

// Takes over how many chunks the target unpacked.
void release(RingWriter& writer, std::int64_t freed);

// Packs one chunk; returns false when there is no room for it.
// Requires: equal source bytes at `source` for the whole slice.
bool pack_chunk(RingWriter& writer, const std::byte* source, const Slice& slice);

// The target's end.
struct RingReader {
  Mapping memory;
  Attempt attempt = 0;
  std::int64_t taken = 0;  // chunks of the attempt
  std::int64_t position = 0;
  // The chunk that is being unpacked, as a nest from the ring, and how far.
  std::optional<Slices> slices;
  std::int64_t next_slice = 0;
  RingPlace place = {};
  std::int64_t target_offset_bytes = 0;
};

void start_over(RingReader& reader, Attempt attempt);

// Starts on the chunk that holds `slice`, to be unpacked in parts of at most `part_bytes`.
void open_chunk(RingReader& reader, const Slice& slice, std::int64_t part_bytes);

// A peer's ring; nothing when the file is smaller, or could become so.
std::optional<RingReader> open_ring(int fd, std::int64_t bytes);

}  // namespace crossmesh::detail
