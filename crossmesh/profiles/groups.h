// SPDX-License-Identifier: Apache-2.0
// A profile of how produced sources are iterated: names in gather groups (about a decoder layer
// each), the ones that a trainer rank takes part in, and what a source yielded held against them.
// Which group a name is in is schedule/schedule.h's layerwise_groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace crossmesh::profiles {

using NameGroups = std::vector<std::vector<std::string>>;

// The names by group: those before all layers, each layer, those after; each in the order given.
NameGroups name_groups(const std::vector<std::string>& names);

// Of those, the groups with a name that is held; nothing held or `held` absent: none, or all.
NameGroups held_groups(const std::vector<std::string>& names,
                       const std::optional<std::vector<std::string>>& held);

// One group as a source yielded it; `present` is false for names that the rank does not hold.
struct Batch {
  std::vector<std::string> names;
  std::vector<bool> present;

  bool operator==(const Batch&) const = default;
};

// Throws: mismatch where a source yields other names than its groups list, or too few; names
// behind the last group are not looked at.
std::vector<Batch> batches(const std::vector<std::string>& names,
                           const std::optional<std::vector<std::string>>& held,
                           const std::vector<std::string>& yielded);

// Throws: invalid_argument where the names, group after group, are not in the order given.
void check_group_contiguous(const std::vector<std::string>& names);

}  // namespace crossmesh::profiles
