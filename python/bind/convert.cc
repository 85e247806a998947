// SPDX-License-Identifier: Apache-2.0
#include "python/bind/convert.h"

namespace crossmesh::python {

DType dtype_of(const DTypeOrName& dtype) {
  if (const DType* value = std::get_if<DType>(&dtype)) return *value;
  const std::string& name = std::get<std::string>(dtype);
  if (const auto value = dtype_from_name(name)) return *value;
  throw Error(ErrorCode::invalid_argument, "dtype: no dtype has this name")
      .with("name", name)
      .hint("give a safetensors name such as BF16, or torch's such as bfloat16");
}

int checked_index(std::int64_t index, std::size_t count, std::string_view what) {
  if (index >= 0 && static_cast<std::uint64_t>(index) < count) return static_cast<int>(index);
  throw Error(ErrorCode::invalid_argument, std::string(what))
      .with("index", index)
      .with("count", count);
}

const char* enumerator_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "boolean";
    case DType::u8:
      return "u8";
    case DType::i8:
      return "i8";
    case DType::u16:
      return "u16";
    case DType::i16:
      return "i16";
    case DType::u32:
      return "u32";
    case DType::i32:
      return "i32";
    case DType::u64:
      return "u64";
    case DType::i64:
      return "i64";
    case DType::f4:
      return "f4";
    case DType::f6_e2m3:
      return "f6_e2m3";
    case DType::f6_e3m2:
      return "f6_e3m2";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::f8_e5m2:
      return "f8_e5m2";
    case DType::f8_e8m0:
      return "f8_e8m0";
    case DType::f8_e4m3fnuz:
      return "f8_e4m3fnuz";
    case DType::f8_e5m2fnuz:
      return "f8_e5m2fnuz";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::c64:
      return "c64";
  }
  return "";
}

}  // namespace crossmesh::python
