// SPDX-License-Identifier: Apache-2.0
// Whether a transfer stays inside a region. It knows sizes and strides, and touches no memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

enum class Side { source, target };

// The bytes of a region that one side of a transfer may touch; empty when it moves nothing.
struct Reach {
  std::int64_t begin_bytes = 0;
  std::int64_t end_bytes = 0;

  bool operator==(const Reach&) const = default;
};

// Nothing when an offset does not fit 63 bits.
// Requires: describe_fault(transfer) is empty.
std::optional<Reach> reach_of(const Transfer& transfer, Side side);

// What is wrong with a transfer whatever the regions are: negative counts, loops that lack a
// stride, element sizes that no copy or conversion serves. Empty when nothing is.
std::string_view describe_fault(const Transfer& transfer);

}  // namespace crossmesh::detail
