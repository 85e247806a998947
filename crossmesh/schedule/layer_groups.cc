// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

bool is_number(std::string_view segment) {
  return !segment.empty() &&
         std::all_of(segment.begin(), segment.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Which layer of which stack. A number may have any length, so it stays text without its zeros.
struct Layer {
  bool is_indexed = false;
  std::string_view stack;
  std::string_view number;
};

Layer layer_of(std::string_view name) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::string_view segment = name.substr(begin, end - begin);
    if (is_number(segment)) {
      segment.remove_prefix(std::min(segment.find_first_not_of('0'), segment.size() - 1));
      return {true, name.substr(0, begin == 0 ? 0 : begin - 1), segment};
    }
    begin = end + 1;
  }
  return {};
}

// Orders layers: by the first appearance of the stack, then by number.
using Key = std::tuple<int, std::size_t, std::string_view>;

std::string name_of_layer(const Layer& layer) {
  if (layer.stack.empty()) return std::string(layer.number);
  return std::string(layer.stack) + "." + std::string(layer.number);
}

}  // namespace

LayerGroups layerwise_groups(const std::vector<std::string_view>& names) {
  constexpr int kBefore = -1;
  constexpr int kAfter = -2;
  std::unordered_map<std::string_view, int> stacks;
  std::map<Key, int> layer_by_key;  // provisional numbers, in order of appearance
  std::vector<std::string> name_by_layer;
  std::vector<int> layer_of_name;
  layer_of_name.reserve(names.size());
  for (const std::string_view name : names) {
    const Layer layer = layer_of(name);
    if (!layer.is_indexed) {
      layer_of_name.push_back(layer_by_key.empty() ? kBefore : kAfter);
      continue;
    }
    const int stack = stacks.emplace(layer.stack, static_cast<int>(stacks.size())).first->second;
    const auto [at, is_new] = layer_by_key.emplace(Key{stack, layer.number.size(), layer.number},
                                                   static_cast<int>(name_by_layer.size()));
    if (is_new) name_by_layer.push_back(name_of_layer(layer));
    layer_of_name.push_back(at->second);
  }
  LayerGroups groups;
  const bool has_before =
      std::find(layer_of_name.begin(), layer_of_name.end(), kBefore) != layer_of_name.end();
  const bool has_after =
      std::find(layer_of_name.begin(), layer_of_name.end(), kAfter) != layer_of_name.end();
  if (has_before) groups.names.push_back("before");
  std::vector<int> group_of_layer(name_by_layer.size(), 0);
  for (const auto& [key, layer] : layer_by_key) {
    group_of_layer[static_cast<std::size_t>(layer)] = static_cast<int>(groups.names.size());
    groups.names.push_back(name_by_layer[static_cast<std::size_t>(layer)]);
  }
  if (has_after) groups.names.push_back("after");
  for (const int layer : layer_of_name) {
    const int last = static_cast<int>(groups.names.size()) - 1;
    groups.group_of_name.push_back(layer == kBefore ? 0
                                   : layer == kAfter
                                       ? last
                                       : group_of_layer[static_cast<std::size_t>(layer)]);
  }
  return groups;
}

}  // namespace crossmesh
