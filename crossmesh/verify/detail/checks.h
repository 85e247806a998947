// SPDX-License-Identifier: Apache-2.0
// The checks that a verdict is made of. Each stands alone, and reads the layouts afresh.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/verify/detail/faults.h"

namespace crossmesh::detail {

// Whether indices, sizes and boxes of a layout are in range, so that the other checks may follow
// them. Empty when they are.
std::string find_unsound(const Layout& layout);

// Whether each source piece lies inside its parameter, and no two tensors share a place of one
// parameter. Requires: find_unsound found nothing.
void check_source_places(const Layout& source, Faults& faults);

// Whether each element of each target parameter is claimed exactly once.
// Requires: find_unsound found nothing.
void check_target_places(const Layout& target, Faults& faults);

// Whether a class's copies give each target role exactly its elements, from roles that hold them,
// and are in the form and order that the plan promises.
std::vector<Finding> check_class(const PlanClass& c, const LayoutClass& source,
                                 const LayoutClass& target);

// Elements in at least one of `boxes`, by slabs between their borders.
std::int64_t count_union(const std::vector<Box>& boxes);

}  // namespace crossmesh::detail
