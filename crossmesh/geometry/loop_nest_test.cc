// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/loop_nest.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace crossmesh {
namespace {

using Pairs = std::multiset<std::pair<std::int64_t, std::int64_t>>;

Pairs visited(const ElementLoops& l) {
  Pairs pairs;
  Index i = DimVector::filled(l.counts.size(), 0);
  for (const std::int64_t count : l.counts) {
    if (count == 0) return pairs;
  }
  while (true) {
    std::int64_t source = 0, target = 0;
    for (int d = 0; d < i.size(); ++d) {
      source += i[d] * l.source_strides[d];
      target += i[d] * l.target_strides[d];
    }
    pairs.emplace(source * l.source_element_bytes, target * l.target_element_bytes);
    int d = i.size() - 1;
    while (d >= 0 && ++i[d] == l.counts[d]) i[d--] = 0;
    if (d < 0) return pairs;
  }
}

Pairs visited(const LoopNest& n) {
  ElementLoops bytes{n.counts, n.source_strides, n.target_strides, 1, 1};
  Pairs pairs;
  if (n.run_count == 0) return pairs;
  for (const auto& [source, target] : visited(bytes)) {
    for (std::int64_t j = 0; j < n.run_count; ++j) {
      pairs.emplace(source + j * n.source_element_bytes, target + j * n.target_element_bytes);
    }
  }
  return pairs;
}

TEST(LoopNest, coalesce_visits_the_same_pairs_for_all_small_loops) {
  int cases = 0;
  const std::int64_t strides[] = {0, 1, 2, 3, 4, 6};
  for (std::int64_t a = 0; a <= 3; ++a) {
    for (std::int64_t b = 1; b <= 3; ++b) {
      for (const std::int64_t sa : strides) {
        for (const std::int64_t sb : strides) {
          for (const std::int64_t ta : strides) {
            for (const std::int64_t tb : strides) {
              const ElementLoops loops{{a, b}, {sa, sb}, {ta, tb}, 4, 2};
              ASSERT_EQ(visited(coalesce(loops)), visited(loops));
              ++cases;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 4 * 3 * 6 * 6 * 6 * 6);
}

TEST(LoopNest, contiguous_loops_become_one_run) {
  const LoopNest nest = coalesce({{4, 1, 8, 2}, {16, 99, 2, 1}, {16, 7, 2, 1}, 2, 2});
  EXPECT_EQ(nest, (LoopNest{{}, {}, {}, 64, 2, 2}));
  EXPECT_EQ(run_total(nest), 1);
}

TEST(LoopNest, a_scalar_is_one_run_of_one) {
  EXPECT_EQ(coalesce({{}, {}, {}, 2, 2}).run_count, 1);
  EXPECT_EQ(element_count(coalesce({{0, 3}, {3, 1}, {3, 1}, 2, 2})), 0);
}

}  // namespace
}  // namespace crossmesh
