// SPDX-License-Identifier: Apache-2.0
// Whether every element of every target parameter is accounted for exactly once.
#pragma once

#include "crossmesh/layout/layout.h"

namespace crossmesh::detail {

// Ensures: on each rank, each element of each storage lies in one piece (of an instance that is
// opaque or not) or one reserve of its owner; equal opaque regions count once. Gaps between the
// rows of a strided parameter belong to nobody, and nobody may fill them.
// Throws: mismatch naming parameter, rank, element and tensors; unsupported where strides do not
// nest.
void prove_coverage(const Layout& target);

}  // namespace crossmesh::detail
