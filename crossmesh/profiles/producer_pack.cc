// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/producer_pack.h"

#include <unordered_set>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {

OpKind served_call(std::string_view name) {
  std::string names;
  for (const OpKind kind : kServedCalls) {
    if (name_of(kind) == name) return kind;
    names += (names.empty() ? "" : ", ") + std::string(name_of(kind));
  }
  throw Error(ErrorCode::unsupported, "serve: disallowed op").with("op", name).with("ops", names);
}

void check_served(const std::vector<std::string>& requested,
                  const std::vector<std::string>& served) {
  const std::unordered_set<std::string_view> is_served(served.begin(), served.end());
  std::string first;
  int count = 0;
  for (const std::string& name : requested) {
    if (is_served.count(name) > 0) continue;
    if (++count <= 3) first += (first.empty() ? "" : ", ") + name;
  }
  if (count == 0) return;
  throw Error(ErrorCode::unsupported, "serve: this is the wrong producer for some names")
      .with("names", count)
      .with("first", first);
}

PackedLayout pack_slices(const ChainBook& book, const std::vector<int>& chains) {
  PackedLayout layout;
  for (const int chain : chains) {
    layout.add(book.geometry(chain).dtype, book.geometry(chain).sizes);
  }
  return layout;
}

}  // namespace crossmesh::profiles
