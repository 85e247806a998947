// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of a loop nest, or converts its elements, at the speed of memory. It knows
// addresses and strides; it takes no lock, allocates nothing and starts no thread.
#pragma once

#include <cstddef>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/loop_nest.h"

namespace crossmesh {

// Whether the written bytes are worth a place in the cache.
enum class StoreHint {
  automatic,  // streaming when the nest is larger than a cache
  cached,     // the target is read soon, by this processor
  streaming,  // the nest is a part of a larger copy, which finish_streaming ends: bypass the cache
              // where runs are long enough
};

// Copies the elements of `nest` from `source` to `target`, in any order.
// Requires: equal element sizes; source and target do not overlap; no target byte is visited
// twice; any alignment will do.
// Ensures: writes the target bytes of `nest` and no other; all are visible to other processors
// in the order of later stores, where `hint` is streaming only those after finish_streaming.
void copy(const std::byte* source, std::byte* target, const LoopNest& nest,
          StoreHint hint = StoreHint::automatic);

// Ends copies that were hinted to stream: their bytes are visible to other processors in the order
// of later stores. To wait after each of many small copies would cost more than the copies.
void finish_streaming();

// Copies with a conversion: round to nearest even, overflow to infinity, subnormals kept, a NaN
// with its sign and leading payload; bf16 and f16 meet through f32. Equal dtypes copy.
// Requires: as copy, and that the nest's element sizes are those of the dtypes.
// Throws: unsupported when the pair is not is_castable.
// Source: torch.Tensor.copy_, bit for bit up to the payload of a NaN.
void convert(const std::byte* source, std::byte* target, const LoopNest& nest, DType source_dtype,
             DType target_dtype);

}  // namespace crossmesh
