// SPDX-License-Identifier: Apache-2.0
// Faults that others have met where tensors of several dtypes are packed into one buffer.
#include <gtest/gtest.h>

#include <vector>

#include "crossmesh/session/staging.h"

namespace crossmesh::reports {
namespace {

Transfer run_of(std::int32_t element_bytes, std::int64_t count) {
  Transfer transfer;
  transfer.nest = coalesce({{count}, {1}, {1}, element_bytes, element_bytes});
  return transfer;
}

std::vector<std::vector<std::int64_t>> offsets_of(const std::vector<Chunk>& chunks) {
  std::vector<std::vector<std::int64_t>> offsets;
  for (const Chunk& chunk : chunks) {
    auto& of_chunk = offsets.emplace_back();
    for (const StagedSlice& slice : chunk.slices) of_chunk.push_back(slice.packed_offset_bytes);
  }
  return offsets;
}

TEST(Packing, every_tensor_begins_where_its_dtype_may) {
  // 3 of BF16, 4 of F32, 3 of BF16, 3 of I64: side by side, I64 would begin at byte 28.
  const auto chunks = stage({run_of(2, 3), run_of(4, 4), run_of(2, 3), run_of(8, 3)}, 4096);
  EXPECT_EQ(offsets_of(chunks), (std::vector<std::vector<std::int64_t>>{{0, 16, 32, 48}}));
  EXPECT_EQ(chunks.at(0).bytes, 72);
}

TEST(Packing, whether_a_tensor_fits_is_asked_of_its_aligned_place) {
  // 30 bytes and 2 would fill a slot of 32 exactly, but the 2 must begin at 32.
  const auto chunks = stage({run_of(2, 15), run_of(2, 1)}, 32);
  EXPECT_EQ(offsets_of(chunks), (std::vector<std::vector<std::int64_t>>{{0}, {0}}));
  EXPECT_EQ(chunks.at(0).bytes, 30);
  EXPECT_EQ(chunks.at(1).bytes, 2);
}

}  // namespace
}  // namespace crossmesh::reports
