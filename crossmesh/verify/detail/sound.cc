// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "crossmesh/verify/detail/checks.h"

namespace crossmesh::detail {
namespace {

template <typename Values>
bool has(const Values& values, std::int64_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < values.size();
}

bool is_sound(const Space& space) {
  std::int64_t factors = 0;
  for (const std::int64_t count : space.factor_count) {
    if (count < 1) return false;
    factors += count;
  }
  return factors == space.factors.size() &&
         std::all_of(space.factors.begin(), space.factors.end(),
                     [](std::int64_t factor) { return factor >= 0; });
}

bool is_sound(const Piece& piece, const Space& space) {
  const int rank = space.factors.size();
  if (piece.box.origin.size() != rank || piece.box.shape.size() != rank) return false;
  if (piece.view.strides.size() != rank) return false;
  for (int d = 0; d < rank; ++d) {
    const std::int64_t begin = piece.box.origin[d];
    const std::int64_t extent = piece.box.shape[d];
    if (begin < 0 || extent < 0 || extent > space.factors[d] - begin) return false;
    if (extent > 1 && piece.view.strides[d] < 1) return false;
  }
  return true;
}

std::string find_unsound_classes(const Layout& layout) {
  for (std::size_t c = 0; c < layout.classes.size(); ++c) {
    const LayoutClass& layout_class = layout.classes[c];
    if (!is_sound(layout_class.space)) return fmt::format("class {}: space", c);
    for (std::size_t role = 0; role < layout_class.pieces_of_role.size(); ++role) {
      for (const Piece& piece : layout_class.pieces_of_role[role]) {
        if (is_sound(piece, layout_class.space)) continue;
        return fmt::format("class {}: a piece of role {}", c, role);
      }
    }
  }
  for (std::size_t b = 0; b < layout.bindings.size(); ++b) {
    if (static_cast<int>(layout.bindings[b].role_of_rank.size()) != layout.rank_count) {
      return fmt::format("binding {}: ranks", b);
    }
  }
  return "";
}

std::string find_unsound_parameter_classes(const Layout& layout) {
  for (std::size_t c = 0; c < layout.parameter_classes.size(); ++c) {
    const ParameterClass& p = layout.parameter_classes[c];
    const bool has_strides = !p.strides_of_role.empty();
    if (has_strides && p.strides_of_role.size() != p.shape_of_role.size()) {
      return fmt::format("parameter class {}: strides", c);
    }
    for (std::size_t role = 0; role < p.shape_of_role.size(); ++role) {
      for (int d = 0; d < p.shape_of_role[role].size(); ++d) {
        const bool is_right =
            p.shape_of_role[role][d] >= 0 &&
            (!has_strides || (p.strides_of_role[role].size() == p.shape_of_role[role].size() &&
                              (p.shape_of_role[role][d] < 2 || p.strides_of_role[role][d] > 0)));
        if (!is_right) return fmt::format("parameter class {}: role {}", c, role);
      }
    }
    for (const Reserve& reserve : p.reserves) {
      if (has(p.shape_of_role, reserve.role) &&
          reserve.region.shape.size() == reserve.region.view.strides.size()) {
        continue;
      }
      return fmt::format("parameter class {}: a reserve", c);
    }
  }
  return "";
}

// Whether the roles of a binding, a few of them at once for each distinct user, exist.
bool has_roles(const Binding& binding, std::size_t role_count) {
  return std::all_of(binding.role_of_rank.begin(), binding.role_of_rank.end(),
                     [&](int role) { return role >= -1 && role < static_cast<int>(role_count); });
}

std::string find_unsound_parameters(const Layout& layout) {
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const Parameter& p = layout.parameters[i];
    const bool is_right =
        has(layout.parameter_classes, p.parameter_class) && has(layout.bindings, p.binding) &&
        has(layout.parameters, p.storage) &&
        layout.parameters[static_cast<std::size_t>(p.storage)].storage == p.storage;
    if (!is_right) return fmt::format("parameter {}: an index", i);
  }
  return "";
}

std::string find_unsound_instances(const Layout& layout) {
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    const Instance& instance = layout.instances[i];
    const bool is_right =
        has(layout.tensors, instance.tensor) && has(layout.parameters, instance.parameter) &&
        has(layout.classes, instance.layout_class) && has(layout.bindings, instance.binding) &&
        instance.offset >= 0 &&
        (instance.opaque_reason == -1 || has(layout.reasons, instance.opaque_reason));
    if (!is_right) return fmt::format("instance {}: an index", i);
    // The regions of an opaque tensor may be told in any space.
    if (instance.opaque_reason >= 0) continue;
    const LayoutClass& c = layout.classes[static_cast<std::size_t>(instance.layout_class)];
    const TensorInfo& tensor = layout.tensors[static_cast<std::size_t>(instance.tensor)];
    const Shape shape = tensor_shape(c.space);
    if (tensor.dtype != c.dtype) {
      return fmt::format("instance {}: its class has another dtype than its tensor", i);
    }
    if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) {
      return fmt::format("instance {}: its class has another shape than its tensor", i);
    }
  }
  return "";
}

// Each pair of a class and a binding is looked at once.
std::string find_unsound_roles(const Layout& layout) {
  std::vector<bool> seen(layout.classes.size() * layout.bindings.size(), false);
  for (const Instance& instance : layout.instances) {
    const auto c = static_cast<std::size_t>(instance.layout_class);
    const auto b = static_cast<std::size_t>(instance.binding);
    if (seen[c * layout.bindings.size() + b]) continue;
    seen[c * layout.bindings.size() + b] = true;
    if (!has_roles(layout.bindings[b], layout.classes[c].pieces_of_role.size())) {
      return fmt::format("binding {}: roles of class {}", b, c);
    }
  }
  seen.assign(layout.parameter_classes.size() * layout.bindings.size(), false);
  for (const Parameter& parameter : layout.parameters) {
    const auto c = static_cast<std::size_t>(parameter.parameter_class);
    const auto b = static_cast<std::size_t>(parameter.binding);
    if (seen[c * layout.bindings.size() + b]) continue;
    seen[c * layout.bindings.size() + b] = true;
    if (!has_roles(layout.bindings[b], layout.parameter_classes[c].shape_of_role.size())) {
      return fmt::format("binding {}: roles of parameter class {}", b, c);
    }
  }
  return "";
}

}  // namespace

std::string find_unsound(const Layout& layout) {
  if (static_cast<int>(layout.replica_of_rank.size()) != layout.rank_count) return "replicas";
  for (auto* find : {find_unsound_classes, find_unsound_parameter_classes, find_unsound_parameters,
                     find_unsound_instances, find_unsound_roles}) {
    std::string found = find(layout);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace crossmesh::detail
