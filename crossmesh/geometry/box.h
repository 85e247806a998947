// SPDX-License-Identifier: Apache-2.0
// A half-open box of an index space: the elements i with origin <= i < origin + shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {

struct Box {
  Index origin;
  Shape shape;

  bool operator==(const Box&) const = default;
};

// The box of a whole space. Ensures: origin is zero.
Box whole(const Shape& shape);

// Elements in the box; 1 for no dimensions. Throws: limit_exceeded past 63 bits.
std::int64_t volume(const Box& box);

bool is_empty(const Box& box);

// Requires: equal ranks. Ensures: holds exactly the elements of both; nothing when there are none.
std::optional<Box> intersect(const Box& a, const Box& b);

// Requires: equal ranks. An empty `inner` is contained anywhere.
bool contains(const Box& outer, const Box& inner);

// `[0:4, 2:6]`
std::string to_string(const Box& box);

}  // namespace crossmesh
