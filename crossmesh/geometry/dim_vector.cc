// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/dim_vector.h"

#include <fmt/ranges.h>

namespace crossmesh {

std::string to_string(const DimVector& vector) {
  return fmt::format("[{}]", fmt::join(vector.begin(), vector.end(), ", "));
}

}  // namespace crossmesh
