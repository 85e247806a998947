// SPDX-License-Identifier: Apache-2.0
// Layouts that ranks made each for itself, as one layout of all ranks: what is equal on several
// ranks becomes a role that they play, and geometry that is equal anywhere is told once.
#pragma once

#include <span>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

// The layout in which rank r does what `layout_of_rank[r]`, a layout of one rank, says.
// Ensures: pieces, reserves, ties and reasons are the same on each rank. A tensor is unused where
// no rank takes it. Tensors and parameters are in the order in which ranks first tell them.
// Throws: mismatch where ranks tell a tensor or a parameter differently.
Layout merge(std::span<const Layout> layout_of_rank);

}  // namespace crossmesh
