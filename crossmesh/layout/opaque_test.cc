// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/opaque.h"

#include <gtest/gtest.h>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/detail/sample_layout.h"

namespace crossmesh {
namespace {

TEST(Opaque, every_instance_that_matches_gets_the_reason_and_others_keep_theirs) {
  const Layout before = sample_layout();
  Layout expected = before;
  expected.reasons.push_back("asked for");
  for (Instance& instance : expected.instances) {
    const std::string& name = expected.tensors[static_cast<std::size_t>(instance.tensor)].name;
    if (name.ends_with(".w.weight")) instance.opaque_reason = 1;
  }
  ASSERT_NE(expected.instances, before.instances);
  Layout marked = before;
  mark_opaque(marked, "*.w.weight", "asked for");
  EXPECT_EQ(marked, expected);

  Layout all = before;
  mark_opaque(all, "*", "asked for");
  for (std::size_t i = 0; i < all.instances.size(); ++i) {
    const int own = before.instances[i].opaque_reason;
    EXPECT_EQ(all.instances[i].opaque_reason, own < 0 ? 1 : own);
  }
}

TEST(Opaque, a_pattern_that_matches_nothing_is_refused) {
  Layout layout = sample_layout();
  try {
    mark_opaque(layout, "nothing.*", "asked for");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "mark opaque: no tensor of the engine matches\n  pattern  nothing.*");
  }
  EXPECT_EQ(layout, sample_layout());
}

}  // namespace
}  // namespace crossmesh
