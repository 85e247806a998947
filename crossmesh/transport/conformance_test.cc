// SPDX-License-Identifier: Apache-2.0
// What every transport has to do, run for every back-end: ranks as threads, then as processes.
#include "crossmesh/transport/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace crossmesh::conformance {
namespace {

constexpr auto kGive = Direction::give;
constexpr auto kTake = Direction::take;

class Conformance : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string why = why_not_here(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  void run(int count, const Body& body) { EXPECT_EQ(run_ranks(GetParam(), count, body), ""); }
};

INSTANTIATE_TEST_SUITE_P(Ways, Conformance, testing::ValuesIn(kWays),
                         [](const auto& way) { return name_of(way.param); });

std::string to_text(const Progress& progress) {
  return fmt::format("{}{}", progress.done, progress.finished ? " finished" : "");
}

// Rank 0 gives and rank 1 takes.
struct Pair {
  explicit Pair(Rank& r) : rank(r), gives(r.number() == 0) {}
  Batch batch(Attempt attempt, std::span<const Transfer> transfers) const {
    return {1 - rank.number(), gives ? kGive : kTake, attempt, transfers};
  }
  Ticket post(Attempt attempt, std::span<const Transfer> transfers) const {
    return rank.transport().post(batch(attempt, transfers));
  }
  std::string progress(const Ticket& ticket) const {
    return to_text(rank.transport().progress(ticket));
  }

  Rank& rank;
  bool gives;
};

// ---- What arrives -------------------------------------------------------------------------------

// A nest of random loops whose target runs lie apart, and the offset at which its source starts.
struct RandomCopy {
  LoopNest nest;
  std::int64_t source_first = 0;
  std::int64_t source_bytes = 0;
  std::int64_t target_bytes = 0;
};

RandomCopy random_copy(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % n); };
  RandomCopy copy;
  LoopNest& nest = copy.nest;
  const int size = 1 << below(3);
  nest.source_element_bytes = nest.target_element_bytes = size;
  nest.run_count = below(8) == 0 ? 0 : 1 + below(300);
  std::int64_t span = nest.run_count * size + below(3);
  const int loops = static_cast<int>(below(4));
  nest.counts = nest.source_strides = nest.target_strides = DimVector::filled(loops, 0);
  std::int64_t low = 0;
  std::int64_t high = nest.run_count * size;
  for (int d = loops - 1; d >= 0; --d) {
    nest.counts[d] = 1 + below(5);
    nest.target_strides[d] = span;
    span = span * nest.counts[d] + below(9);
    nest.source_strides[d] = below(400) - 100;
    const std::int64_t far = (nest.counts[d] - 1) * nest.source_strides[d];
    (far < 0 ? low : high) += far;
  }
  copy.source_first = -low;
  copy.source_bytes = high - low + 1;
  copy.target_bytes = span + 1;
  return copy;
}

// The plainest loop there is.
void copy_naively(const RandomCopy& copy, const unsigned char* source, unsigned char* target,
                  int dim = 0) {
  const LoopNest& nest = copy.nest;
  if (dim == nest.counts.size()) {
    for (std::int64_t i = 0; i < nest.run_count * nest.source_element_bytes; ++i) {
      target[i] = source[i];
    }
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[dim]; ++i) {
    copy_naively(copy, source + i * nest.source_strides[dim], target + i * nest.target_strides[dim],
                 dim + 1);
  }
}

TEST_P(Conformance, strided_transfers_arrive_exactly_and_guard_bytes_stay) {
  constexpr std::int64_t kGuard = 64;
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    std::mt19937 random(7);
    std::vector<RandomCopy> copies;
    std::vector<Transfer> transfers;
    std::int64_t source_bytes = kGuard;
    std::int64_t target_bytes = kGuard;
    for (int i = 0; i < 60; ++i) {
      const RandomCopy& copy = copies.emplace_back(random_copy(random));
      transfers.push_back({.source_offset_bytes = source_bytes + copy.source_first,
                           .target_offset_bytes = target_bytes,
                           .nest = copy.nest});
      source_bytes += copy.source_bytes + kGuard;
      target_bytes += copy.target_bytes + kGuard;
    }
    Memory source(source_bytes);
    for (std::int64_t i = 0; i < source_bytes; ++i) {
      source[i] = static_cast<unsigned char>(random());
    }
    Memory target(target_bytes, 0xaa);
    rank.transport().enroll(pair.gives ? source.buffer() : target.buffer());
    rank.connect_all();
    const Ticket ticket = pair.post(1, transfers);
    rank.advance_until([&] { return rank.transport().progress(ticket).finished; }, 100);
    check_equal(pair.progress(ticket), "60 finished");
    if (pair.gives) return rank.meet();
    Memory expected(target_bytes, 0xaa);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      copy_naively(copies[i], &source[transfers[i].source_offset_bytes],
                   &expected[transfers[i].target_offset_bytes]);
    }
    check(target.bytes() == expected.bytes(), "the bytes differ");
    rank.meet();
  });
}

