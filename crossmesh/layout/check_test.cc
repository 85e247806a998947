// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/detail/sample_layout.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

struct Row {
  const char* name;
  std::function<void(Layout&)> apply;
  const char* expected;
};

std::string error_of(const Layout& layout) {
  try {
    check(layout);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    return error.text();
  }
  return "no error";
}

void expect_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    Layout layout = sample_layout();
    row.apply(layout);
    EXPECT_EQ(error_of(layout), row.expected) << row.name;
  }
}

TEST(Check, sound_layouts_pass) {
  check(Layout{});
  check(sample_layout());
  check(uniform_layout(7, 12));
}

TEST(Check, ranks_and_names) {
  expect_rows({
      {"negative ranks", [](Layout& l) { l.rank_count = -1; },
       "check layout: the number of ranks is negative\n  ranks  -1"},
      {"replicas", [](Layout& l) { l.replica_of_rank.pop_back(); },
       "check layout: replicas are not told for each rank\n  ranks  4\n  replicas told  3"},
      {"replica", [](Layout& l) { l.replica_of_rank[2] = 4; },
       "check layout: a replica is out of range\n  rank  2\n  replica  4\n  ranks  4"},
      {"binding size", [](Layout& l) { l.bindings[1].role_of_rank.push_back(0); },
       "check layout: a binding does not tell a role for each rank\n  binding  1\n"
       "  roles told  5\n  ranks  4"},
      {"role", [](Layout& l) { l.bindings[1].role_of_rank[3] = -2; },
       "check layout: a role is below -1\n  binding  1\n  rank  3\n  role  -2"},
      {"tensor twice", [](Layout& l) { l.tensors[1].name = "odd"; },
       "check layout: a name is told twice\n  tensor  odd"},
      {"parameter twice", [](Layout& l) { l.parameters[2].name = "odd"; },
       "check layout: a name is told twice\n  parameter  odd"},
      {"extent", [](Layout& l) { l.tensors[1].shape[0] = -4; },
       "check layout: an extent is negative\n  tensor  layers.0.q.weight"},
  });
}

TEST(Check, classes) {
  expect_rows({
      {"factor counts", [](Layout& l) { l.classes[2].space.factor_count[1] = 2; },
       "check layout: a space is malformed\n  class  2\n  factors  [2, 2, 3]\n"
       "  factors of dimensions  [2, 2]"},
      {"a dimension without factors",
       [](Layout& l) {
         l.classes[2].space.factor_count = {3, 0};
       },
       "check layout: a space is malformed\n  class  2\n  factors  [2, 2, 3]\n"
       "  factors of dimensions  [3, 0]"},
      {"a negative factor", [](Layout& l) { l.classes[2].space.factors[1] = -2; },
       "check layout: a space is malformed\n  class  2\n  factors  [2, -2, 3]\n"
       "  factors of dimensions  [2, 1]"},
      {"a box too far", [](Layout& l) { l.classes[1].pieces_of_role[1][0].box.origin[0] = 3; },
       "check layout: a piece is outside its space\n  class  1\n  role  1\n  origin  [3, 0]\n"
       "  shape  [2, 3]\n  strides  [3, 1]\n  space  [4, 3]"},
      {"a box of other dimensions",
       [](Layout& l) { l.classes[1].pieces_of_role[1][0].box.origin = {2}; },
       "check layout: a piece is outside its space\n  class  1\n  role  1\n  origin  [2]\n"
       "  shape  [2, 3]\n  strides  [3, 1]\n  space  [4, 3]"},
      {"a negative origin", [](Layout& l) { l.classes[1].pieces_of_role[1][0].box.origin[0] = -1; },
       "check layout: a piece is outside its space\n  class  1\n  role  1\n  origin  [-1, 0]\n"
       "  shape  [2, 3]\n  strides  [3, 1]\n  space  [4, 3]"},
      {"strides of other dimensions",
       [](Layout& l) { l.classes[1].pieces_of_role[1][0].view.strides.push_back(1); },
       "check layout: a piece is outside its space\n  class  1\n  role  1\n  origin  [2, 0]\n"
       "  shape  [2, 3]\n  strides  [3, 1, 1]\n  space  [4, 3]"},
      {"overlap", [](Layout& l) { l.classes[3].pieces_of_role[0][0].box.shape[0] = 2; },
       "check layout: pieces of one role overlap\n  class  3\n  role  0\n  first  [0:2]\n"
       "  second  [1:4]"},
  });
}

TEST(Check, parameter_classes) {
  expect_rows({
      {"roles", [](Layout& l) { l.parameter_classes[1].strides_of_role.pop_back(); },
       "check layout: shapes and strides are not told for the same roles\n  parameter class  1\n"
       "  shapes  2\n  strides  1"},
      {"a negative stride", [](Layout& l) { l.parameter_classes[1].strides_of_role[1][0] = -3; },
       "check layout: the shape of a parameter is malformed\n  parameter class  1\n  role  1\n"
       "  shape  [4, 3]\n  strides  [-3, 1]"},
      {"a reserve's role", [](Layout& l) { l.parameter_classes[0].reserves[0].role = 2; },
       "check layout: the role of a reserve is out of range\n  parameter class  0\n  reserve  0\n"
       "  role  2"},
      {"a reserve's strides",
       [](Layout& l) { l.parameter_classes[0].reserves[0].region.view.strides = {1}; },
       "check layout: the region of a reserve is malformed\n  parameter class  0\n  reserve  0\n"
       "  region  [1, 3]:[1]+6"},
      {"a reserve's place",
       [](Layout& l) { l.parameter_classes[0].reserves[0].region.view.offset = 7; },
       "check layout: a reserve is outside its parameter\n  parameter class  0\n  reserve  0\n"
       "  role  1\n  region  [1, 3]:[3, 1]+7\n  elements  9"},
  });
}

