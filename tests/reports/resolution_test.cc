// SPDX-License-Identifier: Apache-2.0
// Reports of weights gone wrong that a resolution must be right on, in the smallest data that shows
// each. A test begins with the number of its row.
#include <gtest/gtest.h>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/source/shard.h"
#include "crossmesh/target/agree.h"
#include "crossmesh/target/resolve.h"
#include "tests/error_of.h"
#include "tests/reports/moved.h"

namespace crossmesh::reports {
namespace {

using testing::error_of;

LiveParameter plain(std::string name, Shape shape) {
  LiveParameter result;
  result.name = std::move(name);
  result.dtype = DType::bf16;
  result.shape = shape;
  result.loader.kind = LoaderKind::default_;
  return result;
}

ResolveRequest request_of(std::vector<LiveParameter> parameters,
                          std::vector<AnnouncedTensor> tensors, int shard_count = 1) {
  ResolveRequest result;
  result.parameters = std::move(parameters);
  result.tensors = std::move(tensors);
  result.rank_count = result.shard_count = shard_count;
  return result;
}

std::string reason_of(const ResolveRequest& request, std::size_t tensor = 0) {
  const Destination destination = resolve(request).destinations.at(tensor);
  return destination.is_direct ? "direct" : destination.reason;
}

Layout trainer(const ResolveRequest& request) {
  Catalog catalog;
  for (const AnnouncedTensor& tensor : request.tensors) {
    catalog.tensors.push_back(
        {tensor.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }
  return shard(catalog, parse_spec("fsdp=1"));
}

TEST(Reports, r02_05_each_rank_takes_its_own_shard) {
  LiveParameter column = plain("w", {2});
  column.loader = {LoaderKind::column, true, 2};
  column.marks.output_dim = 0;
  const ResolveRequest request = request_of({column}, {{"w", DType::bf16, {4}, {}}}, 2);
  const Layout target = lay_out(request, resolve(request));
  EXPECT_EQ(moved(trainer(request), target, 0, "w"), counted(0, 2));
  EXPECT_EQ(moved(trainer(request), target, 1, "w"), counted(2, 4));
}

TEST(Reports, r02_06_a_layer_that_is_not_cut_in_a_job_that_cuts) {
  LiveParameter column = plain("w", {4});
  column.loader = {LoaderKind::column, true, 1};
  column.marks.output_dim = 0;
  ResolveRequest request = request_of({column}, {{"w", DType::bf16, {4}, {}}}, 2);
  EXPECT_EQ(reason_of(request), "its layer is cut by 1, the mesh by 2");
  request.parameters[0].loader.kind = LoaderKind::replicated;
  const Layout target = lay_out(request, resolve(request));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(moved(trainer(request), target, rank, "w"), counted(0, 4));
  }
}

TEST(Reports, r03_02_a_tie_is_told_by_storage_under_any_prefix) {
  LiveParameter head;
  head.name = "lm_head.weight";
  head.alias_of = "model.language_model.embed.weight";
  const ResolveRequest request = request_of({plain("model.language_model.embed.weight", {4}), head},
                                            {{"lm_head.weight", DType::bf16, {4}, {}}});
  EXPECT_EQ(reason_of(request), "a second name of model.language_model.embed.weight");
}

TEST(Reports, r03_05_one_name_for_two_tensors_is_refused) {
  ResolveRequest request = request_of({plain("weight0", {4})}, {{"weight0", DType::bf16, {4}, {}},
                                                                {"weight0", DType::bf16, {4}, {}}});
  EXPECT_EQ(error_of([&] { agree({publish(request, resolve(request), 0)}); }),
            "agree: a tensor is announced twice\n  tensor  weight0");
}

TEST(Reports, r04_02_a_resized_vocabulary_is_no_direct_write) {
  EXPECT_EQ(reason_of(request_of({plain("embed", {7, 2})}, {{"embed", DType::bf16, {8, 2}, {}}})),
            "the tensor is [8, 2], the parameter [7, 2]");
}

TEST(Reports, r10_03_r10_06_another_dtype_is_no_direct_write) {
  EXPECT_EQ(reason_of(request_of({plain("bias", {4})}, {{"bias", DType::f32, {4}, {}}})),
            "the tensor is F32, the parameter BF16");
}

TEST(Reports, r10_04_a_dtype_that_changes_is_another_plan) {
  ResolveRequest request = request_of({plain("bias", {4})}, {{"bias", DType::bf16, {4}, {}}});
  const Fingerprint before = agree({publish(request, resolve(request), 0)}).digest;
  request.tensors[0].dtype = DType::f32;
  EXPECT_NE(agree({publish(request, resolve(request), 0)}).digest, before);
}

TEST(Reports, r16_02_a_row_bias_is_not_cut_by_its_weights_dim) {
  LiveParameter bias = plain("o.bias", {4});
  bias.loader = {LoaderKind::row, true, 2};
  bias.marks.output_dim = 0;
  EXPECT_EQ(reason_of(request_of({bias}, {{"o.bias", DType::bf16, {4}, {}}}, 2)),
            "it has no input_dim");
}

TEST(Reports, r18_02_lists_of_other_names_are_not_walked_by_place) {
  const ResolveRequest a = request_of({plain("a", {4}), plain("b", {4})},
                                      {{"a", DType::bf16, {4}, {}}, {"b", DType::bf16, {4}, {}}});
  ResolveRequest b = a;
  b.tensors.insert(b.tensors.begin() + 1, {"a.q", DType::bf16, {4}, {}});
  PublishedPlan source{.rank = 1, .announced = fingerprint(b.tensors), .error = "", .plan = {}};
  EXPECT_EQ(error_of([&] {
              agree({publish(a, resolve(a), 0), source});
            }),
            "agree: ranks announce other tensors\n  rank 0  " + to_string(fingerprint(a.tensors)) +
                "\n  rank 1  " + to_string(fingerprint(b.tensors)));
}

TEST(Reports, r18_06_what_is_not_fed_and_what_is_not_used_are_both_told) {
  ResolveRequest request = request_of({plain("a", {4}), plain("b", {4})},
                                      {{"a", DType::bf16, {4}, {}}, {"z", DType::bf16, {4}, {}}});
  EXPECT_EQ(error_of([&] { lay_out(request, resolve(request)); }),
            "resolve: it is not known what a tensor feeds\n  tensor  z\n"
            "  reason  no parameter has its name\n"
            "  hint  say which parameters its loader writes, or bake");
  request.tensors.pop_back();
  const Layout layout = lay_out(request, resolve(request));
  const Parameter& b = layout.parameters[1];
  const ParameterClass& kept =
      layout.parameter_classes[static_cast<std::size_t>(b.parameter_class)];
  ASSERT_EQ(kept.reserves.size(), 1U);
  EXPECT_EQ(kept.reserves[0].reason, "no announced tensor feeds it");
}

TEST(Reports, r19_04_layers_that_the_engine_has_not_take_the_fallback) {
  ResolveRequest request =
      request_of({plain("layers.0.w", {4})}, {{"layers.1.w", DType::bf16, {4}, {}}});
  EXPECT_EQ(reason_of(request), "no parameter has its name");
}

TEST(Reports, r34_01_an_empty_plan_is_an_error) {
  const ResolveRequest request = request_of({plain("a", {4})}, {});
  EXPECT_EQ(error_of([&] { agree({publish(request, resolve(request), 0)}); }),
            "agree: no tensor is planned\n  rank  0");
}

TEST(Reports, r34_05_the_error_of_one_rank_is_the_error_of_all) {
  const ResolveRequest request = request_of({plain("a", {4})}, {{"a", DType::bf16, {4}, {}}});
  PublishedPlan failed;
  failed.rank = 1;
  failed.is_target = true;
  failed.error = "no memory";
  EXPECT_EQ(error_of([&] {
              agree({publish(request, resolve(request), 0), failed});
            }),
            "agree: ranks have no plan\n  rank 1:  no memory");
}

}  // namespace
}  // namespace crossmesh::reports
