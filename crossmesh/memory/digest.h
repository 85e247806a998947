// SPDX-License-Identifier: Apache-2.0
// The digest of a tensor: a sum over its bytes, each weighed by its place in the tensor. Parts may
// be added in any order and however they are cut. It finds accidents; it is no signature.
// docs/ARCHITECTURE.md has the formula and what it misses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh {

// What some bytes of a tensor add to its digest. Equal parts have equal digests on every rank.
struct Digest {
  std::array<std::uint64_t, 2> sums{};  // modulo 2^64: keyed by word, and plain
  std::int64_t bytes = 0;

  Digest& operator+=(const Digest& other);
  bool operator==(const Digest&) const = default;
};

// `0123456789abcdef0123456789abcdef of 1024 bytes`
std::string to_string(const Digest& digest);

// Of bytes that lie side by side, the first of them at `offset_bytes` of the tensor's row-major
// bytes. Requires: 0 <= offset_bytes, 0 <= bytes.
Digest digest(const std::byte* data, std::int64_t offset_bytes, std::int64_t bytes);

// Where a part of a tensor lies in some memory, seen from the memory: a place is a sum of digits
// times strides, the largest first, and a run that lies alike in both. In bytes.
struct Numbering {
  DimVector counts;
  DimVector place_strides;  // each at least as large as all that the smaller ones reach
  DimVector tensor_strides;
  std::int64_t run_bytes = 0;
  std::int64_t tensor_offset_bytes = 0;  // of place 0

  bool operator==(const Numbering&) const = default;
};

// The numbering of loops whose source side is the memory and whose target side is the tensor.
// Requires: equal element sizes. Nothing where two elements may share a place, or where strides do
// not nest.
std::optional<Numbering> number(const ElementLoops& loops, std::int64_t tensor_offset_bytes);

// Whether a byte lies there, at the start of an element or inside one.
bool is_place(const Numbering& numbering, std::int64_t offset_bytes);

// A place to count from, in a numbered memory.
struct NumberedPlace {
  const Numbering* numbering = nullptr;
  std::int64_t offset_bytes = 0;
};

// Of the elements that `nest` reads at `source`; each counts where its target lies, as seen from
// `target`. Where the dtypes differ it counts what convert would write.
// Requires: every target of the nest is a place of the numbering; is_castable, or equal dtypes.
Digest digest(const std::byte* source, const NumberedPlace& target, const LoopNest& nest,
              DType source_dtype, DType target_dtype);

// The same of elements that were written: read where `nest` writes.
Digest digest_written(const std::byte* written, const NumberedPlace& target, const LoopNest& nest);

}  // namespace crossmesh
