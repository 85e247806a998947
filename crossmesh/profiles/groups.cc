// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/groups.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "crossmesh/base/error.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh::profiles {

NameGroups name_groups(const std::vector<std::string>& names) {
  const LayerGroups layers = layerwise_groups({names.begin(), names.end()});
  NameGroups groups(layers.names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    groups[static_cast<std::size_t>(layers.group_of_name[i])].push_back(names[i]);
  }
  return groups;
}

NameGroups held_groups(const std::vector<std::string>& names,
                       const std::optional<std::vector<std::string>>& held) {
  NameGroups groups = name_groups(names);
  if (!held) return groups;
  const std::unordered_set<std::string_view> is_held(held->begin(), held->end());
  std::erase_if(groups, [&](const std::vector<std::string>& group) {
    return std::none_of(group.begin(), group.end(),
                        [&](const std::string& name) { return is_held.count(name) > 0; });
  });
  return groups;
}

std::vector<Batch> batches(const std::vector<std::string>& names,
                           const std::optional<std::vector<std::string>>& held,
                           const std::vector<std::string>& yielded) {
  std::unordered_set<std::string_view> is_held;
  if (held) is_held.insert(held->begin(), held->end());
  std::vector<Batch> result;
  std::size_t at = 0;
  for (const std::vector<std::string>& group : held_groups(names, held)) {
    Batch batch;
    for (const std::string& name : group) {
      if (at == yielded.size()) {
        throw Error(ErrorCode::mismatch, "iterate: the source's generator raised StopIteration")
            .with("yielded", at)
            .with("expected", name);
      }
      if (yielded[at] != name) {
        throw Error(ErrorCode::mismatch, "iterate: iteration order must match metadata")
            .with("index", at)
            .with("yielded", yielded[at])
            .with("expected", name);
      }
      batch.names.push_back(name);
      batch.present.push_back(!held || is_held.count(name) > 0);
      ++at;
    }
    result.push_back(std::move(batch));
  }
  return result;
}

void check_group_contiguous(const std::vector<std::string>& names) {
  std::size_t at = 0;
  for (const std::vector<std::string>& group : name_groups(names)) {
    for (const std::string& name : group) {
      if (names[at] != name) {
        throw Error(ErrorCode::invalid_argument, "own: metadata is not group-contiguous")
            .with("index", at)
            .with("name", names[at])
            .with("name by groups", name)
            .hint("list the names of a layer one after another, layers in order");
      }
      ++at;
    }
  }
}

}  // namespace crossmesh::profiles
