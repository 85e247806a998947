// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/agree.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// A column weight and a norm on 2 replicas of 2 shards.
ResolveRequest request() {
  LiveParameter column;
  column.name = "c.weight";
  column.dtype = DType::bf16;
  column.shape = {8, 16};
  column.loader = {LoaderKind::column, true, 2};
  column.marks.output_dim = 0;
  LiveParameter norm;
  norm.name = "n.weight";
  norm.dtype = DType::bf16;
  norm.shape = {16};
  norm.loader.kind = LoaderKind::default_;
  ResolveRequest result;
  result.parameters = {column, norm};
  result.tensors = {{"c.weight", DType::bf16, {16, 16}, {}}, {"n.weight", DType::bf16, {16}, {}}};
  result.rank_count = 4;
  result.shard_count = 2;
  return result;
}

// What four engine ranks (2 … 5) and two trainers (0, 1) publish.
std::vector<PublishedPlan> plans() {
  const ResolveRequest asked = request();
  std::vector<PublishedPlan> result;
  for (int rank = 0; rank < 2; ++rank) {
    result.push_back(
        {.rank = rank, .announced = fingerprint(asked.tensors), .error = "", .plan = {}});
  }
  for (int rank = 0; rank < 4; ++rank) {
    result.push_back(publish(asked, resolve(asked), rank));
    result.back().rank += 2;
    result.back().rank_first = 2;
  }
  return result;
}

std::string error_of(const std::vector<PublishedPlan>& published) {
  try {
    agree(published);
  } catch (const Error& error) {
    return error.text();
  }
  return "no error";
}

TEST(Agree, equal_plans_are_adopted_by_every_rank_alike) {
  const AgreedPlan agreed = agree(plans());
  ASSERT_EQ(agreed.plan.size(), 2U);
  EXPECT_EQ(agreed.plan[0].local_shape, (Shape{8, 16}));
  EXPECT_EQ(agreed.plan[0].shard_count, 2);
  std::vector<PublishedPlan> again = plans();
  again[3].plan[0].destination.reason = "a reason is no part of a plan";
  EXPECT_EQ(agree(again), agreed);
}

TEST(Agree, the_digest_tells_any_other_plan) {
  const Fingerprint digest = agree(plans()).digest;
  const auto changed = [](auto edit) {
    std::vector<PublishedPlan> published = plans();
    for (PublishedPlan& one : published) {
      if (one.is_target) edit(one);
    }
    return agree(published).digest;
  };
  EXPECT_NE(changed([](PublishedPlan& p) { p.plan[1].destination.is_direct = false; }), digest);
  EXPECT_NE(changed([](PublishedPlan& p) { p.plan[1].dtype = DType::f16; }), digest);
  EXPECT_NE(changed([](PublishedPlan& p) { p.plan.pop_back(); }), digest);
  EXPECT_NE(changed([](PublishedPlan& p) { p.rank_count = 8; }), digest);
  EXPECT_NE(changed([](PublishedPlan& p) { std::swap(p.plan[0], p.plan[1]); }), digest);
}

TEST(Agree, every_rank_reports_the_errors_of_all) {
  std::vector<PublishedPlan> published = plans();
  published[1].error = "no memory";
  published[4].error = "plan: bad";
  published[3].plan.clear();
  EXPECT_EQ(error_of(published),
            "agree: ranks have no plan\n  rank 1:  no memory\n  rank 4:  plan: bad");
}

TEST(Agree, announcements_are_compared_in_order_and_with_trainers) {
  std::vector<PublishedPlan> published = plans();
  ResolveRequest other = request();
  std::swap(other.tensors[0], other.tensors[1]);
  published[1].announced = fingerprint(other.tensors);
  EXPECT_EQ(error_of(published), "agree: ranks announce other tensors\n  rank 0  " +
                                     to_string(published[0].announced) + "\n  rank 1  " +
                                     to_string(published[1].announced));
}

// The old rows carry placements alone, and do not tell this.
TEST(Agree, Z18_direct_beside_fallback_is_a_disagreement) {
  std::vector<PublishedPlan> published = plans();
  published[5].plan[1].destination.is_direct = false;
  EXPECT_EQ(error_of(published),
            "agree: engine ranks plan one tensor in different ways\n  index  1\n"
            "  rank 2  n.weight BF16 [16]: direct, whole\n"
            "  rank 5  n.weight BF16 [16]: fallback");
}

TEST(Agree, another_engine_or_number_of_tensors) {
  std::vector<PublishedPlan> published = plans();
  published[3].plan.pop_back();
  EXPECT_EQ(error_of(published),
            "agree: engine ranks plan for other engines\n  rank 2  2 tensors on 4 ranks from 2\n"
            "  rank 3  1 tensors on 4 ranks from 2");
}

TEST(Agree, a_part_that_is_another_ranks) {
  std::vector<PublishedPlan> published = plans();
  published[3].plan[0].shard_index = 0;
  EXPECT_EQ(error_of(published),
            "agree: a rank takes a part that is not its own\n  tensor  c.weight\n  rank  3\n"
            "  shard  0\n  expected shard  1\n  shape  [8, 16]\n  expected shape  [8, 16]");
  published = plans();
  published[2].plan[0].local_shape = {4, 16};
  EXPECT_EQ(error_of(published),
            "agree: a rank takes a part that is not its own\n  tensor  c.weight\n  rank  2\n"
            "  shard  0\n  expected shard  0\n  shape  [4, 16]\n  expected shape  [8, 16]");
}

TEST(Agree, an_uneven_cut) {
  std::vector<PublishedPlan> published = plans();
  for (PublishedPlan& one : published) {
    if (one.is_target) one.plan[0].shape = {15, 16};
  }
  EXPECT_EQ(error_of(published),
            "agree: a tensor is not cut evenly\n  tensor  c.weight\n  rank  2\n"
            "  way  direct, dim 0 in 2");
}

TEST(Agree, a_tensor_announced_twice) {
  std::vector<PublishedPlan> published = plans();
  for (PublishedPlan& one : published) {
    if (one.is_target) one.plan.push_back(one.plan[1]);
  }
  EXPECT_EQ(error_of(published), "agree: a tensor is announced twice\n  tensor  n.weight");
}

TEST(Agree, nothing_is_planned) {
  std::vector<PublishedPlan> published = plans();
  for (PublishedPlan& one : published) one.plan.clear();
  EXPECT_EQ(error_of(published), "agree: no tensor is planned\n  rank  2");
}

TEST(Agree, nobody_plans) {
  std::vector<PublishedPlan> published = plans();
  published.resize(2);
  EXPECT_EQ(error_of(published), "agree: no engine rank published a plan\n  ranks  2");
}

}  // namespace
}  // namespace crossmesh
