// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "crossmesh/layout/detail/sample_layout.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

struct Change {
  const char* name;
  std::function<void(Layout&)> apply;
};

// One change of every field.
std::vector<Change> every_change() {
  return {
      {"model", [](Layout& l) { l.model = "draft"; }},
      {"rank_count", [](Layout& l) { l.rank_count = 5; }},
      {"replica_of_rank", [](Layout& l) { l.replica_of_rank[1] = 1; }},
      {"tensor name", [](Layout& l) { l.tensors[3].name += "x"; }},
      {"tensor dtype", [](Layout& l) { l.tensors[3].dtype = DType::f16; }},
      {"tensor shape", [](Layout& l) { l.tensors[3].shape[1] = 4; }},
      {"class factors", [](Layout& l) { l.classes[2].space.factors[0] = 4; }},
      {"class factor count",
       [](Layout& l) {
         l.classes[2].space.factor_count = {1, 2};
       }},
      {"class dtype", [](Layout& l) { l.classes[1].dtype = DType::f16; }},
      {"class roles", [](Layout& l) { l.classes[1].pieces_of_role.push_back({}); }},
      {"piece added", [](Layout& l) { l.classes[3].pieces_of_role[1].push_back({}); }},
      {"piece origin", [](Layout& l) { l.classes[1].pieces_of_role[0][0].box.origin[0] = 1; }},
      {"piece shape", [](Layout& l) { l.classes[1].pieces_of_role[0][0].box.shape[0] = 1; }},
      {"piece offset", [](Layout& l) { l.classes[1].pieces_of_role[0][0].view.offset = 1; }},
      {"piece stride", [](Layout& l) { l.classes[1].pieces_of_role[0][0].view.strides[1] = 2; }},
      {"binding", [](Layout& l) { l.bindings[0].role_of_rank[3] = 0; }},
      {"binding role -1", [](Layout& l) { l.bindings[1].role_of_rank[3] = 0; }},
      {"parameter dtype", [](Layout& l) { l.parameter_classes[0].dtype = DType::f16; }},
      {"parameter shape", [](Layout& l) { l.parameter_classes[0].shape_of_role[1][0] = 4; }},
      {"parameter strides", [](Layout& l) { l.parameter_classes[0].strides_of_role[1][0] = 4; }},
      {"reserve kind",
       [](Layout& l) { l.parameter_classes[0].reserves[0].kind = Reserve::Kind::kept; }},
      {"reserve role", [](Layout& l) { l.parameter_classes[0].reserves[0].role = 0; }},
      {"reserve shape", [](Layout& l) { l.parameter_classes[0].reserves[0].region.shape[1] = 2; }},
      {"reserve offset",
       [](Layout& l) { l.parameter_classes[0].reserves[0].region.view.offset = 3; }},
      {"reserve strides",
       [](Layout& l) { l.parameter_classes[0].reserves[0].region.view.strides[0] = 1; }},
      {"reserve value", [](Layout& l) { l.parameter_classes[0].reserves[0].value_bits = 0; }},
      {"reserve reason", [](Layout& l) { l.parameter_classes[0].reserves[0].reason = ""; }},
      {"parameter name", [](Layout& l) { l.parameters[2].name += "x"; }},
      {"parameter class", [](Layout& l) { l.parameters[2].parameter_class = 2; }},
      {"parameter binding", [](Layout& l) { l.parameters[2].binding = 1; }},
      {"parameter storage", [](Layout& l) { l.parameters[1].storage = 1; }},
      {"instance tensor", [](Layout& l) { l.instances[1].tensor = 2; }},
      {"instance parameter", [](Layout& l) { l.instances[1].parameter = 4; }},
      {"instance class", [](Layout& l) { l.instances[1].layout_class = 2; }},
      {"instance binding", [](Layout& l) { l.instances[1].binding = 1; }},
      {"instance offset", [](Layout& l) { l.instances[1].offset = 6; }},
      {"instance opaque", [](Layout& l) { l.instances[1].opaque_reason = 0; }},
      {"instance order", [](Layout& l) { std::swap(l.instances[1], l.instances[4]); }},
      {"reason", [](Layout& l) { l.reasons[0] = "another"; }},
      {"unused name", [](Layout& l) { l.unused[0].name = "x"; }},
      {"unused why", [](Layout& l) { l.unused[0].why = "x"; }},
  };
}

TEST(LayoutFingerprint, every_field_counts) {
  const Layout sample = sample_layout();
  std::set<Fingerprint> seen{fingerprint(sample)};
  for (const Change& change : every_change()) {
    Layout changed = sample;
    change.apply(changed);
    ASSERT_NE(changed, sample) << change.name;
    EXPECT_TRUE(seen.insert(fingerprint(changed)).second) << change.name;
  }
}

TEST(LayoutFingerprint, it_is_the_same_in_every_process) {
  EXPECT_EQ(to_string(fingerprint(sample_layout())), "98c93342a67366f8d0358ab764db4d30");
  EXPECT_EQ(to_string(fingerprints_by_tensor(sample_layout())[2]),
            "8b2416392c145f56e44f8fe9a573b9cc");
}

TEST(LayoutFingerprint, by_tensor_a_disagreement_names_its_tensors) {
  const Layout sample = sample_layout();
  const auto before = fingerprints_by_tensor(sample);
  ASSERT_EQ(before.size(), sample.tensors.size());
  const auto changed_by = [&](const std::function<void(Layout&)>& change) {
    Layout layout = sample;
    change(layout);
    const auto after = fingerprints_by_tensor(layout);
    std::vector<std::string> names;
    for (std::size_t t = 0; t < before.size(); ++t) {
      if (before[t] != after[t]) names.push_back(sample.tensors[t].name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(changed_by([](Layout& l) { l.instances[2].offset = 3; }), Names{"layers.0.k.weight"});
  EXPECT_EQ(changed_by([](Layout& l) { l.parameters[2].name += "x"; }),
            (Names{"layers.0.q.weight", "layers.0.k.weight"}));
  EXPECT_EQ(changed_by([](Layout& l) { l.classes[2].pieces_of_role[1][0].view.offset = 1; }),
            (Names{"layers.0.w.weight", "layers.1.w.weight", "layers.2.w.weight"}));
  EXPECT_EQ(changed_by([](Layout& l) { l.reasons[0] = "another"; }), Names{"odd"});
  EXPECT_EQ(changed_by([](Layout& l) { l.bindings[1].role_of_rank[3] = 0; }), Names{"odd"});
  EXPECT_EQ(changed_by([](Layout& l) { l.unused.clear(); }), Names{});
}

TEST(LayoutFingerprint, by_tensor_other_tensors_do_not_matter) {
  const auto few = fingerprints_by_tensor(uniform_layout(3, 4));
  const auto more = fingerprints_by_tensor(uniform_layout(5, 4));
  for (std::size_t t = 0; t < few.size(); ++t) EXPECT_EQ(few[t], more[t]);
}

}  // namespace
}  // namespace crossmesh
