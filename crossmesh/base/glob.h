// SPDX-License-Identifier: Apache-2.0
// Shell-style patterns over tensor names: `*` is any run of characters (dots too),
// `?` is one character. There are no classes and no escapes.
#pragma once

#include <string_view>

namespace crossmesh {

bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace crossmesh
