// SPDX-License-Identifier: Apache-2.0
#include "cli/layout_file.h"

#include <nlohmann/json.hpp>
#include <string>

#include "cli/bounded_input.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh::cli {
namespace {

constexpr std::int64_t kLayoutBytesMax = std::int64_t{1} << 30;

}  // namespace

bool names_layout_file(std::string_view spec) { return spec.starts_with('@'); }

Layout read_layout_file(const std::filesystem::path& path) {
  const std::string text = read_bounded(path, {"read layout", kLayoutBytesMax});
  const auto json = parse_bounded<nlohmann::json>(text, kWireDepthMax);
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
