// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/buffers.h"

#include <algorithm>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"

namespace crossmesh::profiles {

std::int64_t buffer_alloc_bytes(std::int64_t bytes, std::int64_t presize_bytes) {
  const std::int64_t units = ceil_div(std::max<std::int64_t>(bytes, 0), kBufferUnitBytes);
  return std::max(checked_mul(units, kBufferUnitBytes), presize_bytes);
}

void PackedLayout::add(DType dtype, const Shape& shape) {
  const std::int64_t size = checked_product(shape.span());
  // The two sides of the transport size such a slice differently: one of them counts it as 1.
  if (size == 0) {
    throw Error(ErrorCode::unsupported, "pack: a slice has no elements")
        .with("shape", to_string(shape));
  }
  if (!is_byte_sized(dtype)) {
    throw Error(ErrorCode::unsupported, "pack: elements do not fill bytes")
        .with("dtype", name_of(dtype));
  }
  const std::int64_t offset = round_up(bytes, kPackedAlignmentBytes);
  slices.push_back({offset, dtype, size, shape});
  bytes = checked_add(offset, checked_mul(size, byte_size(dtype)));
}

}  // namespace crossmesh::profiles
