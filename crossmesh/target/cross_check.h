// SPDX-License-Identifier: Apache-2.0
// Two layouts of one engine rank that were made in different ways (resolved from loaders' marks,
// recorded from a run of the loaders) held against each other: a tensor that both write directly
// must lie alike, element for element. What either calls opaque is not compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

// One rank of a layout. The layout must outlive it.
struct RankLayout {
  std::string name;  // how the layout was made, for texts: `resolution`, `bake`
  const Layout& layout;
  int rank = 0;
};

// An element of which two layouts say different things: where it lies in its parameter, on both
// sides, in elements of the storage. Empty: not there.
struct Disagreement {
  std::string tensor;
  std::string parameter;
  std::vector<std::int64_t> index;  // of the element in its tensor
  std::vector<std::int64_t> first_places;
  std::vector<std::int64_t> second_places;
  std::int64_t element_count = 0;  // that differ, of the tensor in this parameter

  bool operator==(const Disagreement&) const = default;
};

// The first in the order of the first layout's tensors; nothing where the layouts agree.
std::optional<Disagreement> first_disagreement(const RankLayout& first, const RankLayout& second);

// Throws: mismatch that shows both.
void cross_check(const RankLayout& resolution, const RankLayout& bake);

}  // namespace crossmesh
