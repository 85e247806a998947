// SPDX-License-Identifier: Apache-2.0
#include "cli/expert_slots.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/bounded_input.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kBytesMax = std::int64_t{64} << 20;
constexpr int kDepthMax = 2;

bool is_expert(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<int>::max()};
}

bool is_row(const Json& value) {
  return value.is_array() && !value.empty() && std::ranges::all_of(value, is_expert);
}

}  // namespace

std::vector<std::vector<int>> read_expert_slots(const std::string& path) {
  if (path.empty()) return {};
  const auto table =
      parse_bounded<Json>(read_bounded(path, {"read expert slots", kBytesMax}), kDepthMax);
  if (!table.is_array() || table.empty() || !std::ranges::all_of(table, is_row)) {
    throw Error(ErrorCode::corrupt_file, "read expert slots: it is no list of rows of experts")
        .with("file", path)
        .hint("write [[0, 1, 2, 0]]: a row for all layers, or one for each that has experts");
  }
  return table.get<std::vector<std::vector<int>>>();
}

}  // namespace crossmesh::cli
