// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/loop_nest.h"

#include "crossmesh/base/checked.h"

namespace crossmesh {
namespace {

LoopNest empty_nest(const ElementLoops& loops) {
  LoopNest nest;
  nest.source_element_bytes = loops.source_element_bytes;
  nest.target_element_bytes = loops.target_element_bytes;
  return nest;
}

// Whether stepping the outer loop once equals running the inner loop to its end, on both sides.
bool continues(const ElementLoops& l, int outer, int inner) {
  return l.source_strides[outer] == l.source_strides[inner] * l.counts[inner] &&
         l.target_strides[outer] == l.target_strides[inner] * l.counts[inner];
}

// Drops loops of one step and merges loops that continue each other.
ElementLoops merged(const ElementLoops& loops) {
  ElementLoops out = loops;
  out.counts = out.source_strides = out.target_strides = {};
  for (int d = 0; d < loops.counts.size(); ++d) {
    if (loops.counts[d] == 1) continue;
    out.counts.push_back(loops.counts[d]);
    out.source_strides.push_back(loops.source_strides[d]);
    out.target_strides.push_back(loops.target_strides[d]);
    const int last = out.counts.size() - 1;
    if (last == 0 || !continues(out, last - 1, last)) continue;
    out.counts[last - 1] *= out.counts[last];
    out.source_strides[last - 1] = out.source_strides[last];
    out.target_strides[last - 1] = out.target_strides[last];
    out.counts.pop_back();
    out.source_strides.pop_back();
    out.target_strides.pop_back();
  }
  return out;
}

}  // namespace

LoopNest coalesce(const ElementLoops& loops) {
  LoopNest nest = empty_nest(loops);
  for (const std::int64_t count : loops.counts) {
    if (count == 0) return nest;
  }
  const ElementLoops m = merged(loops);
  int outer = m.counts.size();
  nest.run_count = 1;
  if (outer > 0 && m.source_strides[outer - 1] == 1 && m.target_strides[outer - 1] == 1) {
    nest.run_count = m.counts[--outer];
  }
  for (int d = 0; d < outer; ++d) {
    nest.counts.push_back(m.counts[d]);
    nest.source_strides.push_back(m.source_strides[d] * m.source_element_bytes);
    nest.target_strides.push_back(m.target_strides[d] * m.target_element_bytes);
  }
  return nest;
}

std::int64_t run_total(const LoopNest& nest) {
  return nest.run_count == 0 ? 0 : checked_product(nest.counts.span());
}

std::int64_t element_count(const LoopNest& nest) {
  return checked_mul(run_total(nest), nest.run_count);
}

}  // namespace crossmesh
