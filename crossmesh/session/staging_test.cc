// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/staging.h"

#include <gtest/gtest.h>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

Transfer transfer_of(const ElementLoops& loops, std::int64_t source_offset) {
  Transfer transfer;
  transfer.source_offset_bytes = source_offset;
  transfer.target_offset_bytes = 2 * source_offset;
  transfer.nest = coalesce(loops);
  return transfer;
}

// The target bytes that a nest writes, in order, from `offset`.
void append_targets(const LoopNest& nest, std::int64_t offset, std::vector<std::int64_t>& bytes,
                    int loop = 0) {
  if (loop < nest.counts.size()) {
    for (std::int64_t i = 0; i < nest.counts[loop]; ++i) {
      append_targets(nest, offset + i * nest.target_strides[loop], bytes, loop + 1);
    }
    return;
  }
  for (std::int64_t i = 0; i < nest.run_count * nest.target_element_bytes; ++i) {
    bytes.push_back(offset + i);
  }
}

std::vector<Transfer> sample_transfers() {
  return {transfer_of({{5}, {1}, {1}, 2, 2}, 0),               // a small run
          transfer_of({{40, 8}, {16, 1}, {8, 1}, 2, 2}, 100),  // rows
          transfer_of({{0, 8}, {8, 1}, {8, 1}, 2, 2}, 900),    // nothing
          transfer_of({{7, 3}, {1, 7}, {3, 1}, 4, 2}, 1000),   // transposed, converting
          transfer_of({{1000}, {1}, {1}, 1, 1}, 2000)};        // longer than a slot
}

TEST(Staging, chunks_hold_every_element_once_in_order_within_their_slots) {
  const std::vector<Transfer> transfers = sample_transfers();
  for (const std::int64_t slot_bytes : {64, 80, 128, 400, 1 << 20}) {
    std::vector<std::int64_t> expected, got;
    for (const Transfer& t : transfers) append_targets(t.nest, t.target_offset_bytes, expected);
    for (const Chunk& chunk : stage(transfers, slot_bytes)) {
      EXPECT_LE(chunk.bytes, slot_bytes);
      std::int64_t end = 0;
      for (const StagedSlice& slice : chunk.slices) {
        EXPECT_EQ(slice.packed_offset_bytes % 16, 0);
        EXPECT_GE(slice.packed_offset_bytes, end);
        end =
            slice.packed_offset_bytes + element_count(slice.nest) * slice.nest.source_element_bytes;
        append_targets(slice.nest,
                       transfers[static_cast<std::size_t>(slice.transfer)].target_offset_bytes +
                           slice.target_offset_bytes,
                       got);
      }
      EXPECT_EQ(chunk.bytes, end);
    }
    EXPECT_EQ(got, expected) << slot_bytes;
  }
}

TEST(Staging, the_target_posts_what_the_source_packs_batch_by_batch) {
  Moves moves;
  moves.transfers_of_peer[3] = sample_transfers();
  for (int i = 0; i < 5; ++i) moves.parts_of_peer[3].push_back({i, 0, 1000 * i});
  moves.batches = {{0, -1, {{3, 0, 2}}}, {1, -1, {{3, 2, 3}}}, {1, 5, {{3, 3, 5}}}};
  SourcePlaces source;
  source.staging_region = 9;
  source.staging_offset_bytes = 4096;
  source.slot_bytes = 64;
  source.slot_count = 2;
  const Moves staged = staged_moves(moves, {{3, source}});
  std::int64_t count = 0;
  std::size_t chunk_index = 0;
  for (const Chunk& chunk : stage(moves.transfers_of_peer[3], 64)) {
    for (const StagedSlice& slice : chunk.slices) {
      const Transfer& transfer = staged.transfers_of_peer.at(3)[static_cast<std::size_t>(count++)];
      EXPECT_EQ(transfer.source_region, 9);
      EXPECT_EQ(transfer.source_offset_bytes,
                4096 + static_cast<std::int64_t>(chunk_index % 2) * 64 + slice.packed_offset_bytes);
      const TensorPart& part = staged.parts_of_peer.at(3)[static_cast<std::size_t>(count - 1)];
      EXPECT_EQ(part, (TensorPart{static_cast<int>(slice.transfer), 0,
                                  1000 * slice.transfer + slice.target_offset_bytes}));
    }
    ++chunk_index;
  }
  EXPECT_EQ(static_cast<std::size_t>(count), staged.transfers_of_peer.at(3).size());
  ASSERT_EQ(staged.batches.size(), 3u);
  EXPECT_EQ(staged.batches[0].ranges[0].first, 0);
  EXPECT_EQ(staged.batches[0].ranges[0].last, staged.batches[1].ranges[0].first);
  EXPECT_EQ(staged.batches[1].ranges[0].first, staged.batches[1].ranges[0].last);
  EXPECT_EQ(staged.batches[2].ranges[0].last, count);
  EXPECT_EQ(staged.batches[2].opaque_tensor, 5);
}

TEST(Staging, a_bound_too_small_is_refused_with_the_number_that_would_do) {
  EXPECT_EQ(share_staging(65536, 2, 0).slot_bytes, 16384);
  EXPECT_EQ(share_staging(65536, 2, 0).slot_count, 2);
  EXPECT_EQ(share_staging(64, 1, 0).slot_count, 1);
  EXPECT_EQ(share_staging(std::int64_t{1} << 40, 1, 0).slot_bytes, 1 << 20);
  try {
    share_staging(63, 1, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "stage: the staging bound is too small for this many peers\n  rank  4\n  peers  1\n"
              "  staging_bytes_max  63\n  hint  --staging-bytes-max 64 would do");
  }
}

}  // namespace
}  // namespace crossmesh
