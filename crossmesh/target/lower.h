// SPDX-License-Identifier: Apache-2.0
// What a copy from a chain into a parameter moves: boxes of the tensor and where they lie. It is
// proven to be what `parameter.copy_(chain)` does, element by element, or said to be opaque. It
// neither knows names nor checks that a parameter is covered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/base/fingerprint.h"
#include "crossmesh/geometry/space.h"
#include "crossmesh/geometry/view.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/target/chain.h"

namespace crossmesh {

// The destination of a copy: a strided view of a parameter's storage, in elements of the dtype.
struct CopyTarget {
  DType dtype = DType::u8;
  StridedRegion region;
  std::int64_t storage_size = 0;

  bool operator==(const CopyTarget&) const = default;
};

// Pieces of the whole tensor, disjoint, in the order of their places in the storage; none for a
// copy of no elements. Views count elements of `target_dtype` in the storage.
// Equal dtypes move bits: both are then the tensor's own dtype, whatever the parameter's, and a
// view counts units of its size. Different ones convert; source_dtype is then that of the chain's
// end, which has the tensor's element size but may be another dtype (a view of it).
struct LoweredCopy {
  Space space;
  std::vector<Piece> pieces;
  DType source_dtype = DType::u8;
  DType target_dtype = DType::u8;

  bool operator==(const LoweredCopy&) const = default;
};

// A copy that no piece says; the tensor then goes whole to the loader.
struct OpaqueCopy {
  std::string reason;

  bool operator==(const OpaqueCopy&) const = default;
};

// Pieces of one copy, at most, before it is opaque.
inline constexpr std::int64_t kPiecesMax = 256;

// Ensures: executing the pieces puts into the storage what copy_ puts there, and nothing else.
// Opaque: a copy that repeats elements (a size of 1 spread over a larger one), a conversion that
// crossmesh does not perform, parts of elements, a destination that may overlap itself, and more
// than `pieces_max` pieces.
// Throws: invalid_argument where torch refuses the copy (sizes that do not match, a destination
// with a stride of 0), or where the destination passes its storage.
std::variant<LoweredCopy, OpaqueCopy> lower(const ElementMap& source, const CopyTarget& target,
                                            std::int64_t pieces_max = kPiecesMax);

// What a chain shows, free of how it was spelled: two narrows are one narrow, `t` twice is nothing,
// a copy in between is nothing. Strides and offset of the end do not count, since a copy from it
// reads elements in order.
struct CanonicalChain {
  DType dtype = DType::u8;  // of the whole tensor
  Shape shape;
  DType result_dtype = DType::u8;
  Shape sizes;
  // Runs of the tensor's units, in the order of the chain's end: offset, then counts and strides.
  std::int64_t unit_bytes = 0;
  std::vector<std::vector<std::int64_t>> runs;
  std::optional<ElementMap> unresolved;  // where copies between shapes make too many runs

  bool operator==(const CanonicalChain&) const = default;
};

// Ensures: equal values show equal elements in equal order; and for chains that did not copy, the
// converse.
CanonicalChain canonical(const ElementMap& map);

Fingerprint fingerprint(const CanonicalChain& chain);

}  // namespace crossmesh
