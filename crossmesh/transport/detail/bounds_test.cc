// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace crossmesh::detail {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

// Marks every byte that one side of the transfer touches, by walking all of them.
Reach walk(const Transfer& transfer, Side side) {
  const LoopNest& nest = transfer.nest;
  const bool source = side == Side::source;
  const Strides& strides = source ? nest.source_strides : nest.target_strides;
  const std::int64_t offset = source ? transfer.source_offset_bytes : transfer.target_offset_bytes;
  const int element_bytes = source ? nest.source_element_bytes : nest.target_element_bytes;
  Reach reach{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  bool is_empty = true;
  for (std::int64_t i = 0; i < nest.counts[0]; ++i) {
    for (std::int64_t j = 0; j < nest.counts[1]; ++j) {
      for (std::int64_t k = 0; k < nest.run_count * element_bytes; ++k) {
        const std::int64_t at = offset + i * strides[0] + j * strides[1] + k;
        reach = {std::min(reach.begin_bytes, at), std::max(reach.end_bytes, at + 1)};
        is_empty = false;
      }
    }
  }
  return is_empty ? Reach{offset, offset} : reach;
}

TEST(Bounds, reach_of_small_nests_is_what_a_walk_touches) {
  int nests = 0;
  for (const std::int64_t a : {0, 1, 2, 3}) {
    for (const std::int64_t b : {0, 1, 4}) {
      for (const std::int64_t run : {0, 1, 5}) {
        for (const std::int64_t stride : {-7, 0, 3, 20}) {
          for (const std::int64_t other : {-11, 0, 2}) {
            Transfer transfer;
            transfer.source_offset_bytes = 100;
            transfer.target_offset_bytes = -3;
            transfer.nest = {{a, b}, {stride, other}, {other, stride}, run, 4, 2};
            ASSERT_EQ(describe_fault(transfer), "element sizes differ");
            for (const Side side : {Side::source, Side::target}) {
              ASSERT_EQ(reach_of(transfer, side), walk(transfer, side));
              ++nests;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(nests, 4 * 3 * 3 * 4 * 3 * 2);
}

struct FaultRow {
  const char* name;
  LoopNest nest;
  DType source_dtype;
  DType target_dtype;
  const char* expected;
};

TEST(Bounds, faults_are_named) {
  const FaultRow rows[] = {
      {"bytes", {{}, {}, {}, 8, 1, 1}, DType::u8, DType::u8, ""},
      {"bytes of another dtype", {{}, {}, {}, 8, 1, 1}, DType::f4, DType::f4, ""},
      {"a cast", {{2}, {16}, {8}, 4, 4, 2}, DType::f32, DType::bf16, ""},
      {"an empty copy", {{0}, {16}, {8}, 4, 1, 1}, DType::u8, DType::u8, ""},
      {"a stride too few", {{2}, {}, {8}, 4, 1, 1}, DType::u8, DType::u8, "a loop lacks a stride"},
      {"no target stride", {{2}, {8}, {}, 4, 1, 1}, DType::u8, DType::u8, "a loop lacks a stride"},
      {"a negative run", {{2}, {8}, {8}, -4, 1, 1}, DType::u8, DType::u8, "a count is negative"},
      {"a negative loop", {{-2}, {8}, {8}, 4, 1, 1}, DType::u8, DType::u8, "a count is negative"},
      {"no size", {{}, {}, {}, 4, 0, 1}, DType::u8, DType::u8, "an element has no size"},
      {"two sizes", {{}, {}, {}, 4, 2, 4}, DType::u8, DType::u8, "element sizes differ"},
      {"no cast", {{}, {}, {}, 4, 4, 4}, DType::f32, DType::i32, "the dtypes do not convert"},
      {"a wrong size",
       {{}, {}, {}, 4, 4, 4},
       DType::f32,
       DType::bf16,
       "an element has not the size of its dtype"},
      {"too many",
       {{kHuge}, {0}, {0}, 4, 1, 1},
       DType::u8,
       DType::u8,
       "its bytes do not fit 63 bits"},
      {"too large",
       {{}, {}, {}, kHuge, 4, 4},
       DType::u8,
       DType::u8,
       "its bytes do not fit 63 bits"},
  };
  for (const FaultRow& row : rows) {
    Transfer transfer;
    transfer.nest = row.nest;
    transfer.source_dtype = row.source_dtype;
    transfer.target_dtype = row.target_dtype;
    EXPECT_EQ(describe_fault(transfer), row.expected) << row.name;
  }
}

TEST(Bounds, offsets_that_do_not_fit_have_no_reach) {
  Transfer transfer;
  transfer.nest = {{3, 3}, {kHuge, -kHuge}, {1, 1}, 4, 1, 1};
  EXPECT_EQ(reach_of(transfer, Side::source), std::nullopt);
  EXPECT_EQ(reach_of(transfer, Side::target), (Reach{0, 8}));
  transfer.target_offset_bytes = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reach_of(transfer, Side::target), std::nullopt);
  transfer.nest.counts[0] = 0;
  EXPECT_EQ(reach_of(transfer, Side::source), (Reach{0, 0}));
}

}  // namespace
}  // namespace crossmesh::detail
