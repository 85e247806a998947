// SPDX-License-Identifier: Apache-2.0
// What the two sides of a pull transport compute alike, row by row of the old system's checklist:
// identities, routes, plans, groups and what trainers own.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/buffers.h"
#include "crossmesh/profiles/consumer_plan.h"
#include "crossmesh/profiles/groups.h"
#include "crossmesh/profiles/ownership.h"
#include "crossmesh/profiles/producer_pack.h"
#include "crossmesh/profiles/router.h"
#include "tests/error_of.h"

namespace crossmesh::profiles {
namespace {

using testing::error_of;
using Ranks = std::vector<int>;
using Names = std::vector<std::string>;

// -- Identity ------------------------------------------------------------------------------------

TEST(Identity, I1_I3_by_data_parallel_index_and_rank_without_an_offset) {
  EXPECT_EQ(consumer_identity({.rank = 3, .world_size = 8, .world_size_across_dp = 8}).consumer, 3);
  EXPECT_EQ(consumer_identity({.data_parallel_index = 5, .world_size_across_dp = 8}).consumer, 5);
}

TEST(Identity, I2_two_replicas_of_four_are_distinct) {
  std::set<int> all;
  for (int replica = 0; replica < 2; ++replica) {
    for (int rank = 0; rank < 4; ++rank) {
      const int consumer = consumer_identity({.rank = rank,
                                              .world_size = 4,
                                              .world_size_across_dp = 4,
                                              .consumer_count = 8,
                                              .replica_rank = replica,
                                              .replica_count = 2})
                               .consumer;
      EXPECT_EQ(consumer / 4, replica);
      all.insert(consumer);
    }
  }
  EXPECT_EQ(all, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Identity, T13_T14_live_consumers_are_counted_once) {
  EXPECT_EQ(live_consumers(nullptr, 8).size(), 8U);
  const Ranks some = {5, 0, 1, 4, 5};
  EXPECT_EQ(live_consumers(&some, 8), (Ranks{0, 1, 4, 5}));
}

TEST(Identity, T15_T16_all_named_equals_none_named_and_order_does_not_matter) {
  const Ranks all = {3, 2, 1, 0};
  EXPECT_EQ(live_consumers(&all, 4), live_consumers(nullptr, 4));
}

// -- Routes --------------------------------------------------------------------------------------

// `group_count` groups of one name each, of class 0 unless `classes` says otherwise.
RouterFacts facts(Fleet fleet, int group_count, std::vector<Ranks> owner_sets = {},
                  Ranks classes = {}) {
  RouterFacts result{.producer_count = fleet.producer_count,
                     .consumer_count = fleet.consumer_count,
                     .names = {},
                     .group_sizes = Ranks(static_cast<std::size_t>(group_count), 1),
                     .owner_sets = std::move(owner_sets),
                     .class_of_name = std::move(classes)};
  for (int g = 0; g < group_count; ++g) result.names.push_back("n" + std::to_string(g));
  return result;
}
std::string name(int group) { return "n" + std::to_string(group); }

TEST(Routes, R1_as_many_producers_as_consumers_is_the_identity) {
  const Router router(facts({8, 8}, 4));
  for (int c = 0; c < 8; ++c) EXPECT_EQ(router.producer_for(c, "n3"), c);
}

TEST(Routes, R2_more_producers_than_consumers_use_exactly_their_blocks) {
  const Router router(facts({16, 8}, 95));
  std::set<int> used;
  for (int c = 0; c < 8; ++c) {
    for (int g = 0; g < 95; ++g) {
      const int producer = router.producer_for(c, name(g));
      EXPECT_EQ(producer, 2 * c + g % 2);
      used.insert(producer);
    }
  }
  EXPECT_EQ(used.size(), 16U);
}

TEST(Routes, R3_fewer_producers_than_consumers_are_shared) {
  const Router router(facts({2, 8}, 1));
  for (int c = 0; c < 8; ++c) EXPECT_EQ(router.producer_for(c, "n0"), c / 4);
}

TEST(Routes, R4_W1_two_stages_route_to_their_own_ranks) {
  const std::vector<Ranks> stages = {{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}};
  const Router router(facts({16, 8}, 2, stages, {0, 1}));
  for (int c = 0; c < 8; ++c) {
    EXPECT_EQ(router.producer_for(c, "n0"), c);
    EXPECT_EQ(router.producer_for(c, "n1"), c + 8);
  }
  EXPECT_EQ(router.group_owners(0), stages[0]);
  EXPECT_EQ(router.group_owners(1), stages[1]);
}

TEST(Routes, R5_W3_an_expert_routes_to_its_holder) {
  const Router router(facts({4, 1}, 2, {{0, 1, 2, 3}, {3}}, {0, 1}));
  EXPECT_EQ(router.producer_for(0, "n1"), 3);
}

TEST(Routes, R6_W2_a_set_of_two_owners_uses_both_and_a_pull_one) {
  const Router router(facts({4, 1}, 2, {{0, 1}}, {0, 0}));
  EXPECT_EQ(router.producer_for(0, "n0"), 0);
  EXPECT_EQ(router.producer_for(0, "n1"), 1);
}

TEST(Routes, R7_owners_of_a_group_are_the_union_over_its_names) {
  RouterFacts given = facts({4, 1}, 2, {{0, 1}, {2, 3}}, {0, 1, 0});
  given.names = {"a", "b", "c"};
  given.group_sizes = {2, 1};
  const Router router(given);
  EXPECT_EQ(router.group_owners(0), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(router.group_owners(1), (Ranks{0, 1}));
}

TEST(Routes, R8_R9_W4_a_name_without_an_owner) {
  const Router router(facts({4, 1}, 1, {{}}, {0}));
  EXPECT_EQ(error_of([&] { router.producer_for(0, "n0"); }),
            "route: a name has no owner\n  name  n0\n  owner class  0");
  EXPECT_EQ(error_of([&] { router.validate(); }), "route: an owner set is empty\n  owner class  0");
}

TEST(Routes, R10_a_producer_out_of_range) {
  EXPECT_EQ(error_of([] {
              Router(facts({4, 1}, 1, {{1, 4}}, {0})).validate();
            }),
            "route: a producer is out of range\n  producer  4\n  producers  4\n  owner class  0");
}

TEST(Routes, R11_an_owner_class_that_is_none) {
  EXPECT_EQ(error_of([] {
              Router(facts({4, 1}, 1, {{1}}, {2})).validate();
            }),
            "route: a name has no such owner class\n  name  n0\n  owner class  2\n"
            "  owner classes  1");
}

std::vector<Ranks> routes_of(RouterFacts given, int width) {
  given.workers_per_replica = width;
  const Router router(given);
  std::vector<Ranks> routes;
  for (int c = 0; c < given.consumer_count; ++c) {
    routes.push_back({});
    for (const std::string& n : given.names) routes.back().push_back(router.producer_for(c, n));
  }
  return routes;
}

TEST(Overlay, O1_O4_the_same_worker_of_every_replica_has_one_producer) {
  const std::vector<std::vector<Ranks>> sets = {{}, {{0, 3, 5}, {7, 8, 9, 10, 11}}};
  for (const std::vector<Ranks>& owner_sets : sets) {
    const Ranks classes = owner_sets.empty() ? Ranks() : Ranks{0, 1, 0, 1};
    const std::vector<Ranks> routes = routes_of(facts({16, 32}, 4, owner_sets, classes), 8);
    for (std::size_t c = 8; c < routes.size(); ++c) EXPECT_EQ(routes[c], routes[c % 8]);
  }
}

TEST(Overlay, O2_another_deployment_moves_no_route) {
  const std::vector<Ranks> before = routes_of(facts({16, 8}, 4), 8);
  std::vector<Ranks> after = routes_of(facts({16, 16}, 4), 8);
  after.resize(8);
  EXPECT_EQ(after, before);
}

TEST(Overlay, O3_a_width_of_the_fleet_is_the_plain_rule) {
  EXPECT_EQ(routes_of(facts({5, 8}, 4), 8), routes_of(facts({5, 8}, 4), 0));
  EXPECT_EQ(routes_of(facts({5, 8}, 4), 99), routes_of(facts({5, 8}, 4), 0));
}

TEST(Overlay, O5_a_width_that_does_not_divide) {
  EXPECT_EQ(error_of([] {
              routes_of(facts({4, 6}, 1), 4);
            }),
            "route: the width of a deployment does not divide the consumers\n"
            "  workers per replica  4\n  consumers  6");
}

TEST(Routes, announcements_that_do_not_add_up) {
  RouterFacts given = facts({4, 1}, 2);
  check_announcement(given);
  given.class_of_name = {0};
  EXPECT_EQ(error_of([&] { check_announcement(given); }),
            "route: the class table is not as long as the names\n  classes  1\n  names  2");
  given.group_sizes = {1};
  EXPECT_EQ(error_of([&] { check_announcement(given); }),
            "route: group sizes do not add up to the names\n  sum  1\n  names  2");
  given.group_sizes = {};
  EXPECT_EQ(error_of([&] { check_announcement(given); }), "route: no group sizes\n  names  2");
  given.producer_count = 0;
  EXPECT_EQ(error_of([&] { check_announcement(given); }), "route: no producers");
}

// -- Plans ---------------------------------------------------------------------------------------

BakedModule module(std::string module_name, const Names& sources) {
  BakedModule result{std::move(module_name), {}};
  for (const std::string& source : sources) {
    result.scatters.push_back({"weight", {source, "[]"}, {6}, DType::bf16});
  }
  return result;
}

// Chunks as the sources that each has.
std::vector<Names> chunks_of(const ConsumerPlan& plan) {
  std::vector<Names> result;
  for (const Chunk& chunk : plan.chunks) {
    result.push_back({});
    for (const SliceKey& key : chunk.keys) result.back().push_back(key.source);
  }
  return result;
}
std::vector<Ranks> frees_of(const ConsumerPlan& plan) {
  std::vector<Ranks> result;
  for (const Chunk& chunk : plan.chunks) result.push_back(chunk.free);
  return result;
}

TEST(Layout, L1_L2_P3_both_sides_compute_the_same_disjoint_places) {
  const std::vector<std::pair<DType, Shape>> slices = {
      {DType::f8_e4m3, {17}}, {DType::f32, {3}}, {DType::bf16, {5}},
      {DType::f64, {1, 7}},   {DType::u8, {1}},  {DType::bf16, {1024}}};
  PackedLayout layout;
  ChainBook book;
  std::vector<int> chains;
  std::int64_t end = 0;
  std::vector<std::int64_t> offsets;
  for (const auto& [dtype, shape] : slices) {
    layout.add(dtype, shape);
    chains.push_back(book.start(dtype, shape.span()));
    while (end % 16 != 0) ++end;
    offsets.push_back(end);
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    end += size * byte_size(dtype);
  }
  EXPECT_EQ(pack_slices(book, chains), layout);
  EXPECT_EQ(layout.bytes, end);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(layout.slices[i].offset_bytes, offsets[i]);
    EXPECT_EQ(layout.slices[i].offset_bytes % 16, 0);
  }
}

TEST(Layout, L3_L4_a_key_is_packed_once_for_two_copies) {
  const Router router(facts({1, 1}, 1));
  const ConsumerPlan plan = plan_consumer(router, 0, {module("m", {"n0", "n0"})});
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].layout.slices, (std::vector<PackedSlice>{{0, DType::bf16, 6, {6}}}));
  EXPECT_EQ(plan.chunks[0].scatters.size(), 2U);
}

TEST(Layout, T23_T24_layouts_of_other_shapes_or_dtypes_differ_at_equal_bytes) {
  PackedLayout flat;
  flat.add(DType::bf16, {6});
  PackedLayout square;
  square.add(DType::bf16, {2, 3});
  PackedLayout half;
  half.add(DType::f16, {6});
  EXPECT_EQ(flat.bytes, square.bytes);
  EXPECT_EQ(flat.bytes, half.bytes);
  EXPECT_NE(flat, square);
  EXPECT_NE(flat, half);
}

TEST(Layout, Z4_a_slice_of_no_elements_is_refused) {
  BakedModule empty = module("m", {"n0"});
  empty.scatters[0].shape = {0, 4};
  EXPECT_EQ(error_of([&] {
              plan_consumer(Router(facts({1, 1}, 1)), 0, {empty});
            }),
            "pack: a slice has no elements\n  shape  [0, 4]\n  source  n0\n  module  m\n"
            "  parameter  weight");
}

TEST(Layout, Z20_two_copies_of_a_slice_agree_in_size) {
  BakedModule two = module("m", {"n0", "n0"});
  two.scatters[1].shape = {2, 3};
  EXPECT_EQ(plan_consumer(Router(facts({1, 1}, 1)), 0, {two}).chunks.size(), 1U);
  two.scatters[1].shape = {7};
  EXPECT_EQ(error_of([&] {
              plan_consumer(Router(facts({1, 1}, 1)), 0, {two});
            }),
            "plan: two copies of one slice differ in size or dtype\n  source  n0\n  calls  []\n"
            "  module  m\n  parameter  weight\n  first  BF16 [6]\n  this  BF16 [7]");
}

// One group of these names.
RouterFacts one_group(const Names& names, std::vector<Ranks> owner_sets = {}, Ranks classes = {}) {
  return {.producer_count = 4,
          .consumer_count = 1,
          .names = names,
          .group_sizes = {static_cast<int>(names.size())},
          .owner_sets = std::move(owner_sets),
          .class_of_name = std::move(classes)};
}

TEST(Chunks, C1_one_class_is_one_chunk) {
  const Names names = {"a", "b", "c", "d", "e"};
  const Router router(one_group(names));
  EXPECT_EQ(chunks_of(plan_consumer(router, 0, {module("m", names)})), std::vector<Names>{names});
}

TEST(Chunks, C2_classes_ascend_by_first_appearance) {
  const Router router(one_group({"norm", "e5", "e0", "e2"}, {{0}, {3}, {1}, {2}}, {0, 1, 2, 3}));
  const ConsumerPlan plan =
      plan_consumer(router, 0, {module("m", {"e0", "e2", "e5"}), module("n", {"norm"})});
  EXPECT_EQ(chunks_of(plan), (std::vector<Names>{{"norm"}, {"e5"}, {"e0"}, {"e2"}}));
}

TEST(Chunks, C3_C5_the_order_of_the_bake_is_kept) {
  const Router router(one_group({"e1", "e2", "e3"}));
  BakedModule experts = module("moe", {"e3", "e1", "e2"});
  experts.scatters[1].dtype = DType::f32;
  const ConsumerPlan plan = plan_consumer(router, 0, {experts});
  EXPECT_EQ(chunks_of(plan), (std::vector<Names>{{"e3", "e1", "e2"}}));
  EXPECT_EQ(plan.chunks[0].layout.slices[1].dtype, DType::f32);
}

TEST(Chunks, C4_two_modules_interleave_by_class) {
  const Router router(one_group({"a0", "a1", "b0", "b1"}, {{1}, {2}}, {0, 1, 0, 1}));
  const ConsumerPlan plan =
      plan_consumer(router, 0, {module("a", {"a0", "a1"}), module("b", {"b0", "b1"})});
  EXPECT_EQ(chunks_of(plan), (std::vector<Names>{{"a0", "b0"}, {"a1", "b1"}}));
  EXPECT_EQ(plan.chunks[0].producer, 1);
  EXPECT_EQ(plan.chunks[1].producer, 2);
}

// One module for each group, `n0` and so on; those named in `absent` have none.
std::vector<BakedModule> modules_for(int groups, const std::set<int>& absent = {}) {
  std::vector<BakedModule> result;
  for (int g = 0; g < groups; ++g) {
    if (absent.count(g) == 0) result.push_back(module("m" + std::to_string(g), {name(g)}));
  }
  return result;
}

TEST(Build, B1_B5_B11_a_chunk_for_each_group_which_frees_it) {
  const Router router(facts({1, 1}, 5));
  const ConsumerPlan plan = plan_consumer(router, 0, modules_for(5));
  EXPECT_EQ(plan.free_first, Ranks());
  EXPECT_EQ(frees_of(plan), (std::vector<Ranks>{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(plan_consumer(router, 0, modules_for(5)), plan);
}

TEST(Build, B2_B3_B4_B6_a_split_group_materialises_first_and_processes_and_frees_last) {
  const Router router(one_group({"d", "e", "f"}, {{0}, {1}, {2}}, {0, 1, 2}));
  const ConsumerPlan plan = plan_consumer(router, 0, {module("L", {"d", "e", "f"})});
  ASSERT_EQ(plan.chunks.size(), 3U);
  EXPECT_EQ(frees_of(plan), (std::vector<Ranks>{{}, {}, {0}}));
  EXPECT_EQ(plan.chunks[0].materialize, Ranks{0});
  EXPECT_EQ(plan.chunks[2].materialize, Ranks());
  EXPECT_EQ(plan.chunks[0].process, Ranks());
  EXPECT_EQ(plan.chunks[2].process, Ranks{0});
}

TEST(Build, B7_two_split_groups) {
  RouterFacts given = one_group({"a", "b", "c", "d"}, {{0}, {1}}, {0, 1, 0, 1});
  given.group_sizes = {2, 2};
  const ConsumerPlan plan =
      plan_consumer(Router(given), 0, {module("x", {"a", "b"}), module("y", {"c", "d"})});
  EXPECT_EQ(frees_of(plan), (std::vector<Ranks>{{}, {0}, {}, {1}}));
}

TEST(Build, B8_B9_U2_groups_with_nothing_here_are_freed_first) {
  const Router router(facts({1, 1}, 4));
  const ConsumerPlan plan = plan_consumer(router, 0, modules_for(4, {2}));
  EXPECT_EQ(plan.free_first, Ranks{2});
  EXPECT_EQ(frees_of(plan), (std::vector<Ranks>{{0}, {1}, {3}}));
  EXPECT_EQ(plan_consumer(router, 0, modules_for(4, {0})).free_first, Ranks{0});
  EXPECT_EQ(plan_consumer(router, 0, modules_for(4, {3})).free_first, Ranks{3});
}

TEST(Build, B10_B12_fused_names_are_one_module_from_the_only_producer) {
  const Router router(RouterFacts{
      .names = {"q", "k", "v"}, .group_sizes = {3}, .owner_sets = {}, .class_of_name = {}});
  const ConsumerPlan plan = plan_consumer(router, 0, {module("qkv", {"q", "k", "v"})});
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].scatters.size(), 3U);
  EXPECT_EQ(plan.chunks[0].materialize, Ranks{0});
  EXPECT_EQ(plan.chunks[0].producer, 0);
}

TEST(Build, O6_a_plan_carries_the_consumer_of_the_fleet_and_numbers_pulls_by_producer) {
  const Router router(facts({2, 4}, 4, {{0}, {1}}, {0, 1, 0, 0}));
  const ConsumerPlan plan = plan_consumer(router, 3, modules_for(4));
  EXPECT_EQ(plan.consumer, 3);
  Ranks sequences;
  for (const Chunk& chunk : plan.chunks) sequences.push_back(chunk.sequence);
  EXPECT_EQ(sequences, (Ranks{0, 0, 1, 2}));
}

TEST(Build, U1_live_names_that_did_not_bake) {
  const Router router(facts({1, 1}, 5));
  EXPECT_EQ(error_of([&] {
              plan_consumer(router, 0, {}, {"n0", "x", "n2", "n3", "n4"});
            }),
            "plan: tensors that a loader copies did not bake\n  tensors  4\n  first  n0, n2, n3");
}

TEST(Build, a_source_that_is_not_announced) {
  EXPECT_EQ(error_of([] {
              plan_consumer(Router(facts({1, 1}, 1)), 0, {module("m", {"other"})});
            }),
            "plan: a recorded source is not announced\n  source  other\n  module  m");
}

TEST(Build, Z6_a_name_that_feeds_two_modules_reaches_both) {
  const Router router(facts({1, 1}, 1));
  const ConsumerPlan plan = plan_consumer(router, 0, {module("a", {"n0"}), module("b", {"n0"})});
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].materialize, (Ranks{0, 1}));
  EXPECT_EQ(plan.chunks[0].keys.size(), 1U);
}

