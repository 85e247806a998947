// SPDX-License-Identifier: Apache-2.0
// Faults that others have met past the 31st and 32nd bit: of bytes, of elements and of strides. The
// memory here is a few pages that appear in many places, so that no test takes gigabytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "crossmesh/layout/spec.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/slice.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/source/shard.h"

namespace crossmesh::reports {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kWindow = std::int64_t{64} << 20;

// Address space of any size. All windows of 64 MiB but the first and the last are the same memory.
class Folded {
 public:
  explicit Folded(std::int64_t bytes) : bytes_((bytes + kWindow - 1) / kWindow * kWindow) {
    file_ = ::memfd_create("folded", MFD_CLOEXEC);
    void* base = ::mmap(nullptr, size(bytes_), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (file_ < 0 || base == MAP_FAILED || ::ftruncate(file_, 3 * kWindow) != 0) {
      throw std::runtime_error("no memory to fold");
    }
    base_ = static_cast<std::byte*>(base);
    const std::int64_t count = bytes_ / kWindow;
    for (std::int64_t w = 0; w < count; ++w) map(w, w == 0 ? 0 : w + 1 == count ? 2 : 1);
  }
  Folded(const Folded&) = delete;
  Folded& operator=(const Folded&) = delete;
  ~Folded() {
    ::munmap(base_, size(bytes_));
    ::close(file_);
  }

  std::byte* at(std::int64_t offset) { return base_ + offset; }

 private:
  static std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

  void map(std::int64_t window, std::int64_t part) {
    void* at = base_ + window * kWindow;
    if (::mmap(at, size(kWindow), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
               part * kWindow) == MAP_FAILED) {
      throw std::runtime_error("no memory to fold");
    }
  }

  std::int64_t bytes_;
  int file_ = -1;
  std::byte* base_ = nullptr;
};

LoopNest run_of(std::int64_t bytes) { return {{}, {}, {}, bytes, 1, 1}; }

TEST(Sizes, one_run_longer_than_a_signed_number_of_32_bits) {
  const std::int64_t bytes = 2 * kGiB + 1;
  Folded source(bytes + 1);
  Folded target(bytes + 1);
  *source.at(bytes - 1) = std::byte{7};
  *source.at(bytes) = std::byte{9};
  *source.at(0) = std::byte{3};
  crossmesh::copy(source.at(0), target.at(0), run_of(bytes));
  EXPECT_EQ(*target.at(0), std::byte{3});
  EXPECT_EQ(*target.at(bytes - 1), std::byte{7});
  EXPECT_EQ(*target.at(bytes), std::byte{0});
}

TEST(Sizes, strides_that_pass_four_gibibytes_reach_their_own_rows) {
  const std::int64_t stride = 4 * kGiB + 4096;
  Folded source(stride + 64);
  std::vector<std::byte> target(128, std::byte{0});
  std::memset(source.at(0), 1, 64);
  std::memset(source.at(stride - 4 * kGiB), 2, 64);  // where an offset of 32 bits would look
  std::memset(source.at(stride), 3, 64);
  crossmesh::copy(source.at(0), target.data(), {{2}, {stride}, {64}, 64, 1, 1});
  std::vector<std::byte> right(64, std::byte{1});
  right.insert(right.end(), 64, std::byte{3});
  EXPECT_EQ(target, right);
}

TEST(Sizes, a_run_is_cut_at_a_bound_of_32_bits_and_not_before) {
  for (const std::int64_t bound : {2 * kGiB, 4 * kGiB - 1, 4 * kGiB}) {
    EXPECT_EQ(Slices(run_of(bound), bound).count(), 1);
    const Slices two(run_of(bound + 1), bound);
    ASSERT_EQ(two.count(), 2);
    EXPECT_EQ(two.at(0).nest.run_count + two.at(1).nest.run_count, bound + 1);
    EXPECT_EQ(two.at(1).source_offset_bytes, two.at(0).nest.run_count);
  }
  EXPECT_EQ(packed_bytes(run_of(8 * kGiB)), 8 * kGiB);
}

TEST(Sizes, the_last_expert_of_a_stack_past_32_bits_is_itself) {
  // 512 experts of 4096 x 2048: 2^32 elements. One rank holds all, eight take 64 each.
  const Catalog catalog{{{"experts", DType::bf16, {512, 4096, 2048}}}};
  const Schedule schedule =
      arrange(compile(shard(catalog, parse_spec("fsdp=1")), shard(catalog, parse_spec("fsdp=8"))));
  EXPECT_EQ(totals(schedule).bytes_unique, std::int64_t{1} << 33);
  for (int rank = 0; rank < 8; ++rank) {
    const RankPart part = expand(schedule, Side::target, rank);
    ASSERT_EQ(part.steps_of_group.size(), 1u);
    ASSERT_EQ(part.steps_of_group[0].size(), 1u);
    const Step& step = part.steps_of_group[0][0];
    EXPECT_EQ(step.source.offset, (std::int64_t{rank} << 29));
    EXPECT_EQ(step.target.offset, 0);
    EXPECT_EQ(step.counts, (Shape{std::int64_t{1} << 29}));
  }
  const RankPart given = expand(schedule, Side::source, 0);
  EXPECT_EQ(given.steps_of_group[0].back().source.offset, std::int64_t{7} << 29);
}

}  // namespace
}  // namespace crossmesh::reports
