// SPDX-License-Identifier: Apache-2.0
#include "cli/bounded_input.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

constexpr std::int64_t kPartBytes = std::int64_t{1} << 20;

Error unreadable(const std::filesystem::path& path, std::string_view verb, std::string_view why) {
  return Error(ErrorCode::io_failed, fmt::format("{}: the file cannot be read", verb))
      .with("file", path.string())
      .with("system", why);
}

}  // namespace

std::string read_bounded(const std::filesystem::path& path, const FileLimit& limit) {
  // A stream opens a folder, and fails only later and in its own words.
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw unreadable(path, limit.verb, std::strerror(EISDIR));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) throw unreadable(path, limit.verb, std::strerror(errno));
  std::string text;
  // The size of a pipe or a device is not known before it has ended.
  while (file) {
    const std::size_t before = text.size();
    text.resize(before + kPartBytes);
    file.read(text.data() + before, kPartBytes);
    text.resize(before + static_cast<std::size_t>(file.gcount()));
    if (static_cast<std::int64_t>(text.size()) <= limit.bytes_max) continue;
    throw Error(ErrorCode::limit_exceeded, fmt::format("{}: the file is too large", limit.verb))
        .with("file", path.string())
        .with("bytes max", limit.bytes_max);
  }
  if (file.bad()) throw unreadable(path, limit.verb, std::strerror(errno));
  return text;
}

}  // namespace crossmesh::cli
