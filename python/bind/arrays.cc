// SPDX-License-Identifier: Apache-2.0
#include "python/bind/arrays.h"

#include <string>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"

namespace nb = nanobind;

namespace crossmesh::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct KnownDType {
  DType dtype;
  Code code;
  bool is_numpy;
};

constexpr KnownDType kKnown[] = {
    {DType::boolean, Code::Bool, true},
    {DType::u8, Code::UInt, true},
    {DType::i8, Code::Int, true},
    {DType::u16, Code::UInt, true},
    {DType::i16, Code::Int, true},
    {DType::u32, Code::UInt, true},
    {DType::i32, Code::Int, true},
    {DType::u64, Code::UInt, true},
    {DType::i64, Code::Int, true},
    {DType::f8_e4m3, Code::Float8_E4M3FN, false},
    {DType::f8_e5m2, Code::Float8_E5M2, false},
    {DType::f8_e8m0, Code::Float8_E8M0FNU, false},
    {DType::f8_e4m3fnuz, Code::Float8_E4M3FNUZ, false},
    {DType::f8_e5m2fnuz, Code::Float8_E5M2FNUZ, false},
    {DType::f16, Code::Float, true},
    {DType::bf16, Code::Bfloat, false},
    {DType::f32, Code::Float, true},
    {DType::f64, Code::Float, true},
    {DType::c64, Code::Complex, true},
};

const KnownDType& known(DType dtype) {
  for (const KnownDType& entry : kKnown) {
    if (entry.dtype == dtype) return entry;
  }
  throw Error(ErrorCode::unsupported, "view: elements do not fill whole bytes")
      .with("dtype", name_of(dtype));
}

nb::dlpack::dtype dlpack_dtype(DType dtype, Code code) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bit_size(dtype)), 1};
}

template <typename... Kind>
nb::object view(const LyingTensor& tensor, nb::handle owner, nb::dlpack::dtype dtype) {
  std::vector<std::size_t> shape;
  for (const std::int64_t extent : tensor.shape) shape.push_back(static_cast<std::size_t>(extent));
  // A view of no elements may have no memory; its address is then of no use to anyone.
  auto* data = const_cast<std::byte*>(tensor.data);
  return nb::cast(nb::ndarray<nb::device::cpu, Kind...>(data, shape.size(), shape.data(), owner,
                                                        tensor.strides.begin(), dtype),
                  nb::rv_policy::reference);
}

std::optional<DType> dtype_of(nb::dlpack::dtype dtype) {
  for (const KnownDType& entry : kKnown) {
    if (dtype == dlpack_dtype(entry.dtype, entry.code)) return entry.dtype;
  }
  return std::nullopt;
}

template <typename Array>
HeldArray held(const Array& array, bool is_writable) {
  const auto dtype = dtype_of(array.dtype());
  if (!dtype || array.ndim() > static_cast<std::size_t>(kDimsMax)) {
    throw Error(ErrorCode::unsupported, "memory: an array is of a kind that no parameter has")
        .with("dtype code", static_cast<int>(array.dtype().code))
        .with("bits", static_cast<int>(array.dtype().bits))
        .with("lanes", array.dtype().lanes)
        .with("dimensions", array.ndim());
  }
  HeldArray result;
  result.array.data =
      static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  result.array.dtype = *dtype;
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    result.array.shape.push_back(static_cast<std::int64_t>(array.shape(d)));
    result.array.strides.push_back(array.stride(d));
  }
  result.array.is_writable = is_writable;
  return result;
}

}  // namespace

nb::object numpy_view(const LyingTensor& tensor, nb::handle owner) {
  const KnownDType& entry = known(tensor.dtype);
  const auto dtype = dlpack_dtype(tensor.dtype, entry.is_numpy ? entry.code : Code::UInt);
  return tensor.is_writable ? view<nb::numpy>(tensor, owner, dtype)
                            : view<nb::ro, nb::numpy>(tensor, owner, dtype);
}

nb::object dlpack_view(const LyingTensor& tensor, nb::handle owner) {
  const auto dtype = dlpack_dtype(tensor.dtype, known(tensor.dtype).code);
  return tensor.is_writable ? view<nb::array_api>(tensor, owner, dtype)
                            : view<nb::ro, nb::array_api>(tensor, owner, dtype);
}

nb::object bytes_view(const std::byte* data, std::int64_t bytes, bool is_writable,
                      nb::handle owner) {
  const LyingTensor tensor{data, DType::u8, {bytes}, {1}, is_writable};
  return nb::steal(PyMemoryView_FromObject(dlpack_view(tensor, owner).ptr()));
}

HeldArray hold_array(nb::handle source) {
  // A read-only array is refused where memory is asked for that may be written.
  nb::ndarray<nb::device::cpu> writable;
  if (nb::try_cast(source, writable, /*convert=*/false)) {
    HeldArray result = held(writable, true);
    result.owner =
        nb::cast(nb::ndarray<nb::device::cpu, nb::array_api>(writable), nb::rv_policy::reference);
    return result;
  }
  nb::ndarray<nb::ro, nb::device::cpu> readable;
  if (nb::try_cast(source, readable, /*convert=*/false)) {
    HeldArray result = held(readable, false);
    result.owner = nb::cast(nb::ndarray<nb::ro, nb::device::cpu, nb::array_api>(readable),
                            nb::rv_policy::reference);
    return result;
  }
  throw nb::type_error(
      "memory: an array speaks neither DLPack nor the buffer protocol, or lies on a device");
}

}  // namespace crossmesh::python
