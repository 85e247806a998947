// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <vector>

namespace crossmesh::detail {
namespace {

TEST(Ring, a_chunk_lies_on_a_line_and_is_not_wrapped_around) {
  struct Row {
    const char* name;
    RingStep step;
    RingPlace place;
  };
  const Row rows[] = {
      {"the first", {0, 100}, {0, 128}},
      {"the next", {128, 64}, {128, 192}},
      {"up to the end", {1024 - 128, 128}, {1024 - 128, 1024}},
      {"over the end", {1024 - 128, 129}, {0, 1024 + 192}},
      {"the second time round", {1024 + 192, 1}, {192, 1024 + 256}},
  };
  for (const Row& row : rows) EXPECT_EQ(place_in_ring(1024, row.step), row.place) << row.name;
}

Slice slice_of(std::int64_t bytes) {
  Slice slice;
  slice.nest.run_count = bytes;
  return slice;
}

TEST(Ring, what_is_packed_lies_there_until_it_is_released) {
  RingWriter writer;
  writer.memory = reserve_shared("ring_test", kRingBytesMin);
  auto reader = open_ring(writer.memory.fd.get(), kRingBytesMin);
  ASSERT_TRUE(reader.has_value());
  std::mt19937 random(5);
  const std::vector<std::byte> zeros(4096);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 2000; ++i) {
    sizes.push_back(1 + static_cast<std::int64_t>(random() % 4096));
  }
  std::size_t packed = 0;
  int refused = 0;
  for (std::size_t taken = 0; taken < sizes.size(); ++taken) {
    for (; packed < sizes.size(); ++packed) {
      const std::vector<std::byte> bytes(4096, std::byte(packed % 251));
      if (!pack_chunk(writer, bytes.data(), slice_of(sizes[packed]))) break;
    }
    refused += packed < sizes.size();
    ASSERT_GT(packed, taken);
    open_chunk(*reader, slice_of(sizes[taken]), 4096);
    for (std::int64_t i = 0; i < sizes[taken]; ++i) {
      ASSERT_EQ(reader->memory.data()[reader->place.offset_bytes + i], std::byte(taken % 251));
    }
    release(writer, static_cast<std::int64_t>(taken) + 1);
  }
  EXPECT_GT(refused, 1000);
  // A count that is too large frees no more than was packed.
  release(writer, 1'000'000);
  EXPECT_EQ(writer.freed, writer.packed);
  EXPECT_TRUE(writer.end_positions.empty());
  start_over(writer, 7);
  EXPECT_EQ(writer.attempt, 7u);
  EXPECT_EQ(writer.position, 0);
  EXPECT_EQ(writer.memory.mapping.bytes(), kRingBytesMin);
}

TEST(Ring, a_file_that_could_shrink_or_is_small_is_no_ring) {
  const FileDescriptor open_file(::memfd_create("ring_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_file.get(), kRingBytesMin), 0);
  EXPECT_FALSE(open_ring(open_file.get(), kRingBytesMin).has_value());
  const SharedMemory sealed = reserve_shared("ring_test", kRingBytesMin);
  EXPECT_TRUE(open_ring(sealed.fd.get(), kRingBytesMin).has_value());
  EXPECT_FALSE(open_ring(sealed.fd.get(), kRingBytesMin + 64).has_value());
  EXPECT_FALSE(open_ring(sealed.fd.get(), kRingBytesMin - 64).has_value());
  EXPECT_FALSE(open_ring(-1, kRingBytesMin).has_value());
}

}  // namespace
}  // namespace crossmesh::detail
