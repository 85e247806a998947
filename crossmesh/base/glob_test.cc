// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/glob.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

TEST(Glob, patterns_match_whole_names) {
  struct Case {
    std::string_view pattern, text;
    bool matches;
  };
  for (const Case& c : {Case{"*", "", true}, Case{"a*c", "abbc", true}, Case{"a*c", "abbd", false},
                        Case{"*.norm.*", "model.norm.weight", true}, Case{"?.x", "1.x", true},
                        Case{"?.x", "10.x", false}, Case{"", "a", false}, Case{"a**b", "ab", true},
                        Case{"*a*b*", "xaybz", true}, Case{"abc", "ab", false}}) {
    EXPECT_EQ(glob_matches(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
  }
}

}  // namespace
}  // namespace crossmesh
