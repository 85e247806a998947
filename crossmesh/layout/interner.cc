// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/interner.h"

#include <utility>

namespace crossmesh {
namespace {

using IndexOfFingerprint = std::unordered_map<Fingerprint, std::vector<int>, FingerprintHash>;

// Equal fingerprints are candidates only: values are compared before one stands for the other.
template <typename Value>
int intern(Value value, std::vector<Value>& values, IndexOfFingerprint& index_of_fingerprint) {
  std::vector<int>& candidates = index_of_fingerprint[fingerprint(value)];
  for (const int candidate : candidates) {
    if (values[static_cast<std::size_t>(candidate)] == value) return candidate;
  }
  candidates.push_back(static_cast<int>(values.size()));
  values.push_back(std::move(value));
  return candidates.back();
}

template <typename Value>
void index_all(const std::vector<Value>& values, IndexOfFingerprint& index_of_fingerprint) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    index_of_fingerprint[fingerprint(values[i])].push_back(static_cast<int>(i));
  }
}

}  // namespace

Interner::Interner(Layout& layout) : layout_(layout) {
  index_all(layout.classes, classes_);
  index_all(layout.bindings, bindings_);
  index_all(layout.parameter_classes, parameter_classes_);
}

int Interner::layout_class(LayoutClass value) {
  return intern(std::move(value), layout_.classes, classes_);
}

int Interner::binding(Binding value) {
  return intern(std::move(value), layout_.bindings, bindings_);
}

int Interner::parameter_class(ParameterClass value) {
  if (value.strides_of_role.empty()) {
    value.strides_of_role.reserve(value.shape_of_role.size());
    for (const Shape& shape : value.shape_of_role) {
      value.strides_of_role.push_back(contiguous_strides(shape));
    }
  }
  return intern(std::move(value), layout_.parameter_classes, parameter_classes_);
}

}  // namespace crossmesh
