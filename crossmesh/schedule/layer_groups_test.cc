// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "crossmesh/schedule/schedule.h"

namespace crossmesh {
namespace {

struct Row {
  std::string_view name;
  std::vector<std::string_view> tensors;
  std::vector<std::string> groups;
  std::vector<int> group_of_name;
};

TEST(LayerwiseGroups, table) {
  const std::string big = "12345678901234567890123456789";
  const std::string big_name = "l." + big + ".a";
  const std::vector<Row> rows = {
      {"no names", {}, {}, {}},
      {"no layers: all before", {"a", "b.c"}, {"before"}, {0, 0}},
      {"a model",
       {"model.embed.weight", "model.layers.0.q", "model.layers.1.q", "model.norm", "lm_head"},
       {"before", "model.layers.0", "model.layers.1", "after"},
       {0, 1, 2, 3, 3}},
      {"numbers order layers, not names",
       {"l.10.a", "l.9.a", "l.2.a"},
       {"l.2", "l.9", "l.10"},
       {2, 1, 0}},
      {"interleaved names coalesce", {"l.0.a", "l.1.a", "l.0.b"}, {"l.0", "l.1"}, {0, 1, 0}},
      {"leading zeros do not matter",
       {"l.01.a", "l.1.b", "l.00.a", "l.0.b"},
       {"l.0", "l.1"},
       {1, 1, 0, 0}},
      {"stacks in order of appearance",
       {"v.1.a", "t.0.a", "v.0.a", "t.1.a"},
       {"v.0", "v.1", "t.0", "t.1"},
       {1, 2, 0, 3}},
      {"the first number counts",
       {"m.layers.3.experts.7.w", "m.layers.3.experts.0.w", "m.layers.2.experts.9.w"},
       {"m.layers.2", "m.layers.3"},
       {1, 1, 0}},
      {"what is no number",
       {"l.-1.a", "l.+1.a", "layer0.a", "l..a", "", "l.1x"},
       {"before"},
       {0, 0, 0, 0, 0, 0}},
      {"a leading number has an empty stack, like one after an empty segment",
       {"3.a", "3", ".3.b", "2"},
       {"2", "3"},
       {1, 1, 1, 0}},
      {"a trailing number counts", {"a.4", "a.4.b"}, {"a.4"}, {0, 0}},
      {"an early final norm still comes last",
       {"l.0.a", "norm", "l.1.a"},
       {"l.0", "l.1", "after"},
       {0, 2, 1}},
      {"numbers of any length", {big_name, "l.9.a"}, {"l.9", "l." + big}, {1, 0}},
  };
  for (const Row& row : rows) {
    const LayerGroups groups = layerwise_groups(row.tensors);
    EXPECT_EQ(groups.names, row.groups) << row.name;
    EXPECT_EQ(groups.group_of_name, row.group_of_name) << row.name;
  }
}

}  // namespace
}  // namespace crossmesh
