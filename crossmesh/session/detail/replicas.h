// SPDX-License-Identifier: Apache-2.0
// Whether trainer ranks that should hold equal weights do. Engines take their parts from several of
// them, to share the work, and would otherwise serve a mixture. It knows bytes and digests; how the
// ranks talk is the caller's.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

// A collective: everyone gives, everyone gets all, by rank, trainers first.
using Exchange =
    std::function<std::vector<nlohmann::json>(std::string_view tag, const nlohmann::json& value)>;

// Compares, digest by digest, what trainer ranks hold as replicas of each other. `parameters[p]` is
// where parameter p of `source` lies on this rank: null where it has none, as on engines.
// Throws, on every rank: mismatch naming the first tensor, both ranks and both digests, and how
// many tensors differ between the two.
void compare_replicas(const Layout& source, int rank,
                      const std::vector<const std::byte*>& parameters, const Exchange& exchange);

}  // namespace crossmesh
