// SPDX-License-Identifier: Apache-2.0
// What a producer of a pull transport promises, row by row of the old system's checklist.
#include <gtest/gtest.h>

#include <map>

#include "crossmesh/base/error.h"
#include "crossmesh/profiles/free_barrier.h"
#include "crossmesh/profiles/producer_pack.h"
#include "crossmesh/profiles/serve_slots.h"
#include "tests/error_of.h"

namespace crossmesh::profiles {
namespace {

using testing::error_of;
using Groups = std::vector<int>;

// A producer that serves groups 0 … count - 1, two names each.
struct Producer {
  FreeBarrier barrier;
  int update = 0;

  explicit Producer(int live_count, int groups = 1) : update(barrier.begin(live_count)) {
    for (int g = 0; g < groups; ++g) publish(g);
  }
  void publish(int group) {
    const std::string prefix = "l." + std::to_string(group);
    barrier.publish(group, {prefix + ".a", prefix + ".b"});
  }
  void signal(int group, int times = 1) {
    for (int i = 0; i < times; ++i) barrier.signal(update, group);
  }
};

TEST(Producer, P1_publish_serves_all_names) {
  const Producer producer(1);
  EXPECT_TRUE(producer.barrier.serves("l.0.a"));
  EXPECT_TRUE(producer.barrier.serves("l.0.b"));
  EXPECT_FALSE(producer.barrier.serves("l.1.a"));
}

TEST(Producer, P4_P5_a_published_group_is_in_flight) {
  EXPECT_EQ(Producer(1, 3).barrier.in_flight(), (Groups{0, 1, 2}));
}

TEST(Producer, P6_default_lookahead_is_one_group) {
  EXPECT_TRUE(may_gather(1, 1));
  EXPECT_FALSE(may_gather(2, 1));
}

TEST(Producer, P7_a_single_signal_releases) {
  Producer producer(1);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
}

TEST(Producer, P8_P9_three_consumers_hold_until_the_last_and_names_stay) {
  Producer producer(3);
  for (int i = 0; i < 2; ++i) {
    producer.signal(0);
    EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
    EXPECT_TRUE(producer.barrier.serves("l.0.a"));
  }
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
}

TEST(Producer, P10_an_early_signal_completes_at_publish) {
  Producer producer(1, 0);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
  producer.publish(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
}

TEST(Producer, P11_three_early_signals_complete_at_publish) {
  Producer producer(3, 0);
  producer.signal(0, 3);
  producer.publish(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
}

TEST(Producer, golden_vector_9_one_early_and_two_late_signals) {
  Producer producer(3, 0);
  producer.signal(0);
  producer.publish(0);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
}

TEST(Producer, P12_freed_is_told_once) {
  Producer producer(1);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
}

TEST(Producer, P13_an_unknown_group_has_no_effect) {
  Producer producer(1);
  producer.signal(7);
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
  EXPECT_EQ(producer.barrier.in_flight(), Groups{0});
}

TEST(Producer, P14_release_drops_names_count_and_group) {
  Producer producer(1, 2);
  producer.signal(0);
  EXPECT_FALSE(producer.barrier.serves("l.0.a"));
  EXPECT_TRUE(producer.barrier.serves("l.1.a"));
  EXPECT_EQ(producer.barrier.signal_count(0), 0);
  EXPECT_EQ(producer.barrier.in_flight(), Groups{1});
}

TEST(Producer, P15_publish_never_waits_and_takes_a_group_once) {
  Producer producer(1, 3);
  EXPECT_EQ(producer.barrier.in_flight().size(), 3U);
  EXPECT_EQ(error_of([&] { producer.publish(1); }),
            "publish: the group is already served\n  group  1");
}

// A trainer gathers while it may, and consumers let groups go in order.
int most_resident(int lookahead, int groups) {
  Producer producer(1, 0);
  int most = 0;
  int unfreed = 0;
  int freed = 0;
  for (int group = 0; group < groups; ++group) {
    while (!may_gather(unfreed, lookahead)) {
      producer.signal(freed++);
      unfreed -= static_cast<int>(producer.barrier.take_freed()->size());
    }
    producer.publish(group);
    most = std::max(most, ++unfreed);
  }
  return most;
}

TEST(Producer, P16_lookahead_1_has_two_groups_resident) { EXPECT_EQ(most_resident(1, 9), 2); }
TEST(Producer, P17_lookahead_0_has_one_group_resident) { EXPECT_EQ(most_resident(0, 9), 1); }
TEST(Producer, P18_lookahead_2_has_three_groups_resident) { EXPECT_EQ(most_resident(2, 9), 3); }
TEST(Producer, a_negative_lookahead_is_none) { EXPECT_EQ(most_resident(-4, 9), 1); }

TEST(Producer, P19_groups_are_told_in_the_order_they_were_let_go) {
  Producer producer(1, 3);
  producer.signal(2);
  producer.signal(0);
  producer.signal(1);
  EXPECT_EQ(producer.barrier.take_freed(), (Groups{2, 0, 1}));
}

TEST(Producer, P20_P36_an_error_reaches_every_waiter) {
  Producer producer(2);
  producer.barrier.fail("no memory");
  producer.barrier.fail("a later one");
  const std::string text = "serve: the gather errored\n  reason  no memory";
  EXPECT_EQ(error_of([&] { producer.barrier.take_freed(); }), text);
  EXPECT_EQ(error_of([&] { producer.barrier.serves("l.0.a"); }), text);
}

TEST(Producer, P21_finish_is_immediate_when_nothing_is_in_flight) {
  Producer producer(1);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.finish(), Groups{0});
  EXPECT_EQ(producer.barrier.finish(), Groups{});
}

TEST(Producer, P22_finish_waits_for_what_is_in_flight) {
  Producer producer(1, 2);
  producer.signal(0);
  EXPECT_EQ(producer.barrier.finish(), std::nullopt);
  producer.signal(1);
  EXPECT_EQ(producer.barrier.finish(), (Groups{0, 1}));
}

TEST(Producer, P23_an_error_releases_finish_without_throwing) {
  Producer producer(1, 2);
  producer.signal(1);
  producer.barrier.fail("lost");
  EXPECT_EQ(producer.barrier.finish(), Groups{1});
}

TEST(Producer, P24_P25_P26_the_count_of_the_update_is_the_target_and_at_least_one) {
  for (const int live : {3, 1, 0, -2}) {
    Producer producer(live);
    producer.signal(0, std::max(live, 1) - 1);
    EXPECT_EQ(producer.barrier.take_freed(), std::nullopt) << live;
    producer.signal(0);
    EXPECT_EQ(producer.barrier.take_freed(), Groups{0}) << live;
  }
}

TEST(Producer, P27_P29_begin_clears_all_state_names_and_error_included) {
  Producer producer(2, 3);
  producer.signal(0);
  producer.barrier.fail("lost");
  producer.update = producer.barrier.begin(2);
  EXPECT_EQ(producer.barrier.in_flight(), Groups{});
  EXPECT_EQ(producer.barrier.signal_count(0), 0);
  EXPECT_EQ(producer.barrier.error(), std::nullopt);
  EXPECT_FALSE(producer.barrier.serves("l.0.a")) << "Z13: an aborted update serves nothing";
}

TEST(Producer, P28_a_straggler_cannot_credit_the_next_update) {
  Producer producer(1);
  const int earlier = producer.update;
  producer.update = producer.barrier.begin(1);
  producer.barrier.signal(earlier, 0);
  producer.publish(0);
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
}

TEST(Producer, P31_P32_P33_a_wrong_producer_says_which_names) {
  check_served({"a", "b"}, {"b", "a", "c"});
  EXPECT_EQ(error_of([] {
              check_served({"a", "w", "x", "y", "z"}, {"a"});
            }),
            "serve: this is the wrong producer for some names\n  names  4\n  first  w, x, y");
}

TEST(Producer, P34_P35_a_stall_is_an_error_of_both_waits) {
  Producer producer(1);
  const ProgressWatch watch{.timeout_ms = 300, .last_ms = 1000};
  EXPECT_FALSE(watch.is_stalled(1299));
  ASSERT_TRUE(watch.is_stalled(1300));
  producer.barrier.fail(stall_text(watch, 1300));
  EXPECT_EQ(error_of([&] { producer.barrier.take_freed(); }),
            "serve: the gather errored\n  reason  RDT stall: no progress for 300 ms, the limit is "
            "300 ms");
  EXPECT_NE(producer.barrier.finish(), std::nullopt);
  EXPECT_NE(producer.barrier.error(), std::nullopt);
}

TEST(Producer, P37_P38_slow_progress_never_trips) {
  ProgressWatch watch{.timeout_ms = 300, .last_ms = 0};
  for (std::int64_t now = 100; now <= 900; now += 100) {
    EXPECT_FALSE(watch.is_stalled(now)) << now;
    watch.last_ms = now;
  }
}

TEST(Producer, P39_the_default_timeout_is_five_minutes) {
  EXPECT_EQ(ProgressWatch().timeout_ms, 300'000);
}

TEST(Producer, P40_twelve_groups_are_all_freed_in_any_order) {
  Producer producer(3, 12);
  for (int i = 0; i < 36; ++i) producer.signal(i * 5 % 12);
  EXPECT_EQ(producer.barrier.take_freed().value().size(), 12U);
}

TEST(Producer, P41_eight_signals_release_once) {
  Producer producer(8);
  producer.signal(0, 8);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
  EXPECT_EQ(producer.barrier.take_freed(), std::nullopt);
}

TEST(Producer, a_signal_after_the_release_starts_a_new_count) {
  Producer producer(2);
  producer.signal(0, 3);
  EXPECT_EQ(producer.barrier.take_freed(), Groups{0});
  EXPECT_EQ(producer.barrier.signal_count(0), 1);
}

TEST(ExportSlots, P44_a_slot_grows_and_never_shrinks) {
  ExportSlots slots;
  const int first = slots.acquire(0, 100);
  slots.release(0);
  EXPECT_EQ(slots.acquire(1, 300), first);
  slots.release(1);
  EXPECT_EQ(slots.acquire(2, 50), first);
  EXPECT_EQ(slots.slot_bytes(first), 300);
}

TEST(ExportSlots, P45_P46_P47_live_groups_never_share_a_slot) {
  ExportSlots slots;
  std::map<int, int> slot_of_group;
  for (int group = 0; group < 50; ++group) {
    const int slot = slots.acquire(group, 16);
    for (const auto& [other, taken] : slot_of_group) EXPECT_NE(taken, slot) << other;
    slot_of_group[group] = slot;
    if (group % 3 == 2) {  // out of order
      const int freed = group - (group % 2 == 0 ? 2 : 1);
      slots.release(freed);
      slot_of_group.erase(freed);
    }
  }
  EXPECT_EQ(error_of([&] { slots.acquire(49, 16); }), "export: the group has a slot\n  group  49");
}

// -- Sharing -------------------------------------------------------------------------------------

constexpr Arrival::Kind kWaits = Arrival::Kind::waits;
constexpr Arrival::Kind kPacks = Arrival::Kind::packs;

TEST(Sharing, Q1_one_deployment_shares_nothing) {
  ServeSlots slots({.slot_count = 2, .width = 2});
  slots.begin(std::vector<int>{0, 1});
  EXPECT_EQ(slots.arrive(0, 0), (Arrival{kPacks, 0, 0}));
  EXPECT_EQ(slots.arrive(1, 0), (Arrival{kPacks, 1, 0}));
}

TEST(Sharing, Q2_Q3_the_last_of_two_replicas_packs_for_both) {
  ServeSlots slots({.slot_count = 2, .width = 1});
  slots.begin(std::vector<int>{0, 1});
  EXPECT_EQ(slots.arrive(0, 0), (Arrival{kWaits, 0, 0}));
  EXPECT_FALSE(slots.is_packed(0, 0));
  EXPECT_EQ(slots.arrive(1, 0), (Arrival{kPacks, 0, 0}));
  slots.packed(1, 0);
  EXPECT_TRUE(slots.is_packed(0, 0));
}

TEST(Sharing, Q4_slots_follow_the_order_of_issue) {
  ServeSlots slots({.slot_count = 2});
  slots.begin({});
  EXPECT_EQ(slots.arrive(0, 1).slot, 1);
  EXPECT_EQ(slots.arrive(0, 0).slot, 0);
  EXPECT_EQ(slots.arrive(0, 2).slot, 0);
}

TEST(Sharing, Q5_a_pull_has_a_sequence_number) {
  ServeSlots slots({});
  EXPECT_EQ(error_of([&] { slots.arrive(3, -1); }),
            "serve: a pull has no sequence number\n  consumer  3\n  sequence  -1");
}

TEST(Sharing, Q6_a_failed_pack_reaches_every_sharer) {
  ServeSlots slots({.slot_count = 2, .width = 1});
  slots.begin(std::vector<int>{0, 1});
  slots.arrive(0, 0);
  slots.arrive(1, 0);
  slots.failed(1, 0, "bad op");
  for (const int consumer : {0, 1}) {
    EXPECT_EQ(error_of([&] { slots.is_packed(consumer, 0); }),
              "serve: packing this chunk failed\n  consumer  " + std::to_string(consumer) +
                  "\n  sequence  0\n  reason  bad op");
  }
}

TEST(Sharing, Q7_a_degraded_fleet_narrows_the_rendezvous) {
  ServeSlots slots({.slot_count = 2, .width = 2});
  slots.begin(std::vector<int>{0, 1, 3});
  EXPECT_EQ(slots.sharers(0), Groups{0});
  EXPECT_EQ(slots.sharers(1), (Groups{1, 3}));
  EXPECT_EQ(slots.arrive(0, 0).kind, kPacks);
  EXPECT_EQ(slots.arrive(3, 0).kind, kWaits);
  EXPECT_EQ(slots.arrive(1, 0).kind, kPacks);
}

TEST(Sharing, Q8_a_missing_sharer_leaves_the_pull_unpacked) {
  ServeSlots slots({.slot_count = 2, .width = 1});
  slots.begin(std::vector<int>{0, 1});
  EXPECT_EQ(slots.arrive(0, 0).kind, kWaits);
  EXPECT_EQ(slots.arrive(0, 0).kind, kWaits);
  EXPECT_FALSE(slots.is_packed(0, 0));
}

TEST(Sharing, Q9_Q10_rings_by_place_in_the_deployment_or_one_each) {
  ServeSlots wide({.slot_count = 2, .width = 2});
  wide.reserve(0, 100, {});
  wide.reserve(2, 300, {});
  EXPECT_EQ(wide.ring_count(), 1);
  EXPECT_EQ(wide.ring_bytes(0), 300);
  ServeSlots narrow({.slot_count = 2, .width = 0});
  narrow.reserve(0, 100, {});
  narrow.reserve(2, 300, {});
  EXPECT_EQ(narrow.ring_count(), 2);
}

TEST(Sharing, Q11_Q12_Q13_ranks_of_a_ring_pull_the_same_chunks) {
  ServeSlots slots({.slot_count = 2, .width = 2});
  slots.reserve(0, 1, "a");
  slots.reserve(1, 1, "b");
  slots.reserve(2, 1, {});
  EXPECT_EQ(error_of([&] { slots.reserve(2, 1, "c"); }),
            "reserve: ranks of one ring do not pull the same chunks\n  consumer  2\n"
            "  its digest  c\n  other consumer  0\n  other digest  a");
  EXPECT_EQ(error_of([&] { slots.reserve(1, 1, "d"); }),
            "reserve: ranks of one ring do not pull the same chunks\n  consumer  1\n"
            "  its digest  d\n  other consumer  1\n  other digest  b");
}

TEST(Sharing, P30_what_was_reserved_survives_an_update) {
  ServeSlots slots({.slot_count = 2, .width = 1});
  slots.reserve(0, 100, "a");
  slots.begin({});
  EXPECT_EQ(slots.ring_bytes(0), 100);
  EXPECT_NE(error_of([&] { slots.reserve(1, 1, "b"); }), "no error");
}

}  // namespace
}  // namespace crossmesh::profiles
