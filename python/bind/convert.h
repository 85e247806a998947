// SPDX-License-Identifier: Apache-2.0
// How values cross between Python and C++: dtypes by name, shapes as tuples, errors as exceptions.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
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

// Enumerators cross as the words that C++ has for them. A specialization of Words names the
// Literal type, what the word says, and the words.
template <typename E>
struct Words;

template <typename E>
std::string_view word_of(E value) {
  for (const auto& [word, known] : Words<E>::kWords) {
    if (known == value) return word;
  }
  return "";
}

template <typename E>
struct Word {
  std::string text;

  // Throws: invalid_argument listing the words.
  E get() const {
    std::string words;
    for (const auto& [word, value] : Words<E>::kWords) {
      if (word == text) return value;
      words += (words.empty() ? "" : ", ") + std::string(word);
    }
    throw Error(ErrorCode::invalid_argument, std::string(Words<E>::kWhat) + ": no such word")
        .with("word", text)
        .with("words", words);
  }
};

// An index that came from Python. `what` is the verb and the missing thing: `pieces: no such rank`.
// Throws: invalid_argument unless 0 <= index < count.
int checked_index(std::int64_t index, std::size_t count, std::string_view what);

}  // namespace crossmesh::python

template <typename E>
struct nanobind::detail::type_caster<crossmesh::python::Word<E>> {
  NB_TYPE_CASTER(crossmesh::python::Word<E>, crossmesh::python::Words<E>::kLiteral)

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::string> text;
    if (!text.from_python(source, flags, cleanup)) return false;
    value.text = std::move(text.value);
    return true;
  }
};

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