TEST_P(Conformance, converting_transfers_arrive_exactly_and_guard_bytes_stay) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    constexpr int kRows = 3;
    constexpr int kColumns = 1000;
    Transfer transfer;
    transfer.target_offset_bytes = 2;
    transfer.source_dtype = DType::f32;
    transfer.target_dtype = DType::bf16;
    transfer.nest = {{kRows}, {kColumns * 4}, {kColumns * 2 + 6}, kColumns, 4, 2};
    Memory source(kRows * kColumns * 4);
    std::vector<unsigned char> expected(kRows * (kColumns * 2 + 6) + 2, 0xaa);
    for (int i = 0; i < kRows * kColumns; ++i) {
      // Halves up to 100 need 8 bits of mantissa at most, so that nothing is rounded.
      const float value = static_cast<float>(i % 200) / 2;
      std::memcpy(&source[i * 4], &value, 4);
      std::memcpy(&expected[static_cast<std::size_t>(2 + i / kColumns * (kColumns * 2 + 6) +
                                                     i % kColumns * 2)],
                  reinterpret_cast<const unsigned char*>(&value) + 2, 2);
    }
    Memory target(static_cast<std::int64_t>(expected.size()), 0xaa);
    rank.transport().enroll(pair.gives ? source.buffer() : target.buffer());
    rank.connect_all();
    const Ticket ticket = pair.post(1, std::span(&transfer, 1));
    rank.advance_until([&] { return rank.transport().progress(ticket).finished; }, 700);
    if (!pair.gives) check(target.bytes() == expected, "the bytes differ");
    rank.meet();
  });
}

TEST_P(Conformance, private_memory_can_be_taken_into) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory source(1000, 5);
    std::vector<unsigned char> target(1000);
    const Buffer into{.data = reinterpret_cast<std::byte*>(target.data()), .size_bytes = 1000};
    rank.transport().enroll(pair.gives ? source.buffer() : into);
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(1, 1000);
    rank.finish(pair.post(1, transfers));
    if (!pair.gives) check(target == std::vector<unsigned char>(1000, 5), "the bytes differ");
    rank.meet();
  });
}

TEST_P(Conformance, empty_transfers_and_empty_batches_are_done) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(8, 1);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const Ticket nothing = pair.post(1, {});
    check_equal(pair.progress(nothing), "0 finished");
    const std::vector<Transfer> transfers = pieces(3, 0);
    const Ticket ticket = pair.post(1, transfers);
    rank.finish(ticket);
    check_equal(pair.progress(ticket), "3 finished");
    rank.meet();
  });
}

// ---- When it arrives ----------------------------------------------------------------------------

TEST_P(Conformance, exactly_what_the_source_offered_is_done) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    Memory memory(500, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(5, 100);
    const std::span<const Transfer> all(transfers);
    const Ticket ticket = pair.post(1, pair.gives ? all.first(3) : all);
    rank.advance_until([&] { return rank.transport().progress(ticket).done == 3; });
    rank.meet();
    rank.settle();
    check_equal(pair.progress(ticket), pair.gives ? "3 finished" : "3");
    std::vector<unsigned char> expected(500, 9);
    std::fill(expected.begin() + 300, expected.end(), pair.gives ? 9 : 0);
    check(memory.bytes() == expected, "the bytes differ");
    rank.meet();
    // A second batch brings the rest.
    if (pair.gives) rank.finish(pair.post(1, all.subspan(3)));
    if (!pair.gives) rank.finish(ticket);
    check(memory.bytes() == std::vector<unsigned char>(500, 9), "the rest differs");
    rank.meet();
  });
}

