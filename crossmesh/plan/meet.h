// SPDX-License-Identifier: Apache-2.0
// A source class met with a target class: which boxes go from which role to which role. It knows
// roles and geometry, and neither ranks, names nor dtypes.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/plan/plan.h"

namespace crossmesh {

// Boxes that one side of a class may be cut into where refinements do not nest.
inline constexpr std::int64_t kFlatPiecesMax = 4096;

// The copies that give each target role each element of its boxes exactly once. Where n source
// roles have pieces with equal boxes, target role q reads from the (q mod n)-th of them.
//
// Ensures: copies are ordered by (target role, source role, target offset), have no dimension of
// extent 1 and none that continues the one before it on both sides. The class indices and the
// conversion are left for the caller to set.
// Throws: mismatch: tensor shapes differ, or no source role holds a wanted box; unsupported:
// refinements that do not nest, and take more than kFlatPiecesMax boxes.
PlanClass meet(const LayoutClass& source, const LayoutClass& target);

// The source class met with one role that wants the whole tensor, contiguous and row-major.
PlanClass meet_whole(const LayoutClass& source);

// Distinct elements in the boxes of the target roles of these classes. A role counts where some
// rank of the binding plays it; where there is no binding, always.
// Requires: the classes are of one tensor. Throws: unsupported as `meet`.
struct WantedClass {
  const LayoutClass* layout_class = nullptr;
  const Binding* binding = nullptr;
};
std::int64_t wanted_elements(const std::vector<WantedClass>& wanted);

}  // namespace crossmesh
