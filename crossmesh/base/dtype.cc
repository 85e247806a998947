// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/dtype.h"

#include "crossmesh/base/checked.h"

namespace crossmesh {
namespace {

struct Row {
  int bits;
  std::string_view name;
  std::string_view torch_name;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {8, "BOOL", "bool"},
    {8, "U8", "uint8"},
    {8, "I8", "int8"},
    {16, "U16", "uint16"},
    {16, "I16", "int16"},
    {32, "U32", "uint32"},
    {32, "I32", "int32"},
    {64, "U64", "uint64"},
    {64, "I64", "int64"},
    {4, "F4", "float4_e2m1fn"},
    {6, "F6_E2M3", "float6_e2m3fn"},
    {6, "F6_E3M2", "float6_e3m2fn"},
    {8, "F8_E4M3", "float8_e4m3fn"},
    {8, "F8_E5M2", "float8_e5m2"},
    {8, "F8_E8M0", "float8_e8m0fnu"},
    {8, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    {8, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    {16, "F16", "float16"},
    {16, "BF16", "bfloat16"},
    {32, "F32", "float32"},
    {64, "F64", "float64"},
    {64, "C64", "complex64"},
}};

const Row& row_of(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

int bit_size(DType dtype) { return row_of(dtype).bits; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t count) {
  const int bits = bit_size(dtype);
  if (bits % 8 == 0) return checked_mul(count, bits / 8);
  // Eight elements of b bits are b bytes, so only the remainder needs care.
  const std::int64_t rest_bits = count % 8 * bits;
  if (rest_bits % 8 != 0) return std::nullopt;
  return checked_add(checked_mul(count / 8, bits), rest_bits / 8);
}

std::optional<DType> dtype_from_name(std::string_view name) {
  constexpr std::string_view kTorchPrefix = "torch.";
  if (name.starts_with(kTorchPrefix)) name.remove_prefix(kTorchPrefix.size());
  for (int i = 0; i < kDTypeCount; ++i) {
    const Row& row = kRows[static_cast<std::size_t>(i)];
    if (name == row.name || name == row.torch_name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_castable(DType source, DType target) {
  const auto is_cast_type = [](DType dtype) {
    return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
  };
  return source != target && is_cast_type(source) && is_cast_type(target);
}

}  // namespace crossmesh
