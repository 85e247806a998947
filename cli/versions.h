// SPDX-License-Identifier: Apache-2.0
// What a "trained" weight is at version v: a pure function of the checkpoint's bits, the tensor,
// the element's index in it and v. Stale or misplaced elements cannot pass for right ones, because
// every element's bits differ from one version to the next. It is a stand-in for a training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// Turns the checkpoint's bits of elements [first_index, ...) of `tensor` (flat, row-major) into
// those of `version`, in place. Version 0 is the checkpoint; versions do not add up.
//
// Requires: `elements` holds whole elements; of a sub-byte dtype it starts on a byte (f4: an even
// index, the f6 types: a multiple of 4) and ends on one.
// Ensures: every element's bits differ between versions v and v + 1, and still do after a cast
// among f32, f16 and bf16 (the sign alternates); the top bits of the mantissa differ between any
// two versions less than 64 apart (a cast may drop them near the ends of its range). Finite values
// of IEEE types and of f8_e4m3 and f8_e5m2 stay finite: exponents are left alone. Any split of
// the range gives the same bits.
void apply_version(std::string_view tensor, DType dtype, std::int64_t first_index,
                   std::span<std::byte> elements, std::uint64_t version);

}  // namespace crossmesh::cli