// Eight experts of four layers, two on each of four trainer ranks, and an engine rank with four.
ConsumerPlan experts_plan(const std::vector<int>& local) {
  RouterFacts given{.producer_count = 4,
                    .consumer_count = 2,
                    .names = {},
                    .group_sizes = {8, 8, 8, 8},
                    .owner_sets = {{0}, {1}, {2}, {3}},
                    .class_of_name = {}};
  std::vector<BakedModule> modules;
  for (int layer = 0; layer < 4; ++layer) {
    Names sources;
    for (int e = 0; e < 8; ++e) {
      given.names.push_back("l." + std::to_string(layer) + ".e" + std::to_string(e));
      given.class_of_name.push_back(e / 2);
      if (std::count(local.begin(), local.end(), e) > 0) sources.push_back(given.names.back());
    }
    modules.push_back(module("moe" + std::to_string(layer), sources));
  }
  return plan_consumer(Router(given), 0, modules);
}

TEST(Experts, S1_S2_S3_every_group_is_signalled_once_for_any_placement) {
  for (const auto& [local, chunks] : std::vector<std::pair<Ranks, std::size_t>>{
           {{0, 1, 2, 3}, 8}, {{0, 2, 4, 6}, 16}, {{0, 1, 2, 5}, 12}}) {
    const ConsumerPlan plan = experts_plan(local);
    EXPECT_EQ(plan.chunks.size(), chunks);
    Ranks freed = plan.free_first;
    for (const Chunk& chunk : plan.chunks) {
      freed.insert(freed.end(), chunk.free.begin(), chunk.free.end());
    }
    EXPECT_EQ(freed, (Ranks{0, 1, 2, 3}));
  }
}

