// SPDX-License-Identifier: Apache-2.0
// A rank's parameters where the caller's own arrays lie, checked against the layout: names, dtypes,
// shapes and strides. It owns no memory and copies none.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/view.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/session/session.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh {

struct ParameterArray {
  std::byte* data = nullptr;  // of the first element
  DType dtype = DType::u8;  // or the unsigned integer of as many bits, where a library has no such
                            // dtype
  Shape shape;
  Strides strides;  // in elements
  bool is_writable = true;
};

struct ParameterArrays {
  std::map<std::string, ParameterArray> array_by_name;
  std::vector<Buffer> enclosing;  // larger memory that arrays may lie in, such as a shareable one
};

enum class MemoryUse : std::uint8_t { give, take };

// The memory of rank `rank` of a side. Of parameters that share a storage the owner's name is
// enough. Arrays inside an enclosing buffer are places in it; each other is a buffer of its own.
// Requires: 0 <= rank < layout.rank_count.
// Throws: invalid_argument, naming the parameter: it has no array, an array has no parameter here,
// has no address, or is taken into and is read-only or overlaps another; mismatch: the array has
// another dtype, shape or strides than the layout, or lies apart from the one whose storage it
// shares; unsupported for a parameter that does not end on a byte.
ParameterMemory memory_of_arrays(const Layout& layout, int rank, const ParameterArrays& arrays,
                                 MemoryUse use);

}  // namespace crossmesh
