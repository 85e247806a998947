// SPDX-License-Identifier: Apache-2.0
// What verbs accept where they ask for a catalog: one, or the opened checkpoint that has it.
#pragma once

#include <nanobind/stl/variant.h>

#include <functional>
#include <variant>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/read.h"

namespace crossmesh::python {

using CatalogLike = std::variant<const Catalog*, const Checkpoint*>;

// Throws: invalid_argument for None.
inline const Catalog& catalog_of(const CatalogLike& like) {
  if (const auto* catalog = std::get_if<const Catalog*>(&like); catalog && *catalog) {
    return **catalog;
  }
  if (const auto* checkpoint = std::get_if<const Checkpoint*>(&like); checkpoint && *checkpoint) {
    return (*checkpoint)->catalog();
  }
  throw Error(ErrorCode::invalid_argument, "catalog: it is None");
}

}  // namespace crossmesh::python
