// SPDX-License-Identifier: Apache-2.0
// For tests: compares a text with the golden file of tests/data that holds it. tools/regolden.py
// runs the same tests with CROSSMESH_REGOLDEN set, and then they write it instead.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace crossmesh {

// A file of tests/data, whole.
inline std::string test_data(const std::string& name) {
  std::ifstream file(CROSSMESH_TEST_DATA "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void expect_golden(const std::string& name, const std::string& text) {
  if (std::getenv("CROSSMESH_REGOLDEN") != nullptr) {
    std::ofstream(CROSSMESH_TEST_DATA "/" + name, std::ios::binary) << text;
    return;
  }
  EXPECT_EQ(text, test_data(name)) << "where the new text is right: tools/regolden.py, and say why";
}

}  // namespace crossmesh