TEST_P(Conformance, progress_is_seen_transfer_by_transfer_on_both_sides) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(400, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(4, 100);
    const Ticket ticket = pair.post(1, transfers);
    rank.meet();
    for (int done = 1; done <= 4; ++done) {
      if (!pair.gives)
        rank.advance_until([&] { return rank.transport().progress(ticket).done == done; }, 1);
      rank.meet();
      if (pair.gives) check(rank.transport().advance(1), "the source sees no progress");
      check_equal(pair.progress(ticket), fmt::format("{}{}", done, done == 4 ? " finished" : ""));
      rank.meet();
    }
  });
}

TEST_P(Conformance, a_source_is_not_done_before_the_target_pulled) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(100, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(1, 100);
    const Ticket ticket = pair.post(1, transfers);
    rank.meet();
    if (pair.gives) rank.settle();
    check_equal(pair.progress(ticket), "0");
    rank.meet();
    rank.finish(ticket);
    rank.meet();
  });
}

TEST_P(Conformance, nothing_lands_before_both_have_posted) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(200, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(1, 100);
    // In attempt 1 the source is late, in attempt 2 the target, in attempt 3 the target by an
    // attempt.
    for (const Attempt attempt : {1u, 2u}) {
      std::optional<Ticket> ticket;
      if (pair.gives == (attempt == 2)) ticket = pair.post(attempt, transfers);
      rank.meet();
      rank.settle();
      if (ticket) check_equal(pair.progress(*ticket), "0");
      check_equal(int{memory[0]}, pair.gives ? 9 : 0);
      rank.meet();
      if (!ticket) ticket = pair.post(attempt, transfers);
      rank.finish(*ticket);
      check_equal(int{memory[0]}, 9);
      rank.meet();
      if (!pair.gives) memory[0] = 0;
      rank.meet();
    }
    const Ticket ticket = pair.post(pair.gives ? 3 : 4, transfers);
    rank.meet();
    rank.settle();
    check_equal(pair.progress(ticket), "0");
    check_equal(int{memory[0]}, pair.gives ? 9 : 0);
    rank.meet();
  });
}

TEST_P(Conformance, attempts_follow_one_another_and_slots_start_over) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(600);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(6, 100);
    const std::span<const Transfer> all(transfers);
    std::vector<Ticket> tickets;
    for (const Attempt attempt : {1u, 2u, 7u}) {
      if (pair.gives) std::memset(memory.data(), static_cast<int>(attempt), 600);
      const Ticket first = pair.post(attempt, all.first(2));
      const Ticket second = pair.post(attempt, all.subspan(2));
      check_equal(first.first_slot, 0);
      check_equal(second.first_slot, 2);
      check_equal(second.count, 4);
      rank.finish(second);
      check_equal(pair.progress(first), "2 finished");
      check_equal(pair.progress(second), "4 finished");
      check(memory.bytes() == std::vector<unsigned char>(600, static_cast<unsigned char>(attempt)),
            "the bytes differ");
      rank.meet();
      tickets.push_back(second);
    }
    for (const Ticket& ticket : tickets) check_equal(pair.progress(ticket), "4 finished");
  });
}

TEST_P(Conformance, lasting_transfers_are_posted_in_every_attempt) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(600);
    const Memory other(600);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(6, 100);
    for (const Attempt attempt : {1u, 2u, 3u}) {
      // A region more is no reason to forget what was checked, or to keep it.
      if (attempt == 3) rank.transport().enroll(other.buffer());
      if (pair.gives) std::memset(memory.data(), static_cast<int>(attempt), 600);
      Batch batch = pair.batch(attempt, transfers);
      batch.is_lasting = true;
      const Ticket ticket = rank.transport().post(batch);
      check_equal(ticket.count, 6);
      rank.finish(ticket);
      check(memory.bytes() == std::vector<unsigned char>(600, static_cast<unsigned char>(attempt)),
            "the bytes differ");
      rank.meet();
    }
    // What they name is gone: as at the first time.
    rank.transport().retire(0);
    Batch batch = pair.batch(4, transfers);
    batch.is_lasting = true;
    check_equal(error_of([&] { rank.transport().post(batch); }),
                "invalid_argument: post: no such region\n  peer  " + std::to_string(batch.peer) +
                    "\n  rank  " + std::to_string(pair.gives ? 0 : 1) +
                    "\n  attempt  4\n  slot  0\n  region  0");
    rank.meet();
  });
}

