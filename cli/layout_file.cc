// SPDX-License-Identifier: Apache-2.0
#include "cli/layout_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh::cli {
namespace {

using Json = nlohmann::json;

// Ends the parse where JSON is nested deeper than a layout can be.
Json parse_bounded(const std::string& text) {
  bool too_deep = false;
  const auto look = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kWireDepthMax;
    return !too_deep;
  };
  Json json = Json::parse(text, look, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace

bool names_layout_file(std::string_view spec) { return spec.starts_with('@'); }

Layout read_layout_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorCode::io_failed, "read layout: the file cannot be read")
        .with("file", path.string())
        .with("system", std::strerror(errno));
  }
  const Json json = parse_bounded(text);
  if (json.is_discarded()) {
    throw Error(ErrorCode::corrupt_file, "read layout: the file is not JSON")
        .with("file", path.string());
  }
  try {
    return layout_from_json(json);
  } catch (Error& error) {
    error.with("file", path.string());
    throw;
  }
}

Layout layout_of_spec(std::string_view spec) {
  return read_layout_file(std::filesystem::path(spec.substr(1)));
}

}  // namespace crossmesh::cli
