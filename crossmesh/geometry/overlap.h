// SPDX-License-Identifier: Apache-2.0
// Whether boxes of one space are disjoint. It compares borders: its cost grows with the number of
// boxes, about n log n for boxes that tile, and not with their elements.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "crossmesh/geometry/box.h"

namespace crossmesh {

// Indices of two boxes that share an element, the smaller one first; nothing when all are disjoint.
// Requires: equal ranks.
std::optional<std::pair<int, int>> find_overlap(std::span<const Box> boxes);

}  // namespace crossmesh
