// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "crossmesh/base/dtype.h"
#include "crossmesh/base/error.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {
namespace {

// Raises crossmesh.Error, which Python defines: a type of this module could not have attributes.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace

void raise(const Error& error) {
  const ErrorParts parts = parts_of(error);
  nb::dict facts;
  for (const auto& [key, value] : parts.facts) {
    const nb::str name(key.c_str(), key.size());
    // A key that occurs again tells more of the same.
    const std::string before =
        facts.contains(name) ? nb::cast<std::string>(facts[name]) + "\n" : std::string();
    facts[name] = before + value;
  }
  const nb::object type = nb::module_::import_("crossmesh._error").attr("Error");
  const nb::object value =
      type(name_of(error.code()), parts.summary, facts, parts.hint, "text"_a = error.text());
  PyErr_SetObject(type.ptr(), value.ptr());
}

void bind_base(nb::module_& m) {
  nb::register_exception_translator(translate_error);

  nb::enum_<DType> dtype(m, "DType", "The type of a tensor's elements.");
  for (int i = 0; i < kDTypeCount; ++i) {
    dtype.value(enumerator_of(static_cast<DType>(i)), static_cast<DType>(i));
  }

  m.def("dtype_from_name", &dtype_from_name, "name"_a,
        R"(Reads a safetensors name (`BF16`), or torch's (`bfloat16`, `torch.float16`).

Returns:
    The dtype, or None where no dtype has this name.

Example:
    >>> crossmesh.dtype_from_name("BF16") == crossmesh.dtype_from_name("torch.bfloat16")
    True
)");
  m.def("name_of", nb::overload_cast<DType>(&name_of), "dtype"_a,
        R"(Returns the name of a dtype in a safetensors header.

Example:
    >>> crossmesh.name_of(crossmesh.DType.f8_e4m3)
    'F8_E4M3'
)");
  m.def("bit_size", &bit_size, "dtype"_a,
        R"(Returns the bits of one element: 4 for `f4`, 6 for the `f6` types.

Example:
    >>> crossmesh.bit_size(crossmesh.DType.bf16)
    16
)");
  m.def(
      "is_castable",
      [](DTypeOrName source, DTypeOrName target) {
        return is_castable(dtype_of(source), dtype_of(target));
      },
      "source"_a, "target"_a,
      R"(Whether an update converts elements of `source` into elements of `target`.

It does between any two of F32, F16 and BF16, as `torch.Tensor.copy_` does, bit for bit.

Raises:
    crossmesh.Error: invalid_argument: a name is not a dtype's.

Example:
    >>> crossmesh.is_castable("F32", "BF16"), crossmesh.is_castable("F32", "I8")
    (True, False)
)");
}

}  // namespace crossmesh::python
