// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/staging.h"

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/memory/slice.h"

namespace crossmesh {
namespace {

// The bytes of a slot:
//   slot    = slice { padding slice }
//   slice   = the elements of one StagedSlice, side by side, in the source's dtype, row-major
//   padding = zero to fifteen bytes, of any value, to the next multiple of 16
// Slices of a pair lie in the order of its transfers. A slice that does not fit behind the others
// starts the next slot; a transfer larger than a slot is cut as crossmesh/memory/slice.h says.
constexpr std::int64_t kAlignBytes = 16;

constexpr std::int64_t kSlotBytesMin = 64;

// More than this in one slot gains nothing and costs cache.
constexpr std::int64_t kSlotBytesMax = std::int64_t{1} << 20;

}  // namespace

std::vector<Chunk> stage(const std::vector<Transfer>& transfers, std::int64_t slot_bytes) {
  std::vector<Chunk> chunks;
  std::int64_t index = 0;
  for (const Transfer& transfer : transfers) {
    for_each_slice(transfer.nest, slot_bytes, [&](const Slice& slice) {
      const std::int64_t bytes = packed_bytes(slice.nest);
      if (chunks.empty() || round_up(chunks.back().bytes, kAlignBytes) + bytes > slot_bytes) {
        chunks.emplace_back();
      }
      Chunk& chunk = chunks.back();
      const std::int64_t at = round_up(chunk.bytes, kAlignBytes);
      chunk.slices.push_back(
          {index, at, slice.source_offset_bytes, slice.target_offset_bytes, slice.nest});
      chunk.bytes = at + bytes;
    });
    ++index;
  }
  return chunks;
}

Moves staged_moves(const Moves& moves, const std::map<int, SourcePlaces>& sources) {
  Moves staged;
  staged.bytes = moves.bytes;
  staged.bytes_fallback = moves.bytes_fallback;
  staged.numberings = moves.numberings;
  std::map<int, std::vector<std::int64_t>>
      first_staged;  // by peer and transfer, one past the end too
  for (const auto& [peer, transfers] : moves.transfers_of_peer) {
    const SourcePlaces& source = sources.at(peer);
    const std::vector<Chunk> chunks = stage(transfers, source.slot_bytes);
    std::vector<Transfer>& out = staged.transfers_of_peer[peer];
    std::vector<TensorPart>& parts = staged.parts_of_peer[peer];
    std::vector<std::int64_t>& first = first_staged[peer];
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const std::int64_t slot = static_cast<std::int64_t>(c) % source.slot_count;
      for (const StagedSlice& slice : chunks[c].slices) {
        while (static_cast<std::int64_t>(first.size()) <= slice.transfer) {
          first.push_back(static_cast<std::int64_t>(out.size()));
        }
        Transfer transfer = transfers[static_cast<std::size_t>(slice.transfer)];
        transfer.source_region = source.staging_region;
        transfer.source_offset_bytes =
            source.staging_offset_bytes + slot * source.slot_bytes + slice.packed_offset_bytes;
        transfer.target_offset_bytes += slice.target_offset_bytes;
        transfer.nest = packed_to_target(slice.nest);
        out.push_back(transfer);
        TensorPart part = moves.parts_of_peer.at(peer)[static_cast<std::size_t>(slice.transfer)];
        part.place_bytes += slice.target_offset_bytes;
        parts.push_back(part);
      }
    }
    first.resize(transfers.size() + 1, static_cast<std::int64_t>(out.size()));
  }
  for (MoveBatch batch : moves.batches) {
    for (MoveRange& range : batch.ranges) {
      const std::vector<std::int64_t>& first = first_staged[range.peer];
      range.first = first[static_cast<std::size_t>(range.first)];
      range.last = first[static_cast<std::size_t>(range.last)];
    }
    staged.batches.push_back(std::move(batch));
  }
  return staged;
}

StagingShare share_staging(std::int64_t staging_bytes_max, int peer_count, int rank) {
  if (peer_count == 0) return {};
  for (const std::int64_t slots : {2, 1}) {
    const std::int64_t bytes = staging_bytes_max / (peer_count * slots) / kAlignBytes * kAlignBytes;
    if (bytes >= kSlotBytesMin) return {std::min(bytes, kSlotBytesMax), slots};
  }
  throw Error(ErrorCode::limit_exceeded,
              "stage: the staging bound is too small for this many peers")
      .with("rank", rank)
      .with("peers", peer_count)
      .with("staging_bytes_max", staging_bytes_max)
      .hint(fmt::format("--staging-bytes-max {} would do", peer_count * kSlotBytesMin));
}

}  // namespace crossmesh
