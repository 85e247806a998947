// SPDX-License-Identifier: Apache-2.0
// Every recorded resolution of golden_resolution.jsonl, as the old system's function returned it.
// It closes by names alone, which misses a renamed tensor; resolve_test.cc says what is right.
#include <gtest/gtest.h>

#include "crossmesh/target/golden.h"

namespace crossmesh {
namespace {

using testing::json;
using testing::Line;

class GoldenResolve : public ::testing::TestWithParam<Line> {};

TEST_P(GoldenResolve, equals_what_was_recorded) {
  const json& input = GetParam().text["input"];
  ResolveRequest request = testing::resolve_request(input);
  request.rank_count = input["num_workers"];
  request.shard_count = input["shard_axis_size"];
  if (!input["allow_direct"].get<bool>()) request.distrust_all = "quantised";
  for (const json& row : input["checkpoint"]) {
    request.tensors.push_back({row["name"],
                               dtype_from_name(row["dtype"].get<std::string>()).value(),
                               testing::shape_from(row["shape"]),
                               {}});
  }
  const Resolution resolution = resolve(request);
  const json& expected = GetParam().text["expected"];
  EXPECT_EQ(testing::destinations_json(resolution), expected["destinations"]);

  json demoted = json::array();
  bool has_fallback = false;
  for (const Destination& destination : resolution.destinations) {
    if (destination.is_demoted) demoted.push_back(destination.name);
    EXPECT_NE(destination.is_direct, !destination.reason.empty()) << destination.name;
    has_fallback = has_fallback || !destination.is_direct;
  }
  EXPECT_EQ(demoted, expected["demoted_by_closure"]);
  EXPECT_EQ(has_fallback, expected["uses_load_weights"].get<bool>());

  const json& summary = expected["summary"];
  const Coverage covered = coverage(request, resolution);
  EXPECT_EQ(covered, (Coverage{summary["direct"], summary["fallback"], summary["direct_bytes"],
                               summary["total_bytes"]}));
  EXPECT_NE(to_string(covered).find("(" + summary["direct_percent"].get<std::string>() + "%)"),
            std::string::npos)
      << to_string(covered);
}

INSTANTIATE_TEST_SUITE_P(line, GoldenResolve,
                         ::testing::ValuesIn(testing::resolution_lines({"resolve_destinations"})),
                         testing::line_name);

}  // namespace
}  // namespace crossmesh
