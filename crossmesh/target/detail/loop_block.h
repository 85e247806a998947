// SPDX-License-Identifier: Apache-2.0
// Pairs of places, a source's and a target's, as nested loops; and how to cut them where they cross
// the borders of a mixed radix, so that each cut is a box of digits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh::detail {

struct Loop {
  std::int64_t count = 0;
  std::int64_t source_stride = 0;
  std::int64_t target_stride = 0;

  bool operator==(const Loop&) const = default;
};

struct LoopBlock {
  std::int64_t source_offset = 0;
  std::int64_t target_offset = 0;
  std::vector<Loop> loops;

  bool operator==(const LoopBlock&) const = default;
};

// The same pairs with the fewest loops, largest source stride first.
// Requires: no count is 0, no stride negative. Ensures: no loop of one step.
LoopBlock simplified(LoopBlock block);

// The same, but largest target stride first.
LoopBlock simplified_by_target(LoopBlock block);

// The values of the digits of a flat index into `shape`, in row-major order: [24, 6, 1] for
// [4, 6]. The first is the number of elements, and no digit. Dimensions of extent 1 have none.
std::vector<std::int64_t> places_of(std::span<const std::int64_t> shape);

// `places` with as many of the blocks' strides among them as nest, `count_max` places at most.
// Ensures: each place divides the one before it.
std::vector<std::int64_t> refine_places(std::span<const std::int64_t> places,
                                        std::span<const LoopBlock> blocks, int count_max);

// The same pairs in blocks of which each loop walks one digit, without carry. Nothing where there
// would be more than `blocks_max`. Requires: each place divides the one before it; source places
// lie within the first.
std::optional<std::vector<LoopBlock>> cut_at_places(const LoopBlock& block,
                                                    std::span<const std::int64_t> places,
                                                    std::int64_t blocks_max);

}  // namespace crossmesh::detail
