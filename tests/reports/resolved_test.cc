// SPDX-License-Identifier: Apache-2.0
// What was resolved from loaders' marks, moved element by element from uneven trainer shards, and
// compared with what those loaders do: the naive cut of a column or a row layer.
#include <gtest/gtest.h>

#include "crossmesh/plan/plan.h"
#include "crossmesh/source/shard.h"
#include "crossmesh/target/cross_check.h"
#include "crossmesh/target/resolve.h"
#include "crossmesh/verify/verify.h"
#include "tests/reports/moved.h"

namespace crossmesh::reports {
namespace {

LiveParameter parameter(std::string name, LoaderKind kind, Shape shape) {
  LiveParameter result;
  result.name = std::move(name);
  result.dtype = DType::bf16;
  result.shape = shape;
  result.loader = {kind, true, 2};
  if (kind == LoaderKind::column) result.marks.output_dim = 0;
  if (kind == LoaderKind::row) result.marks.input_dim = 1;
  return result;
}

// Two replicas of two ranks: a column layer [10, 6], a row layer [6, 10] and a norm [7].
ResolveRequest request() {
  ResolveRequest result;
  result.parameters = {parameter("c.weight", LoaderKind::column, {5, 6}),
                       parameter("r.weight", LoaderKind::row, {6, 5}),
                       parameter("n.weight", LoaderKind::default_, {7})};
  result.tensors = {{"c.weight", DType::bf16, {10, 6}, {}},
                    {"r.weight", DType::bf16, {6, 10}, {}},
                    {"n.weight", DType::bf16, {7}, {}}};
  result.rank_count = 4;
  result.shard_count = 2;
  return result;
}

Layout trainers(const ResolveRequest& asked, std::string_view spec) {
  Catalog catalog;
  for (const AnnouncedTensor& tensor : asked.tensors) {
    catalog.tensors.push_back(
        {tensor.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }
  return shard(catalog, parse_spec(spec));
}

TEST(Resolved, every_element_lands_where_the_loader_puts_it) {
  const ResolveRequest asked = request();
  const Layout target = lay_out(asked, resolve(asked));
  for (const std::string_view spec : {"fsdp=1", "fsdp=3", "fsdp=4", "fsdp=2,tp=2"}) {
    const Layout source = trainers(asked, spec);
    const Verdict verdict = verify(compile(source, target));
    EXPECT_TRUE(verdict.right()) << spec << explain(verdict);
    for (int rank = 0; rank < 4; ++rank) {
      const int shard = rank % 2;
      EXPECT_EQ(moved(source, target, rank, "c.weight"), counted(shard * 30, shard * 30 + 30));
      Elements rows;
      for (std::int64_t row = 0; row < 6; ++row) {
        const std::int64_t first = kTensorStride + row * 10 + shard * 5;
        rows = joined(rows, counted(first, first + 5));
      }
      EXPECT_EQ(moved(source, target, rank, "r.weight"), rows);
      EXPECT_EQ(moved(source, target, rank, "n.weight"),
                counted(2 * kTensorStride, 2 * kTensorStride + 7));
    }
  }
}

TEST(Resolved, a_fallback_is_covered_and_what_nobody_feeds_is_kept) {
  ResolveRequest asked = request();
  asked.parameters.push_back(parameter("m.qkv", LoaderKind::qkv, {8, 3}));
  asked.parameters.push_back(parameter("m2.scale", LoaderKind::missing, {2}));
  asked.tensors.push_back({"m.q", DType::bf16, {8, 3}, {{"m.qkv"}}});
  asked.tensors.push_back({"m.k", DType::bf16, {4, 3}, {{"m.qkv"}}});
  const Layout target = lay_out(asked, resolve(asked));
  const Verdict verdict = verify(compile(trainers(asked, "fsdp=3"), target));
  EXPECT_TRUE(verdict.right()) << explain(verdict);
  for (const std::string& reason : target.reasons) {
    EXPECT_EQ(reason, "no parameter has its name");
  }
}

// Gates above ups on disk, in one tensor: the shapes are those of a plain cut, and a loader that
// says that it is one is believed. The bake of the same rank tells.
TEST(Resolved, the_fused_on_disk_trap_is_met_by_the_cross_check) {
  ResolveRequest asked;
  asked.parameters = {parameter("gate_up", LoaderKind::column, {4, 2})};
  asked.tensors = {{"gate_up", DType::bf16, {8, 2}, {}}};
  asked.rank_count = asked.shard_count = 2;
  const Layout resolved = lay_out(asked, resolve(asked));
  Layout baked = resolved;
  for (int rank = 0; rank < 2; ++rank) {
    baked.classes[0].pieces_of_role[static_cast<std::size_t>(rank)] = {
        {{{2 * rank, 0}, {2, 2}}, {0, {2, 1}}}, {{{4 + 2 * rank, 0}, {2, 2}}, {4, {2, 1}}}};
  }
  const Layout source = trainers(asked, "fsdp=2");
  EXPECT_EQ(moved(source, resolved, 0, "gate_up"), counted(0, 8));
  EXPECT_EQ(moved(source, baked, 0, "gate_up"), joined(counted(0, 4), counted(8, 12)));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(first_disagreement({"resolution", resolved, rank}, {"bake", baked, rank}));
  }
  EXPECT_FALSE(first_disagreement({"resolution", resolved, 0}, {"bake", resolved, 0}));
}

}  // namespace
}  // namespace crossmesh::reports