TEST(Experts, S4_a_module_in_four_chunks_is_materialised_first_and_processed_last) {
  const ConsumerPlan plan = experts_plan({0, 2, 4, 6});
  EXPECT_EQ(plan.chunks[0].materialize, Ranks{0});
  EXPECT_EQ(plan.chunks[1].materialize, Ranks());
  EXPECT_EQ(plan.chunks[2].process, Ranks());
  EXPECT_EQ(plan.chunks[3].process, Ranks{0});
}

TEST(Buffers, H1_sizes) {
  constexpr std::int64_t kMiB = 1 << 20;
  EXPECT_EQ(buffer_alloc_bytes(0, 0), 0);
  EXPECT_EQ(buffer_alloc_bytes(1, 0), 256 * kMiB);
  EXPECT_EQ(buffer_alloc_bytes(256 * kMiB, 0), 256 * kMiB);
  EXPECT_EQ(buffer_alloc_bytes(256 * kMiB + 1, 0), 512 * kMiB);
  EXPECT_EQ(buffer_alloc_bytes(1, 3072 * kMiB), 3072 * kMiB);
  EXPECT_EQ(buffer_alloc_bytes(1, 257 * kMiB + 3), 257 * kMiB + 3);
}

TEST(ServedCalls, A1_A2_A3_A4_one_table_of_thirteen_without_to_and_with_t) {
  EXPECT_EQ(std::size(kServedCalls), 13U);
  for (const OpKind kind : kServedCalls) EXPECT_EQ(served_call(name_of(kind)), kind);
  EXPECT_EQ(served_call("t"), OpKind::t);
  for (const char* name : {"to", "split", "select", "float", ""}) {
    EXPECT_EQ(error_of([&] { served_call(name); }),
              std::string("serve: disallowed op\n  op  ") + name +
                  "\n  ops  narrow, view, reshape, __getitem__, unsqueeze, squeeze, transpose, t, "
                  "permute, flatten, contiguous, chunk, unbind");
  }
}

