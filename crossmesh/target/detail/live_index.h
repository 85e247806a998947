// SPDX-License-Identifier: Apache-2.0
// An engine's parameters by name: second names, and what lies under modules that transform what
// they load. It decides nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "crossmesh/target/resolve.h"

namespace crossmesh::detail {

// The module of a parameter: its name up to the last dot.
std::string_view module_of(std::string_view name);

class LiveIndex {
 public:
  // Throws: as resolve.
  explicit LiveIndex(const ResolveRequest& request);

  // The parameter of that name; nothing for a second name, and for a name that is none.
  std::optional<int> find(std::string_view name) const;
  // Whether the name is one's second, and whose.
  const LiveParameter* alias(std::string_view name) const;
  // All names of a parameter, the first first.
  const std::vector<std::string_view>& names_of(int parameter) const {
    return names_[static_cast<std::size_t>(parameter)];
  }
  // The type that distrusts a parameter under any of its names; empty where none does.
  std::string_view distrusted_by(int parameter) const;
  // The first names of the parameters that a tensor's loader writes, where that is known.
  std::optional<std::vector<int>> fed_by(const AnnouncedTensor& tensor) const;

 private:
  std::size_t index_of(std::string_view name) const;
  int owner(std::string_view name) const;

  const ResolveRequest& request_;
  std::unordered_map<std::string_view, int> by_name_;  // second names too
  std::vector<std::vector<std::string_view>> names_;   // of each parameter; none for second names
  std::unordered_map<int, std::string_view> distrusted_;
};

}  // namespace crossmesh::detail
