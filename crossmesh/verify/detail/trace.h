// SPDX-License-Identifier: Apache-2.0
// Addresses traced back to elements: which element of a tensor lies at a place of a storage. The
// other way round than the compiler, which goes from elements to places.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh::detail {

// A piece as a number system: a place is an offset plus digits times strides, largest first.
struct Digits {
  struct Digit {
    std::int64_t extent = 0;
    std::int64_t stride = 0;
    std::int64_t tensor_step = 0;  // in row-major elements of the tensor
    std::int64_t piece_step = 0;   // in row-major elements of the piece
  };
  std::int64_t offset = 0;
  std::int64_t first_element = 0;  // of the tensor, at the offset
  std::int64_t element_count = 0;
  std::vector<Digit> digits;
};

// Nothing where two elements of the piece may share a place, or strides do not nest.
// Requires: the piece is not empty and lies in the space.
std::optional<Digits> digits_of(const Piece& piece, const Space& space);

// Pairs of places, one in each of two storages: a start, and steps around it.
struct Lattice {
  struct Loop {
    std::int64_t count = 0;
    std::int64_t source = 0;
    std::int64_t target = 0;
  };
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::vector<Loop> loops;
};

enum class End { source, target };

// Cuts a lattice into parts on which element numbers grow linearly along each loop, at one end.
// Nothing where a place at that end is no element of the piece, or too many parts are needed.
std::optional<std::vector<Lattice>> cut(const Lattice& lattice, const Digits& digits, End end);

// Row-major element numbers along a lattice that `cut` gave: of the tensor and of the piece.
struct Elements {
  struct Step {
    std::int64_t count = 0;
    std::int64_t tensor = 0;
    std::int64_t piece = 0;

    bool operator==(const Step&) const = default;
  };
  std::int64_t tensor = 0;
  std::int64_t piece = 0;
  std::vector<Step> steps;
};
Elements elements_along(const Lattice& lattice, const Digits& digits, End end);

}  // namespace crossmesh::detail