// -- Groups --------------------------------------------------------------------------------------

TEST(Groups, G1_G2_G6_G7_names_split_by_place_and_none_is_lost) {
  const Names names = {"embed", "l.0.a", "l.1.a", "l.0.b", "norm"};
  const NameGroups groups = name_groups(names);
  EXPECT_EQ(groups, (NameGroups{{"embed"}, {"l.0.a", "l.0.b"}, {"l.1.a"}, {"norm"}}));
  std::multiset<std::string> all;
  for (const Names& group : groups) {
    EXPECT_FALSE(group.empty());
    all.insert(group.begin(), group.end());
  }
  EXPECT_EQ(all, std::multiset<std::string>(names.begin(), names.end()));
}

TEST(Groups, G3_G4_G5_layers_by_number_stacks_by_appearance_the_rest_last) {
  EXPECT_EQ(name_groups({"b.10.x", "b.2.x", "norm", "a.1.x", "a.0.x"}),
            (NameGroups{{"b.2.x"}, {"b.10.x"}, {"a.0.x"}, {"a.1.x"}, {"norm"}}));
}

TEST(Groups, G8_without_layers_there_is_one_group) {
  EXPECT_EQ(name_groups({"x", "y"}), (NameGroups{{"x", "y"}}));
}

TEST(Groups, G10_G11_G12_experts_stay_and_towers_are_apart) {
  EXPECT_EQ(
      name_groups({"vision.0.w", "text.0.experts.7.w", "text.0.experts.0.w", "text.0.gate"}),
      (NameGroups{{"vision.0.w"}, {"text.0.experts.7.w", "text.0.experts.0.w", "text.0.gate"}}));
}

