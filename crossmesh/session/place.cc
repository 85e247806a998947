// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/place.h"

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::int64_t kCacheLineBytes = 64;

}  // namespace

std::int64_t parameter_bytes(const Layout& layout, int rank, int parameter) {
  const Parameter& named = layout.parameters[static_cast<std::size_t>(parameter)];
  const DType dtype =
      layout.parameter_classes[static_cast<std::size_t>(named.parameter_class)].dtype;
  const auto bytes = bytes_of(dtype, storage_elements(local_shape(layout, rank, parameter),
                                                      local_strides(layout, rank, parameter)));
  if (bytes) return *bytes;
  throw Error(ErrorCode::unsupported, "place: a parameter does not end on a byte")
      .with("parameter", named.name)
      .with("rank", rank)
      .with("dtype", name_of(dtype))
      .with("shape", to_string(local_shape(layout, rank, parameter)));
}

Placement place_parameters(const Layout& layout, int rank) {
  Placement placement;
  placement.places.resize(layout.parameters.size());
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const int parameter = static_cast<int>(p);
    if (!has_parameter(layout, rank, parameter)) continue;
    const int owner = layout.parameters[p].storage;
    if (owner != parameter) {
      placement.places[p] = placement.places[static_cast<std::size_t>(owner)];
      continue;
    }
    const std::int64_t bytes = parameter_bytes(layout, rank, parameter);
    placement.places[p] = {0, placement.bytes};
    placement.bytes = checked_add(placement.bytes, round_up(bytes, kCacheLineBytes));
    placement.bytes_held += bytes;
  }
  return placement;
}

}  // namespace crossmesh