TEST(Check, parameters) {
  expect_rows({
      {"class", [](Layout& l) { l.parameters[2].parameter_class = 5; },
       "check layout: an index is out of range\n  parameter  layers.0.qk.weight\n  class  5\n"
       "  count  5"},
      {"binding", [](Layout& l) { l.parameters[2].binding = -1; },
       "check layout: an index is out of range\n  parameter  layers.0.qk.weight\n  binding  -1\n"
       "  count  2"},
      {"storage", [](Layout& l) { l.parameters[2].storage = 99; },
       "check layout: an index is out of range\n  parameter  layers.0.qk.weight\n  storage  99\n"
       "  count  10"},
      {"role", [](Layout& l) { l.bindings[0].role_of_rank[1] = 2; },
       "check layout: an index is out of range\n  parameter  embed.weight\n  role  2\n  count  2"},
      {"tied backwards",
       [](Layout& l) { l.parameters[0].storage = 1, l.parameters[1].storage = 1; },
       "check layout: the owner of a storage is not its first name\n  parameter  embed.weight\n"
       "  owner  head.weight"},
      {"tied to a smaller one", [](Layout& l) { l.parameters[4].storage = 3; },
       "check layout: a name does not fit into the storage that it shares\n"
       "  parameter  layers.1.qk.weight\n  owner  layers.0.w.weight\n  rank  0"},
      {"tied to one that is not there",
       [](Layout& l) { l.parameters[1].binding = 0, l.parameters[0].binding = 1; },
       "check layout: a name does not fit into the storage that it shares\n"
       "  parameter  head.weight\n  owner  embed.weight\n  rank  1"},
  });
}

TEST(Check, instances) {
  expect_rows({
      {"tensor", [](Layout& l) { l.instances[1].tensor = 11; },
       "check layout: an index is out of range\n  instance  1\n  tensor  11\n  count  11"},
      {"parameter", [](Layout& l) { l.instances[1].parameter = 10; },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  parameter  10\n"
       "  count  10"},
      {"class", [](Layout& l) { l.instances[1].layout_class = 4; },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  class  4\n"
       "  count  4"},
      {"binding", [](Layout& l) { l.instances[1].binding = 2; },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  binding  2\n"
       "  count  2"},
      {"reason", [](Layout& l) { l.instances[1].opaque_reason = 1; },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  reason  1\n"
       "  count  1"},
      {"negative reason", [](Layout& l) { l.instances[1].opaque_reason = -2; },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  reason  -2\n"
       "  count  1"},
      {"role", [](Layout& l) { l.classes[1].pieces_of_role.pop_back(); },
       "check layout: an index is out of range\n  tensor  layers.0.q.weight\n  role  1\n"
       "  count  1"},
      {"shape",
       [](Layout& l) {
         l.tensors[1].shape = {3, 4};
       },
       "check layout: the space of a class is not its tensor's\n  tensor  layers.0.q.weight\n"
       "  shape  [3, 4]\n  class  1\n  space  [4, 3]"},
      {"too far", [](Layout& l) { l.instances[2].offset = 7; },
       "check layout: a view is outside its parameter\n  tensor  layers.0.k.weight\n"
       "  parameter  layers.0.qk.weight\n  class  1\n  rank  0\n  offset  7\n  least  0\n"
       "  most  6"},
      {"too early", [](Layout& l) { l.instances[2].offset = -1; },
       "check layout: a view is outside its parameter\n  tensor  layers.0.k.weight\n"
       "  parameter  layers.0.qk.weight\n  class  1\n  rank  0\n  offset  -1\n  least  0\n"
       "  most  6"},
      {"on one rank only", [](Layout& l) { l.classes[1].pieces_of_role[1][0].view.offset = 1; },
       "check layout: a view is outside its parameter\n  tensor  layers.0.k.weight\n"
       "  parameter  layers.0.qk.weight\n  class  1\n  rank  1\n  offset  6\n  least  -1\n"
       "  most  5"},
      {"wider elements", [](Layout& l) { l.classes[1].dtype = DType::f32; },
       "check layout: a view is outside its parameter\n  tensor  layers.0.k.weight\n"
       "  parameter  layers.0.qk.weight\n  class  1\n  rank  0\n  offset  6\n  least  0\n"
       "  most  0"},
      {"a rank without the parameter", [](Layout& l) { l.parameters[3].binding = 1; },
       "check layout: a piece lies in a parameter that its rank lacks\n"
       "  tensor  layers.0.w.weight\n  parameter  layers.0.w.weight\n  class  2\n  rank  1"},
  });
}

TEST(Check, overflow_is_an_error) {
  Layout layout = sample_layout();
  layout.classes[1].pieces_of_role[0][0].view.strides[0] = INT64_MAX;
  layout.classes[1].pieces_of_role[0][0].view.offset = 1;
  try {
    check(layout);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit_exceeded);
  }
}

}  // namespace
}  // namespace crossmesh
