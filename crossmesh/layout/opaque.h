// SPDX-License-Identifier: Apache-2.0
// Tensors of a target that shall take the fallback, named by a pattern. What makes a tensor opaque
// by itself is the loader's business, and not this.
#pragma once

#include <string_view>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

// Gives every instance of a tensor that `pattern` matches to the fallback, with `reason`; one that
// is opaque already keeps its own reason.
// Throws: invalid_argument when no wanted tensor matches.
void mark_opaque(Layout& target, std::string_view pattern, std::string_view reason);

}  // namespace crossmesh
