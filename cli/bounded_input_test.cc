// SPDX-License-Identifier: Apache-2.0
#include "cli/bounded_input.h"

#include <gtest/gtest.h>

#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/temporary_folder.h"
#include "crossmesh/catalog/write.h"

namespace crossmesh::cli {
namespace {

using nlohmann::json;

std::string refusal_of(const std::filesystem::path& path, std::int64_t bytes_max) {
  try {
    read_bounded(path, {"read it", bytes_max});
    return "none";
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
}

TEST(BoundedInput, a_file_is_read_whole_up_to_its_limit) {
  const catalog_testing::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "text";
  const std::string text(std::size_t{3} << 20, 'x');
  write_text(path, text);
  EXPECT_EQ(read_bounded(path, {"read it", std::int64_t{3} << 20}), text);
  EXPECT_EQ(refusal_of(path, (std::int64_t{3} << 20) - 1),
            "limit_exceeded: read it: the file is too large\n  file  " + path.string() +
                "\n  bytes max  3145727");
  write_text(path, "");
  EXPECT_EQ(read_bounded(path, {"read it", 0}), "");
}

TEST(BoundedInput, a_device_without_end_is_refused) {
  EXPECT_EQ(refusal_of("/dev/zero", 1 << 22),
            "limit_exceeded: read it: the file is too large\n  file  /dev/zero\n"
            "  bytes max  4194304");
}

TEST(BoundedInput, a_folder_and_what_is_not_there_are_named) {
  const catalog_testing::TemporaryFolder folder;
  EXPECT_EQ(refusal_of(folder.path(), 1), "io_failed: read it: the file cannot be read\n  file  " +
                                              folder.path().string() +
                                              "\n  system  Is a directory");
  const std::filesystem::path path = folder.path() / "none";
  EXPECT_EQ(refusal_of(path, 1), "io_failed: read it: the file cannot be read\n  file  " +
                                     path.string() + "\n  system  No such file or directory");
}

TEST(BoundedInput, json_is_as_deep_as_it_may_be) {
  EXPECT_EQ(parse_bounded<json>("[[0]]", 2), json::parse("[[0]]"));
  EXPECT_TRUE(parse_bounded<json>("[[0]]", 1).is_discarded());
  EXPECT_TRUE(parse_bounded<json>("[[0]", 2).is_discarded());
  EXPECT_TRUE(parse_bounded<json>(std::string(1'000'000, '['), 2).is_discarded());
}

}  // namespace
}  // namespace crossmesh::cli
