// SPDX-License-Identifier: Apache-2.0
// A rank's parameters in memory, as Python made them: places in memory that was reserved for them,
// or arrays of the caller's. It keeps either alive.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/session/parameter_arrays.h"
#include "crossmesh/session/session.h"

namespace crossmesh::python {

struct PythonMemory {
  Layout layout;
  int rank = 0;
  ParameterMemory memory;
  ParameterArrays arrays;  // empty where the memory was reserved
  std::vector<nanobind::object> owners;
  bool is_writable = true;

  // Throws: as memory_of_arrays, of memory that is taken into.
  void check_taking() const;
};

}  // namespace crossmesh::python
