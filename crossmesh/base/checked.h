// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that may come from a file or a peer: it throws where it
// would wrap. Not for inner loops.
#pragma once

#include <cstdint>
#include <span>

namespace crossmesh {

// Throws: limit_exceeded when the result does not fit 63 bits.
std::int64_t checked_add(std::int64_t a, std::int64_t b);
std::int64_t checked_mul(std::int64_t a, std::int64_t b);

// The product of `extents`; 1 when there are none.
// Requires: no extent is negative.
std::int64_t checked_product(std::span<const std::int64_t> extents);

// a / b rounded up. Requires: a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// The least multiple of `unit` that is not below `value`. Requires: value >= 0, unit > 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace crossmesh
