// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/opaque.h"

#include "crossmesh/base/error.h"
#include "crossmesh/base/glob.h"

namespace crossmesh {

void mark_opaque(Layout& target, std::string_view pattern, std::string_view reason) {
  const int reason_index = static_cast<int>(target.reasons.size());
  bool found = false;
  for (Instance& instance : target.instances) {
    const TensorInfo& tensor = target.tensors[static_cast<std::size_t>(instance.tensor)];
    if (!glob_matches(pattern, tensor.name)) continue;
    found = true;
    if (instance.opaque_reason < 0) instance.opaque_reason = reason_index;
  }
  if (!found) {
    throw Error(ErrorCode::invalid_argument, "mark opaque: no tensor of the engine matches")
        .with("pattern", pattern);
  }
  target.reasons.emplace_back(reason);
}

}  // namespace crossmesh
