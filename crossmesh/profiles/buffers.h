// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: the sizes of its registered buffers, and where slices lie in one
// packed pull. Both sides compute the same offsets from different facts: the consumer from what it
// recorded, the producer from the tensors that it cuts.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh::profiles {

inline constexpr std::int64_t kBufferUnitBytes = std::int64_t{256} << 20;
inline constexpr std::int64_t kPackedAlignmentBytes = 16;

// Rounded up to whole units; `presize_bytes` is a floor, not a cap, and is not rounded.
std::int64_t buffer_alloc_bytes(std::int64_t bytes, std::int64_t presize_bytes);

// Grammar: pull = slice*; slice = padding DATA, where padding is the least number of bytes (below
// 16) after which DATA starts at a multiple of 16. Nothing follows the last slice.
struct PackedSlice {
  std::int64_t offset_bytes = 0;
  DType dtype = DType::u8;
  std::int64_t size = 0;  // elements
  Shape shape;

  bool operator==(const PackedSlice&) const = default;
};

struct PackedLayout {
  std::vector<PackedSlice> slices;
  std::int64_t bytes = 0;

  bool operator==(const PackedLayout&) const = default;

  // Throws: unsupported for a slice of no elements, or of elements that are parts of bytes.
  void add(DType dtype, const Shape& shape);
};

}  // namespace crossmesh::profiles
