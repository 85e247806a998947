// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "crossmesh/base/checked.h"

namespace crossmesh {

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 1);
  for (int d = shape.size() - 2; d >= 0; --d) {
    strides[d] = checked_mul(strides[d + 1], std::max<std::int64_t>(shape[d + 1], 1));
  }
  return strides;
}

View restrict(const View& view_of_outer, const Box& outer, const Box& inner) {
  assert(outer.origin.size() == inner.origin.size());
  assert(outer.origin.size() == view_of_outer.strides.size());
  View view = view_of_outer;
  for (int d = 0; d < inner.origin.size(); ++d) {
    const std::int64_t steps = inner.origin[d] - outer.origin[d];
    view.offset = checked_add(view.offset, checked_mul(steps, view.strides[d]));
  }
  return view;
}

std::string to_string(const StridedRegion& region) {
  return fmt::format("{}:{}+{}", to_string(region.shape), to_string(region.view.strides),
                     region.view.offset);
}

}  // namespace crossmesh
