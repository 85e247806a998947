// SPDX-License-Identifier: Apache-2.0
// Input of others, kept within bounds while it is read: files by their bytes, JSON by its depth.
// What the JSON says is for its reader to judge.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace crossmesh::cli {

struct FileLimit {
  std::string_view verb;  // `read run`, for the texts of errors
  std::int64_t bytes_max = 0;
};

// The whole text of a file, or of a pipe.
// Throws: io_failed where it cannot be read; limit_exceeded where it is longer.
std::string read_bounded(const std::filesystem::path& path, const FileLimit& limit);

// A discarded value where the text is no JSON, or JSON nested deeper than `depth_max`.
template <typename Json>
Json parse_bounded(std::string_view text, int depth_max) {
  bool too_deep = false;
  const auto look = [&](int depth, typename Json::parse_event_t, Json&) {
    too_deep |= depth > depth_max;
    return !too_deep;
  };
  Json json = Json::parse(text, look, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace crossmesh::cli
