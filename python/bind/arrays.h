// SPDX-License-Identifier: Apache-2.0
// Memory as Python sees it: views of ours for NumPy, DLPack and buffers, and arrays of theirs for
// us. No view is a copy; each keeps its owner alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/dim_vector.h"
#include "crossmesh/session/parameter_arrays.h"

namespace crossmesh::python {

struct LyingTensor {
  const std::byte* data = nullptr;
  DType dtype = DType::u8;
  Shape shape;
  Strides strides;  // in elements
  bool is_writable = false;
};

// A numpy.ndarray; of dtypes that NumPy lacks, the bits as unsigned integers.
// Throws: unsupported for elements that do not fill whole bytes.
nanobind::object numpy_view(const LyingTensor& tensor, nanobind::handle owner);

// An object with `__dlpack__`, in the tensor's own dtype. Throws: as numpy_view.
nanobind::object dlpack_view(const LyingTensor& tensor, nanobind::handle owner);

// A memoryview of bytes that lie side by side.
nanobind::object bytes_view(const std::byte* data, std::int64_t bytes, bool is_writable,
                            nanobind::handle owner);

// An array that Python gave, and what keeps it alive and in place.
struct HeldArray {
  ParameterArray array;
  nanobind::object owner;
};

// Of anything that speaks DLPack or the buffer protocol and lies in the memory of the processor.
// Throws: nanobind::type_error where it does neither; unsupported for dtypes without a name here.
HeldArray hold_array(nanobind::handle source);

}  // namespace crossmesh::python
