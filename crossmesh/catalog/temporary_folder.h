// SPDX-License-Identifier: Apache-2.0
// For tests: a folder of a test's own, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace crossmesh::catalog_testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "crossmesh-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code failure;
    std::filesystem::remove_all(path_, failure);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  std::filesystem::path put(std::string_view name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The length of `json`, `json`, then `data_bytes` zeros: a file, right or wrong.
inline std::string file_with_header(std::string_view json, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(static_cast<unsigned long long>(json.size()) >> (8 * i) & 0xFF);
  }
  return file.append(json).append(data_bytes, '\0');
}

}  // namespace crossmesh::catalog_testing
