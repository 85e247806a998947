// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/ring.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "crossmesh/memory/copy.h"

namespace crossmesh::detail {
namespace {

// Chunks start on lines, so that the two ends share none.
constexpr std::int64_t kLineBytes = 64;

}  // namespace

RingPlace place_in_ring(std::int64_t ring_bytes, const RingStep& step) {
  std::int64_t begin = step.position;
  const std::int64_t left = ring_bytes - begin % ring_bytes;
  if (left < step.chunk_bytes) begin += left;
  const std::int64_t lines = (step.chunk_bytes + kLineBytes - 1) / kLineBytes;
  return {begin % ring_bytes, begin + lines * kLineBytes};
}

void start_over(RingWriter& writer, Attempt attempt) {
  writer = RingWriter{.memory = std::move(writer.memory),
                      .attempt = attempt,
                      .slices = std::nullopt,
                      .end_positions = {}};
}

void release(RingWriter& writer, std::int64_t freed) {
  freed = std::min(freed, writer.packed);
  for (; writer.freed < freed; ++writer.freed) {
    writer.freed_position = writer.end_positions.front();
    writer.end_positions.pop_front();
  }
}

bool pack_chunk(RingWriter& writer, const std::byte* source, const Slice& slice) {
  const std::int64_t ring_bytes = writer.memory.mapping.bytes();
  const RingPlace place = place_in_ring(ring_bytes, {writer.position, packed_bytes(slice.nest)});
  if (place.end_position - writer.freed_position > ring_bytes) return false;
  // The target reads it soon, from a cache if the two share one.
  copy(source + slice.source_offset_bytes, writer.memory.mapping.data() + place.offset_bytes,
       source_to_packed(slice.nest), StoreHint::cached);
  writer.position = place.end_position;
  writer.end_positions.push_back(place.end_position);
  ++writer.packed;
  return true;
}

void start_over(RingReader& reader, Attempt attempt) {
  reader = RingReader{.memory = std::move(reader.memory), .attempt = attempt, .slices = {}};
}

void open_chunk(RingReader& reader, const Slice& slice, std::int64_t part_bytes) {
  reader.place = place_in_ring(reader.memory.bytes(), {reader.position, packed_bytes(slice.nest)});
  reader.position = reader.place.end_position;
  reader.target_offset_bytes = slice.target_offset_bytes;
  reader.slices.emplace(packed_to_target(slice.nest), part_bytes);
  reader.next_slice = 0;
}

std::optional<RingReader> open_ring(int fd, std::int64_t bytes) {
  struct stat status {};
  const bool is_fit = bytes >= kRingBytesMin && bytes % kLineBytes == 0 && fd >= 0 &&
                      ::fstat(fd, &status) == 0 && status.st_size >= bytes && is_size_sealed(fd);
  if (!is_fit) return std::nullopt;
  RingReader reader;
  reader.memory = map_shared(fd, bytes, MapAccess::read_only);
  return reader;
}

}  // namespace crossmesh::detail
