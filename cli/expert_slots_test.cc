// SPDX-License-Identifier: Apache-2.0
#include "cli/expert_slots.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/temporary_folder.h"
#include "crossmesh/catalog/write.h"

namespace crossmesh::cli {
namespace {

TEST(ExpertSlots, are_rows_of_experts) {
  const catalog_testing::TemporaryFolder folder;
  const std::string path = folder.path() / "slots.json";
  write_text(path, "[[0, 1, 2, 0],\n [2, 2147483647, 0, 1]]\n");
  EXPECT_EQ(read_expert_slots(path),
            (std::vector<std::vector<int>>{{0, 1, 2, 0}, {2, 2147483647, 0, 1}}));
  EXPECT_EQ(read_expert_slots(""), (std::vector<std::vector<int>>{}));
}

TEST(ExpertSlots, what_is_no_list_of_rows_is_refused) {
  const catalog_testing::TemporaryFolder folder;
  for (const char* text : {"", "{}", "[]", "[0, 1]", "[[]]", "[[0], []]", "[[0, -1]]", "[[0.5]]",
                           "[[\"0\"]]", "[[2147483648]]", "[[0, 1]"}) {
    const std::string path = folder.path() / "slots.json";
    write_text(path, text);
    try {
      read_expert_slots(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(name_of(error.code())) + ": " + error.text(),
                "corrupt_file: read expert slots: it is no list of rows of experts\n  file  " +
                    path +
                    "\n  hint  write [[0, 1, 2, 0]]: a row for all layers, or one for each that "
                    "has experts");
    }
  }
}

TEST(ExpertSlots, what_cannot_be_read_as_a_file_is_named) {
  const catalog_testing::TemporaryFolder folder;
  for (const auto& [path, system] :
       {std::pair(folder.path() / "none.json", "No such file or directory"),
        std::pair(folder.path(), "Is a directory")}) {
    try {
      read_expert_slots(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(name_of(error.code())) + ": " + error.text(),
                "io_failed: read expert slots: the file cannot be read\n  file  " + path.string() +
                    "\n  system  " + system);
    }
  }
}

}  // namespace
}  // namespace crossmesh::cli
