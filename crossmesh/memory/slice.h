// SPDX-License-Identifier: Apache-2.0
// Cuts a loop nest into consecutive sub-nests of bounded size, and lays a nest's elements side
// by side for a packed route. It is geometry: it moves no bytes.
#pragma once

#include <cstdint>

#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh {

// A part of a nest. The offsets, in bytes, are from where the whole nest starts.
struct Slice {
  std::int64_t source_offset_bytes = 0;
  std::int64_t target_offset_bytes = 0;
  LoopNest nest;

  bool operator==(const Slice&) const = default;
};

// The slices of one nest, found by index, so that both ends of a transfer can name them. The
// outermost loops are cut first; a run is cut, between elements, only when it is too long alone.
// Ensures: slices 0 .. count() - 1 visit the pairs of the nest, in its order, each once; no
// slice is empty, or larger than bytes_max on either side.
class Slices {
 public:
  // Throws: limit_exceeded when one element is larger than bytes_max.
  Slices(const LoopNest& nest, std::int64_t bytes_max);

  std::int64_t count() const { return count_; }

  // Requires: 0 <= index < count().
  Slice at(std::int64_t index) const;

  bool operator==(const Slices&) const = default;

 private:
  LoopNest nest_;
  int cut_ = 0;             // the loop that is cut; the number of loops when the run is
  std::int64_t steps_ = 1;  // of that loop, or elements of the run, in one slice
  std::int64_t parts_ = 0;  // slices of that loop or run
  std::int64_t count_ = 0;
};

// Calls visit(const Slice&) for each slice in order. Throws: as Slices, and what visit throws.
template <typename Visit>
void for_each_slice(const LoopNest& nest, std::int64_t bytes_max, Visit&& visit) {
  const Slices slices(nest, bytes_max);
  for (std::int64_t i = 0; i < slices.count(); ++i) visit(slices.at(i));
}

// Bytes of a nest's elements side by side, as they are at the source.
// Throws: limit_exceeded when they do not fit 63 bits.
std::int64_t packed_bytes(const LoopNest& nest);

// The nest that gathers the source into packed bytes. Packed elements lie in row-major order of
// `nest`, without gaps.
LoopNest source_to_packed(const LoopNest& nest);

// The nest that scatters what source_to_packed gathered; it converts where `nest` does.
LoopNest packed_to_target(const LoopNest& nest);

}  // namespace crossmesh
