// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/bounds.h"

#include <algorithm>

namespace crossmesh::detail {
namespace {

// Adds `factor * step` to `sum`. Returns whether it fits.
bool add_product(std::int64_t factor, std::int64_t step, std::int64_t* sum) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(factor, step, &product) &&
         !__builtin_add_overflow(*sum, product, sum);
}

bool has_byte_size(DType dtype, std::int64_t bytes) {
  return is_byte_sized(dtype) && byte_size(dtype) == bytes;
}

}  // namespace

std::optional<Reach> reach_of(const Transfer& transfer, Side side) {
  const LoopNest& nest = transfer.nest;
  const bool source = side == Side::source;
  const Strides& strides = source ? nest.source_strides : nest.target_strides;
  const std::int64_t offset = source ? transfer.source_offset_bytes : transfer.target_offset_bytes;
  Reach reach{offset, offset};
  bool is_empty = nest.run_count == 0;
  for (const std::int64_t count : nest.counts) is_empty |= count == 0;
  if (is_empty) return reach;
  for (int d = 0; d < nest.counts.size(); ++d) {
    std::int64_t& edge = strides[d] < 0 ? reach.begin_bytes : reach.end_bytes;
    if (!add_product(nest.counts[d] - 1, strides[d], &edge)) return std::nullopt;
  }
  const int element_bytes = source ? nest.source_element_bytes : nest.target_element_bytes;
  if (!add_product(nest.run_count, element_bytes, &reach.end_bytes)) return std::nullopt;
  return reach;
}

std::string_view describe_fault(const Transfer& transfer) {
  const LoopNest& nest = transfer.nest;
  const int loops = nest.counts.size();
  if (nest.source_strides.size() != loops || nest.target_strides.size() != loops) {
    return "a loop lacks a stride";
  }
  // The elements have to be countable, and so have their bytes.
  std::int64_t elements = std::max(nest.source_element_bytes, nest.target_element_bytes);
  if (std::min(nest.source_element_bytes, nest.target_element_bytes) <= 0) {
    return "an element has no size";
  }
  if (nest.run_count < 0) return "a count is negative";
  bool is_countable = !__builtin_mul_overflow(elements, nest.run_count, &elements);
  for (const std::int64_t count : nest.counts) {
    if (count < 0) return "a count is negative";
    is_countable = !__builtin_mul_overflow(elements, count, &elements) && is_countable;
  }
  if (!is_countable) return "its bytes do not fit 63 bits";
  if (transfer.source_dtype == transfer.target_dtype) {
    return nest.source_element_bytes == nest.target_element_bytes ? "" : "element sizes differ";
  }
  if (!is_castable(transfer.source_dtype, transfer.target_dtype))
    return "the dtypes do not convert";
  const bool sized = has_byte_size(transfer.source_dtype, nest.source_element_bytes) &&
                     has_byte_size(transfer.target_dtype, nest.target_element_bytes);
  return sized ? "" : "an element has not the size of its dtype";
}

}  // namespace crossmesh::detail