// ---- Cancel -------------------------------------------------------------------------------------

TEST_P(Conformance, what_the_source_cancelled_never_lands_and_the_next_attempt_does) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(300, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(3, 100);
    if (pair.gives) {
      const Ticket ticket = pair.post(1, transfers);
      rank.transport().cancel(1, soon());
      check_equal(error_of([&] { pair.post(1, transfers); }),
                  "invalid_argument: post: the attempt was cancelled\n  peer  1\n  rank  0\n"
                  "  direction  give\n  attempt  1\n  cancelled_attempt  1");
      rank.meet();
      rank.settle();
      check_equal(pair.progress(ticket), "0");
    } else {
      rank.meet();
      const Ticket ticket = pair.post(1, transfers);
      rank.settle();
      check_equal(pair.progress(ticket), "0");
      check_equal(int{memory[0]}, 0);
      rank.transport().cancel(1, soon());
    }
    const Ticket next = pair.post(2, transfers);
    rank.finish(next);
    check_equal(int{memory[299]}, 9);
    check_equal(pair.progress(Ticket{1 - rank.number(), next.direction, 1, 0, 3}), "0");
    rank.meet();
  });
}

TEST_P(Conformance, what_the_target_cancelled_never_lands_and_the_next_attempt_does) {
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(300, pair.gives ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(3, 100);
    if (!pair.gives) {
      const Ticket ticket = pair.post(4, transfers);
      rank.transport().cancel(5, soon());
      check_equal(error_of([&] { pair.post(4, transfers); }),
                  "invalid_argument: post: the attempt was cancelled\n  peer  0\n  rank  1\n"
                  "  direction  take\n  attempt  4\n  cancelled_attempt  5");
      rank.meet();
      rank.meet();
      rank.settle();
      check_equal(pair.progress(ticket), "0");
      check_equal(int{memory[0]}, 0);
    } else {
      rank.meet();
      const Ticket ticket = pair.post(4, transfers);
      rank.meet();
      rank.settle();
      check_equal(pair.progress(ticket), "0");
      rank.transport().cancel(4, soon());
    }
    rank.meet();
    rank.finish(pair.post(6, transfers));
    check_equal(int{memory[299]}, 9);
    rank.meet();
  });
}

TEST_P(Conformance, after_cancel_returns_no_byte_is_read_even_if_a_pull_was_running) {
  constexpr std::int64_t kBytes = std::int64_t{16} << 20;
  constexpr int kPieces = 64;
  constexpr int kRoundsMax = 200;
  run(2, [](Rank& rank) {
    const Pair pair(rank);
    const Memory memory(kBytes);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    // Every other byte: slow enough for the source to come in between.
    std::vector<Transfer> transfers = pieces(kPieces, kBytes / kPieces);
    for (Transfer& transfer : transfers) {
      transfer.nest = {{transfer.nest.run_count / 2}, {2}, {2}, 1, 1, 1};
    }
    int interrupted = 0;
    for (int round = 1; round <= kRoundsMax && interrupted < 12; ++round) {
      const auto attempt = static_cast<Attempt>(round);
      if (pair.gives) std::memset(memory.data(), 1, kBytes);
      const Ticket ticket = pair.post(attempt, transfers);
      rank.meet();
      if (pair.gives) {
        // Some of it was pulled: the target is at it.
        while (rank.transport().progress(ticket).done == 0) rank.transport().advance(1);
        rank.transport().cancel(attempt, soon());
        std::memset(memory.data(), 2, kBytes);
        rank.tell(1);
        rank.hear(1);
      } else {
        while (!rank.is_told(0)) rank.transport().advance(kBytes / 4);
        rank.hear(0);
        rank.settle();
        const std::vector<unsigned char> bytes = memory.bytes();
        check(std::find(bytes.begin(), bytes.end(), 2) == bytes.end(), "a byte came late");
        rank.transport().cancel(attempt, soon());
        std::memset(memory.data(), 0, kBytes);
        rank.tell(0);
      }
      const std::string seen = rank.agree(rank.transport().progress(ticket).finished ? "1" : "0");
      interrupted += seen == "00";
    }
    check(interrupted > 0, "no pull was interrupted");
  });
}

}  // namespace
}  // namespace crossmesh::conformance
