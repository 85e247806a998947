// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/checked.h"

#include "crossmesh/base/error.h"

namespace crossmesh {

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::limit_exceeded, "add: sizes overflow 63 bits").with("a", a).with("b", b);
  }
  return sum;
}

std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::limit_exceeded, "multiply: sizes overflow 63 bits")
        .with("a", a)
        .with("b", b);
  }
  return product;
}

std::int64_t checked_product(std::span<const std::int64_t> extents) {
  // A zero anywhere makes the product zero, even where the others alone would overflow.
  for (const std::int64_t extent : extents) {
    if (extent == 0) return 0;
  }
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) product = checked_mul(product, extent);
  return product;
}

}  // namespace crossmesh
