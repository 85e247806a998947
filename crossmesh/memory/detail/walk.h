// SPDX-License-Identifier: Apache-2.0
// Visits the loops of a nest, and rewrites a nest into one that is cheaper to visit. It moves
// no bytes.
#pragma once

#include <cstdint>

#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh::detail {

// The nest without loops of one step, with loops and runs that continue each other merged.
// Ensures: the same pairs in the same order; no loop at all when there are no elements.
LoopNest merged(const LoopNest& nest);

// The loops of `nest` in an order that suits the target: its largest strides outermost. When the
// source would rather have another loop innermost, that one comes last but one.
// Ensures: the same pairs in another order.
LoopNest reordered(const LoopNest& nest);

// Calls visit(source offset, target offset) for each step of the first `loop_count` loops, in
// row-major order.
template <typename Visit>
void walk(const LoopNest& nest, int loop_count, Visit&& visit) {
  for (int d = 0; d < loop_count; ++d) {
    if (nest.counts[d] == 0) return;
  }
  Index index = DimVector::filled(loop_count, 0);
  std::int64_t source = 0;
  std::int64_t target = 0;
  while (true) {
    visit(source, target);
    int d = loop_count - 1;
    for (; d >= 0; --d) {
      source += nest.source_strides[d];
      target += nest.target_strides[d];
      if (++index[d] < nest.counts[d]) break;
      source -= nest.source_strides[d] * nest.counts[d];
      target -= nest.target_strides[d] * nest.counts[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace crossmesh::detail