TEST(Groups, T5_batches_come_group_by_group) {
  const Names names = {"embed", "l.0.a", "l.1.a", "norm"};
  const std::vector<Batch> all = batches(names, {}, names);
  ASSERT_EQ(all.size(), 4U);
  for (const Batch& batch : all) EXPECT_EQ(batch.names.size(), 1U);
}

TEST(Groups, T7_T11_another_order_is_an_error_also_of_the_groups_one_owns) {
  const Names names = {"embed", "l.0.a", "l.0.b", "norm"};
  EXPECT_EQ(error_of([&] {
              batches(names, Names{"l.0.b"}, {"l.0.b", "l.0.a"});
            }),
            "iterate: iteration order must match metadata\n  index  0\n  yielded  l.0.b\n"
            "  expected  l.0.a");
}

// -- What trainers own ---------------------------------------------------------------------------

const Names kFour = {"embed", "l.0.a", "l.1.a", "norm"};

TEST(Owners, T10_classes_are_numbered_by_first_appearance) {
  EXPECT_EQ(owner_classes({{kFour, false, {"l.0.a", "l.1.a"}}, {kFour, false, {"embed", "norm"}}}),
            (OwnerClasses{{{1}, {0}}, {0, 1, 1, 0}}));
  EXPECT_EQ(held_groups(kFour, Names{"l.0.a", "l.1.a"}), (NameGroups{{"l.0.a"}, {"l.1.a"}}));
}

