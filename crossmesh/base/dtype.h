// SPDX-License-Identifier: Apache-2.0
// Element types: every dtype of the safetensors format, and the pairs between
// which crossmesh converts. Names are the format's (`BF16`); torch's are accepted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace crossmesh {

enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f4,
  f6_e2m3,
  f6_e3m2,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f16,
  bf16,
  f32,
  f64,
  c64,
};

inline constexpr int kDTypeCount = static_cast<int>(DType::c64) + 1;

// Bits of one element: 4 for f4, 6 for the f6 types.
int bit_size(DType dtype);

// Whether an element fills whole bytes.
inline bool is_byte_sized(DType dtype) { return bit_size(dtype) % 8 == 0; }

// Bytes of one element. Requires: is_byte_sized(dtype).
inline std::int64_t byte_size(DType dtype) { return bit_size(dtype) / 8; }

// Bytes of `count` elements; nothing when they do not end on a byte.
// Throws: limit_exceeded when the size does not fit 63 bits.
std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t count);

// The name in a safetensors header: `BF16`, `F8_E4M3`, `F4`.
std::string_view name_of(DType dtype);

// Reads a safetensors name, or torch's (`bfloat16`, `float32`, `torch.float16`).
std::optional<DType> dtype_from_name(std::string_view name);

// A conversion that crossmesh performs as `torch.Tensor.copy_` does, bit for bit (a NaN up to
// its payload): between any two of f32, f16 and bf16. Equal dtypes need no conversion.
bool is_castable(DType source, DType target);

}  // namespace crossmesh
