// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/layout.h"

#include <cassert>

#include "crossmesh/base/checked.h"

namespace crossmesh {
namespace {

int role_of(const Layout& layout, int binding, int rank) {
  return layout.bindings[static_cast<std::size_t>(binding)]
      .role_of_rank[static_cast<std::size_t>(rank)];
}

std::size_t parameter_role(const Layout& layout, int rank, const Parameter& parameter) {
  const int role = role_of(layout, parameter.binding, rank);
  assert(role >= 0);
  return static_cast<std::size_t>(role);
}

}  // namespace

std::vector<PlacedPiece> pieces(const Layout& layout, int rank, int tensor) {
  std::vector<PlacedPiece> placed;
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    const Instance& instance = layout.instances[i];
    if (instance.tensor != tensor) continue;
    const int role = role_of(layout, instance.binding, rank);
    if (role < 0) continue;
    const LayoutClass& c = layout.classes[static_cast<std::size_t>(instance.layout_class)];
    for (const Piece& piece : c.pieces_of_role[static_cast<std::size_t>(role)]) {
      placed.push_back({static_cast<int>(i), instance.parameter, piece});
      placed.back().piece.view.offset += instance.offset;
    }
  }
  return placed;
}

bool has_parameter(const Layout& layout, int rank, int parameter) {
  const Parameter& p = layout.parameters[static_cast<std::size_t>(parameter)];
  return role_of(layout, p.binding, rank) >= 0;
}

const Shape& local_shape(const Layout& layout, int rank, int parameter) {
  const Parameter& p = layout.parameters[static_cast<std::size_t>(parameter)];
  return layout.parameter_classes[static_cast<std::size_t>(p.parameter_class)]
      .shape_of_role[parameter_role(layout, rank, p)];
}

const Strides& local_strides(const Layout& layout, int rank, int parameter) {
  const Parameter& p = layout.parameters[static_cast<std::size_t>(parameter)];
  return layout.parameter_classes[static_cast<std::size_t>(p.parameter_class)]
      .strides_of_role[parameter_role(layout, rank, p)];
}

std::int64_t storage_elements(const Shape& shape, const Strides& strides) {
  assert(shape.size() == strides.size());
  std::int64_t last = 0;
  for (const std::int64_t extent : shape) {
    if (extent == 0) return 0;
  }
  for (int d = 0; d < shape.size(); ++d) {
    last = checked_add(last, checked_mul(shape[d] - 1, strides[d]));
  }
  return checked_add(last, 1);
}

}  // namespace crossmesh
