// SPDX-License-Identifier: Apache-2.0
// The rules of the collective reshard (nccl_m2n), row by row of the old system's checklist; rows of
// the resolution itself are target/resolve_test.cc's.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/m2n_init.h"
#include "crossmesh/profiles/m2n_layout.h"
#include "crossmesh/profiles/m2n_plan.h"
#include "crossmesh/profiles/m2n_rounds.h"
#include "crossmesh/profiles/m2n_source.h"
#include "tests/error_of.h"

namespace crossmesh::profiles {
namespace {

using nlohmann::json;
using testing::error_of;
using Kind = ReceiveStep::Kind;

const Placements kWhole = std::nullopt;
Placements cut(int axis0, int axis1) { return std::vector<int>{axis0, axis1}; }
constexpr int kR = kReplicate;

TEST(M2nLayout, M1_a_replicated_layout_takes_any_shape) {
  const WireLayout layout = wire_layout(wire_mesh({2, 2}, 1), kWhole, "w");
  check_layout(layout, {7, 13}, "source");
  EXPECT_EQ(layout, (WireLayout{{{4, 1}, 1}, {kR, 0}}));
}

TEST(M2nLayout, M2_M3_only_replicated_layouts_are_refactored) {
  const WireMesh mesh = wire_mesh({2, 3}, 4);
  const WireLayout whole = wire_layout(mesh, kWhole, "w");
  EXPECT_EQ(whole.mesh.size(), mesh.size());
  EXPECT_EQ(whole.mesh.start_rank, mesh.start_rank);
  EXPECT_EQ(wire_layout(mesh, cut(kR, 0), "w"), (WireLayout{mesh, {kR, 0}}));
}

TEST(M2nLayout, M4_M5_placements_that_are_refused) {
  EXPECT_EQ(error_of([] {
              check_placements({0, 1}, "parameter 'w'");
            }),
            "parameter 'w' shards both mesh axes\n  placements  [0, 1]");
  EXPECT_EQ(error_of([] {
              check_placements({-2, kR}, "parameter 'w'");
            }),
            "parameter 'w' contains invalid placement code -2\n  placements  [-2, -1]");
}

TEST(M2nLayout, M6_M7_shapes_that_are_refused) {
  EXPECT_EQ(error_of([] {
              check_layout(wire_layout(wire_mesh({1, 2}, 0), cut(kR, 2), ""), {8, 16}, "source");
            }),
            "plan: source layout shards tensor dim 2, but the tensor has rank 2\n  shape  [8, 16]");
  EXPECT_EQ(error_of([] {
              check_layout(wire_layout(wire_mesh({1, 3}, 0), cut(kR, 0), ""), {8, 16}, "source");
            }),
            "plan: source tensor dim 0 of size 8 does not divide evenly over 3 ranks\n"
            "  shape  [8, 16]");
}

TEST(M2nLayout, a_mesh_of_too_many_ranks) {
  EXPECT_EQ(error_of([] {
              wire_mesh({1 << 20, 1 << 20}, 0);
            }),
            "mesh: too many ranks\n  dims  [1048576, 1048576]");
}

TEST(M2nSource, M8_a_plain_tensor_is_whole_on_every_trainer) {
  const std::vector<TrainerTensor> tensors = {{"w", {8, 8}, {}, {}}};
  EXPECT_EQ(placements_of(tensors[0]), kWhole);
  EXPECT_EQ(mesh_of(tensors, 4), (WireMesh{{4, 1}, 0}));
}

TEST(M2nSource, Z17_a_negative_shard_dim_is_no_replica) {
  const TrainerTensor tensor{
      "w", {8, 8}, DeviceMesh{{4}, {0, 1, 2, 3}}, {{"Shard", std::int64_t{-1}}}};
  EXPECT_EQ(placements_of(tensor), cut(1, kR));
  const TrainerTensor beyond{"w", {8}, DeviceMesh{{2}, {0, 1}}, {{"Shard", std::int64_t{-2}}}};
  EXPECT_EQ(error_of([&] { placements_of(beyond); }),
            "describe: a shard's dim is not one of its tensor\n  parameter  w\n  dim  -2\n"
            "  rank  1");
}

TEST(M2nSource, M9_M10_what_is_not_carried) {
  EXPECT_NE(error_of([] {
              transferable_dtype("w", "complex64", {4});
            }).find("parameter 'w' has the dtype complex64"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              transferable_dtype("w", "float32", {1, 1, 1, 1});
            }).find("parameter 'w' has rank 4"),
            std::string::npos);
}

// One replicated bf16 [16, 16] from trainer 0 to workers 1 and 2.
json base_init() {
  return {{"master_address", "host"}, {"master_port", 1},
          {"rank_offset", 1},         {"world_size", 3},
          {"src_mesh_dims", {1, 1}},  {"dst_mesh_dims", {2, 1}},
          {"names", {"w"}},           {"dtype_names", {"bfloat16"}},
          {"shapes", {{16, 16}}},     {"src_placements", {nullptr}}};
}
json base_with(const json& changes) {
  json init = base_init();
  init.merge_patch(changes);
  return init;
}
std::string init_error(const json& changes) {
  return error_of([&] { worker_init(base_with(changes).dump()); });
}

TEST(M2nWire, M11_a_consistent_greeting_is_accepted) {
  const WorkerInit init = worker_init(base_init().dump());
  EXPECT_EQ(init.rendezvous, (Rendezvous{"host", 1, ""}));
  EXPECT_EQ(init.names, std::vector<std::string>{"w"});
  EXPECT_EQ(init.source_placements, std::vector<Placements>{kWhole});
}

TEST(M2nWire, M12_M15_a_unique_id_instead_of_an_address) {
  const std::string id = std::string(170, 'A') + "A=";  // 128 zero bytes
  const json changes = {
      {"master_address", nullptr}, {"master_port", nullptr}, {"nccl_unique_id_b64", id}};
  EXPECT_EQ(worker_init(base_with(changes).dump()).rendezvous.unique_id, std::string(128, '\0'));
  const json trainer = {{"rank", 0}, {"world_size", 3}, {"nccl_unique_id_b64", id}};
  EXPECT_EQ(trainer_init(trainer.dump()).rendezvous.unique_id.size(), 128U);
}

TEST(M2nWire, M13_rows_of_the_first_worker_are_adopted) {
  EXPECT_EQ(placements_of(std::vector<Row>{{kR, 0}, {-2, -2}}),
            (std::vector<Placements>{cut(kR, 0), kWhole}));
  EXPECT_EQ(rows_of(std::vector<Placements>{cut(kR, 0), kWhole}, 2),
            (std::vector<Row>{{kR, 0}, {-2, -2}}));
}

TEST(M2nWire, M14_M16_M17_M18_greetings_that_contradict_themselves) {
  EXPECT_EQ(init_error({{"nccl_unique_id_b64", "AAAA"}}),
            "join: give nccl_unique_id_b64 or master_address and master_port, not both");
  EXPECT_EQ(init_error({{"shapes", json::array()}}),
            "read: `shapes` and `names` differ in length: 0 and 1");
  EXPECT_EQ(init_error({{"dst_mesh_dims", {3, 1}}}),
            "read: dst_mesh_dims do not cover 2 inference workers\n  dst_mesh_dims  [3, 1]");
  EXPECT_EQ(init_error({{"rank_offset", 3}}),
            "read: rank_offset leaves one side without ranks\n  rank_offset  3\n  world_size  3");
}

TEST(M2nWire, hostile_greetings) {
  const std::string invalid = "read: Invalid init_info for nccl_m2n: it ";
  const std::string type = invalid + "has a field of the wrong type\n  field  ";
  EXPECT_EQ(error_of([] { worker_init("[1"); }), invalid + "is no JSON object");
  EXPECT_EQ(init_error({{"names", nullptr}}), invalid + "lacks a field\n  field  names");
  EXPECT_EQ(init_error({{"extra", 1}}), invalid + "has a field that is not known\n  field  extra");
  EXPECT_EQ(init_error({{"names", "w"}}), type + "names");
  EXPECT_EQ(init_error({{"shapes", {{1.5, 2}}}}), type + "shapes");
  EXPECT_EQ(init_error({{"rank_offset", std::int64_t{1} << 40}}), type + "rank_offset");
  EXPECT_EQ(init_error({{"src_placements", {"w"}}}), type + "src_placements");
  EXPECT_EQ(error_of([] { worker_update("{}"); }),
            "read: Invalid update_info for nccl_m2n: it lacks a field\n  field  names");
}

WorkerInit init_of(const json& changes) { return worker_init(base_with(changes).dump()); }

TEST(M2nPlan, M19_no_dtype_of_that_name) {
  for (const char* name : {"not_a_dtype", "Tensor"}) {
    const std::string text = error_of([&] {
      plan_worker(init_of({{"dtype_names", {name}}}), WorkerModel());
    });
    EXPECT_NE(text.find(std::string("parameter 'w' has no dtype: not one is named ") + name),
              std::string::npos)
        << text;
  }
}

// 32 trainers cut w [32, 8], and 4 workers.
const json kThirtyTwo = {{"rank_offset", 32},        {"world_size", 36},
                         {"src_mesh_dims", {1, 32}}, {"dst_mesh_dims", {1, 4}},
                         {"shapes", {{32, 8}}},      {"src_placements", {{kR, 0}}}};

TEST(M2nPlan, M20_32_source_shards_feed_4_destination_shards) {
  WorkerModel model;
  LiveParameter w;
  w.name = "w";
  w.dtype = DType::bf16;
  w.shape = {8, 8};
  w.loader = {LoaderKind::column, true, 4};
  w.marks.output_dim = 0;
  model.parameters = {w};
  const WorkerPlan plan = plan_worker(init_of(kThirtyTwo), model);
  EXPECT_EQ(plan.placements, std::vector<Placements>{cut(kR, 0)});
  EXPECT_FALSE(plan.uses_fallback);
}

TEST(M2nPlan, M21_32_source_shards_do_not_feed_a_whole_tensor) {
  EXPECT_EQ(error_of([] { plan_worker(init_of(kThirtyTwo), WorkerModel()); }),
            "plan: parameter 'w' has 32 source shards for one destination, over MAX_SOURCES=16");
}

TEST(M2nRound, M22_an_unknown_name_is_an_error_before_any_reshard) {
  EXPECT_EQ(error_of([] {
              receive_steps({{"a", true}}, {"a", "zzz"});
            }),
            "receive: parameter 'zzz' was not declared at init");
}

TEST(M2nRound, M23_fallbacks_share_one_call_of_the_loader) {
  const std::vector<PlannedName> plan = {
      {"pair.weight", false}, {"direct", true}, {"pair.scale", false}};
  EXPECT_EQ(receive_steps(plan, {"pair.weight", "direct", "pair.scale"}),
            (std::vector<ReceiveStep>{{Kind::begin_loading, -1},
                                      {Kind::reshard_into_buffer, 0},
                                      {Kind::load, 0},
                                      {Kind::reshard_into_live, 1},
                                      {Kind::reshard_into_buffer, 2},
                                      {Kind::load, 2},
                                      {Kind::end_loading, -1}}));
  check_all_loaded(plan, receive_steps(plan, {"pair.weight", "pair.scale"}), 2);
}

json trainer_with(const json& changes) {
  json init = {{"master_address", "host"},
               {"master_port", 1},
               {"rank", 0},
               {"world_size", 6},
               {"num_trainer_ranks", 2}};
  init.merge_patch(changes);
  return init;
}

TEST(M2nTrainer, M24_M25_a_rank_and_a_mesh_that_are_none) {
  EXPECT_EQ(error_of([] {
              trainer_init(trainer_with({{"rank", 2}}).dump());
            }),
            "read: rank is not below num_trainer_ranks\n  rank  2\n  num_trainer_ranks  2");
  EXPECT_EQ(error_of([] {
              trainer_init(trainer_with({{"dst_mesh_dims", {3, 1}}}).dump());
            }),
            "read: dst_mesh_dims do not cover 4 inference workers\n  dst_mesh_dims  [3, 1]");
}

TEST(M2nTrainer, M26_M27_the_default_mesh_and_the_sender) {
  const TrainerInit init = trainer_init(trainer_with(json::object()).dump());
  EXPECT_EQ(init.destination_mesh_dims, (std::vector<std::int64_t>{4, 1}));
  EXPECT_TRUE(init.is_sender());
  EXPECT_FALSE(trainer_init(trainer_with({{"rank", 1}}).dump()).is_sender());
}

TEST(M2nTrainer, Z9_a_source_yields_as_many_as_it_announced) {
  SendRound round({"a", "b"});
  EXPECT_EQ(round.take("a"), 0);
  EXPECT_EQ(error_of([&] { round.finish(); }),
            "send: the source yielded fewer tensors than were announced\n  yielded  1\n"
            "  announced  2\n  first missing  b");
  EXPECT_EQ(round.take("b"), 1);
  round.finish();
  EXPECT_EQ(error_of([&] { round.take("c"); }),
            "send: the source yielded more tensors than were announced\n  announced  2\n"
            "  extra  c");
}

TEST(M2nTrainer, golden_vector_6_ranks_of_a_mesh_are_row_major) {
  const WireMesh mesh = wire_mesh({2, 2}, 2);
  const WireLayout whole = wire_layout(mesh, kWhole, "");
  EXPECT_EQ(mesh.size(), 4);
  EXPECT_EQ(whole, (WireLayout{{{4, 1}, 2}, {kR, 0}}));
  EXPECT_EQ(shard_count(wire_layout(mesh, cut(kR, 0), "")), 2);
}

}  // namespace
}  // namespace crossmesh::profiles
