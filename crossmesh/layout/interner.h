// SPDX-License-Identifier: Apache-2.0
// Builds a Layout so that equal geometries, bindings and parameter shapes are stored once.
// Looking one up costs a hash of its value; callers that know their key should keep the index.
#pragma once

#include <unordered_map>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

class Interner {
 public:
  // `layout` is filled in place; it must outlive the interner. What it already holds is found too.
  explicit Interner(Layout& layout);

  int layout_class(LayoutClass value);
  int binding(Binding value);
  // Without `strides_of_role`, every role is contiguous in row-major order.
  int parameter_class(ParameterClass value);

 private:
  Layout& layout_;
  std::unordered_map<Fingerprint, std::vector<int>, FingerprintHash> classes_;
  std::unordered_map<Fingerprint, std::vector<int>, FingerprintHash> bindings_;
  std::unordered_map<Fingerprint, std::vector<int>, FingerprintHash> parameter_classes_;
};

}  // namespace crossmesh