TEST(Owners, T18_by_default_every_rank_holds_all) {
  EXPECT_EQ(owner_classes({{kFour, true, {}}, {kFour, true, {}}}),
            (OwnerClasses{{{0, 1}}, {0, 0, 0, 0}}));
}

TEST(Owners, T19_a_held_name_that_is_not_in_the_metadata) {
  EXPECT_EQ(error_of([] {
              owner_classes({{kFour, false, {"other"}}});
            }),
            "own: a held name is not in the metadata\n  name  other\n  rank  0");
}

TEST(Owners, T20_a_rank_that_holds_nothing) {
  EXPECT_EQ(error_of([] {
              owner_classes({{kFour, true, {}}, {kFour, false, {}}});
            }),
            "own: a trainer rank holds no name\n  rank  1");
}

TEST(Owners, T21_a_name_that_nobody_holds) {
  EXPECT_EQ(error_of([] {
              owner_classes({{kFour, false, {"embed", "l.0.a", "norm"}}});
            }),
            "own: no trainer rank holds a name\n  name  l.1.a");
}

TEST(Owners, T22_ranks_that_list_other_names) {
  EXPECT_EQ(error_of([] {
              owner_classes({{kFour, true, {}}, {{"embed", "l.0.b"}, true, {}}});
            }),
            "own: metadata disagrees across trainer ranks\n  index  1\n  rank 0  l.0.a\n"
            "  rank 1  l.0.b");
}

TEST(Owners, names_that_do_not_lie_group_by_group) {
  EXPECT_EQ(error_of([] {
              owner_classes({{{"l.0.a", "l.1.a", "l.0.b"}, true, {}}});
            }),
            "own: metadata is not group-contiguous\n  index  1\n  name  l.1.a\n"
            "  name by groups  l.0.b\n"
            "  hint  list the names of a layer one after another, layers in order");
}

}  // namespace
}  // namespace crossmesh::profiles
