// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/slice.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The address pairs of `nest`, in row-major order, shifted.
void append_pairs(Pairs& pairs, const LoopNest& nest, std::int64_t source, std::int64_t target,
                  int d) {
  if (d == nest.counts.size()) {
    for (std::int64_t j = 0; j < nest.run_count; ++j) {
      pairs.emplace_back(source + j * nest.source_element_bytes,
                         target + j * nest.target_element_bytes);
    }
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[d]; ++i) {
    append_pairs(pairs, nest, source + i * nest.source_strides[d],
                 target + i * nest.target_strides[d], d + 1);
  }
}

Pairs pairs_of(const LoopNest& nest, std::int64_t source = 0, std::int64_t target = 0) {
  Pairs pairs;
  append_pairs(pairs, nest, source, target, 0);
  return pairs;
}

std::vector<LoopNest> small_nests() {
  std::vector<LoopNest> nests;
  constexpr std::array<std::pair<std::int32_t, std::int32_t>, 4> kElements = {
      {{1, 1}, {4, 2}, {2, 4}, {8, 8}}};
  for (const auto& [source_bytes, target_bytes] : kElements) {
    for (std::int64_t run = 0; run <= 5; ++run) {
      nests.push_back({{}, {}, {}, run, source_bytes, target_bytes});
      for (std::int64_t a = 0; a <= 3; ++a) {
        nests.push_back({{a}, {-40}, {run * target_bytes}, run, source_bytes, target_bytes});
        nests.push_back(
            {{a}, {run * source_bytes}, {run * target_bytes}, run, source_bytes, target_bytes});
        for (std::int64_t b = 0; b <= 3; ++b) {
          for (std::int64_t c = 0; c <= 3; ++c) {
            nests.push_back({{a, b, c},
                             {0, 100, run * source_bytes},
                             {1000, 41, 300},
                             run,
                             source_bytes,
                             target_bytes});
          }
        }
      }
    }
  }
  return nests;
}

TEST(Slices, visit_the_pairs_of_the_nest_in_order_within_the_bound) {
  std::int64_t cases = 0;
  for (const LoopNest& nest : small_nests()) {
    const Pairs whole = pairs_of(nest);
    const std::int64_t element = std::max(nest.source_element_bytes, nest.target_element_bytes);
    for (std::int64_t bytes_max = element; bytes_max <= 1200; bytes_max += 1 + bytes_max / 3) {
      Pairs pairs;
      std::int64_t slices = 0;
      for_each_slice(nest, bytes_max, [&](const Slice& slice) {
        const std::int64_t elements = element_count(slice.nest);
        EXPECT_GT(elements, 0);
        EXPECT_LE(elements * element, bytes_max);
        append_pairs(pairs, slice.nest, slice.source_offset_bytes, slice.target_offset_bytes, 0);
        ++slices;
      });
      ASSERT_EQ(pairs, whole);
      ASSERT_EQ(slices, Slices(nest, bytes_max).count());
      ++cases;
    }
  }
  RecordProperty("cases", static_cast<int>(cases));
  EXPECT_GT(cases, 10'000);
}

TEST(Slices, cut_the_outermost_loop_first) {
  // Ten rows of 100 bytes; three fit.
  const LoopNest nest{{10}, {200}, {100}, 50, 2, 2};
  const Slices slices(nest, 399);
  EXPECT_EQ(slices.count(), 4);
  EXPECT_EQ(slices.at(0), (Slice{0, 0, {{3}, {200}, {100}, 50, 2, 2}}));
  EXPECT_EQ(slices.at(3), (Slice{1800, 900, {{1}, {200}, {100}, 50, 2, 2}}));
}

TEST(Slices, cut_a_run_between_elements_when_it_is_too_long) {
  const LoopNest nest{{2}, {200}, {25}, 25, 4, 1};
  const Slices slices(nest, 43);
  EXPECT_EQ(slices.count(), 6);
  EXPECT_EQ(slices.at(2), (Slice{80, 20, {{}, {}, {}, 5, 4, 1}}));
  EXPECT_EQ(slices.at(3), (Slice{200, 25, {{}, {}, {}, 10, 4, 1}}));
}

TEST(Slices, a_nest_that_fits_is_one_slice) {
  const LoopNest nest{{10, 3}, {600, 200}, {300, 100}, 50, 2, 2};
  EXPECT_EQ(Slices(nest, 3000).count(), 1);
  EXPECT_EQ(Slices(nest, 3000).at(0), (Slice{0, 0, nest}));
}

TEST(Slices, an_element_larger_than_the_bound_is_refused) {
  try {
    Slices({{}, {}, {}, 5, 2, 8}, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit_exceeded);
    EXPECT_EQ(error.text(),
              "slice: one element is larger than a slice may be\n"
              "  element_bytes  8\n"
              "  bytes_max  7");
  }
}

// Source and target of each element, met through its place in the packed bytes.
TEST(Packed, gather_then_scatter_visits_the_pairs_of_the_nest_in_order) {
  for (const LoopNest& nest : small_nests()) {
    const Pairs gathered = pairs_of(source_to_packed(nest));
    const Pairs scattered = pairs_of(packed_to_target(nest));
    const Pairs whole = pairs_of(nest);
    ASSERT_EQ(gathered.size(), whole.size());
    ASSERT_EQ(scattered.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::int64_t place = static_cast<std::int64_t>(i) * nest.source_element_bytes;
      ASSERT_EQ(gathered[i], (std::pair{whole[i].first, place}));
      ASSERT_EQ(scattered[i], (std::pair{place, whole[i].second}));
    }
    ASSERT_EQ(packed_bytes(nest),
              static_cast<std::int64_t>(whole.size()) * nest.source_element_bytes);
  }
}

TEST(Packed, a_contiguous_side_becomes_one_run) {
  const LoopNest nest{{4, 3}, {600, 200}, {300, 100}, 50, 2, 2};
  EXPECT_EQ(source_to_packed(nest), (LoopNest{{12}, {200}, {100}, 50, 2, 2}));
  EXPECT_EQ(packed_to_target(nest), (LoopNest{{}, {}, {}, 600, 2, 2}));
}

}  // namespace
}  // namespace crossmesh
