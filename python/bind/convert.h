// SPDX-License-Identifier: Apache-2.0
// How values cross between Python and C++: dtypes by name, shapes as tuples, errors as exceptions.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <string>
#include <variant>

#include "crossmesh/base/dtype.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh::python {

// Sets the Python error of this thread, a crossmesh.Error. Requires: the GIL is held.
void raise(const Error& error);

using DTypeOrName = std::variant<DType, std::string>;

// Throws: invalid_argument where no dtype has the name.
DType dtype_of(const DTypeOrName& dtype);

// The word that C++ and Python use: `f8_e4m3`.
const char* enumerator_of(DType dtype);

}  // namespace crossmesh::python

// Shapes, indexes and strides are tuples of integers; any sequence of them will do.
template <>
struct nanobind::detail::type_caster<crossmesh::DimVector> {
  NB_TYPE_CASTER(crossmesh::DimVector, const_name("tuple[int, ...]"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = {};
    if (!PySequence_Check(source.ptr()) || PyUnicode_Check(source.ptr())) return false;
    const Py_ssize_t size = PySequence_Size(source.ptr());
    if (size < 0 || size > crossmesh::kDimsMax) {
      PyErr_Clear();
      return false;
    }
    for (Py_ssize_t i = 0; i < size; ++i) {
      const object item = steal(PySequence_GetItem(source.ptr(), i));
      std::int64_t extent = 0;
      if (!item.is_valid() || !try_cast(item, extent)) {
        PyErr_Clear();
        return false;
      }
      value.push_back(extent);
    }
    return true;
  }

  static handle from_cpp(const crossmesh::DimVector& vector, rv_policy, cleanup_list*) noexcept {
    PyObject* tuple = PyTuple_New(vector.size());
    if (!tuple) return {};
    for (int i = 0; i < vector.size(); ++i) {
      PyObject* item = PyLong_FromLongLong(vector[i]);
      if (!item) {
        Py_DECREF(tuple);
        return {};
      }
      PyTuple_SetItem(tuple, i, item);
    }
    return tuple;
  }
};
