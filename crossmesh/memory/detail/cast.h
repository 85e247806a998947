// SPDX-License-Identifier: Apache-2.0
// Conversions of contiguous elements between f32, f16 and bf16: the table behind
// crossmesh::convert, on each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossmesh/base/dtype.h"
#include "crossmesh/memory/cpu_path.h"

namespace crossmesh::detail {

// Converts `count` elements, of any alignment.
using CastRun = void (*)(const std::byte* source, std::byte* target, std::int64_t count);

// Requires: is_castable(source, target), runs_here(path).
// Ensures: every path gives the same bits, those of a NaN included.
CastRun cast_of(CpuPath path, DType source, DType target);

}  // namespace crossmesh::detail
