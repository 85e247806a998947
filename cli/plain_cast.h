// SPDX-License-Identifier: Apache-2.0
// Casts one element at a time, as `torch.Tensor.copy_` has it: what the copy kernels are checked
// against. It shares no code with them.
#pragma once

#include <cstddef>
#include <span>

#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// Casts element by element, rounding to nearest even. Requires: spans of equal element counts.
// Throws: unsupported: dtypes that differ and are not both of f32, f16 and bf16.
void cast_plainly(DType source_dtype, std::span<const std::byte> source, DType target_dtype,
                  std::span<std::byte> target);

// Whether an element of f32, f16 or bf16 is a NaN; of another dtype, none is.
bool is_nan(DType dtype, const std::byte* element);

}  // namespace crossmesh::cli
