// SPDX-License-Identifier: Apache-2.0
// What every transport has to do with several peers and several regions: serve all, and let one
// go without disturbing the others.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "crossmesh/transport/conformance.h"

namespace crossmesh::conformance {
namespace {

constexpr auto kGive = Direction::give;
constexpr auto kTake = Direction::take;

class Peers : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string why = why_not_here(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  void run(int count, const Body& body) { EXPECT_EQ(run_ranks(GetParam(), count, body), ""); }
};

INSTANTIATE_TEST_SUITE_P(Ways, Peers, testing::ValuesIn(kWays),
                         [](const auto& way) { return name_of(way.param); });

// The byte that rank `source` gives to `target` in `attempt`.
unsigned char byte_for(int source, int target, Attempt attempt) {
  return static_cast<unsigned char>(1 + source * 16 + target * 4 + static_cast<int>(attempt));
}

// Everyone in `sources` gives 5 pieces to everyone in `targets`, three times.
void exchange(Rank& rank, const std::vector<int>& sources, const std::vector<int>& targets) {
  constexpr std::int64_t kPiece = 1000;
  constexpr int kPieces = 5;
  const auto has = [&](const std::vector<int>& ranks, int r) {
    return std::find(ranks.begin(), ranks.end(), r) != ranks.end();
  };
  const bool gives = has(sources, rank.number());
  const bool takes = has(targets, rank.number());
  const std::int64_t room = kPiece * kPieces * rank.count();
  const Memory source(room);
  const Memory target(room);
  rank.transport().enroll(source.buffer());
  rank.transport().enroll(target.buffer());
  rank.connect_all();
  // What rank a gives to rank b lies at slot b of its source, and at slot a of the target's target.
  const auto transfers_of = [&](int a, int b) {
    std::vector<Transfer> transfers;
    for (int i = 0; i < kPieces; ++i) {
      transfers.push_back(contiguous({.source_region = 0,
                                      .target_region = 1,
                                      .source_offset_bytes = (b * kPieces + i) * kPiece,
                                      .target_offset_bytes = (a * kPieces + i) * kPiece,
                                      .size_bytes = kPiece}));
    }
    return transfers;
  };
  for (const Attempt attempt : {1u, 2u, 3u}) {
    std::vector<unsigned char> expected = target.bytes();
    std::vector<std::vector<Transfer>> kept;
    std::vector<Ticket> tickets;
    for (int peer = 0; peer < rank.count(); ++peer) {
      if (peer == rank.number()) continue;
      const std::int64_t slot = peer * kPieces * kPiece;
      if (gives && has(targets, peer)) {
        std::memset(source.data() + slot, byte_for(rank.number(), peer, attempt), kPieces * kPiece);
        kept.push_back(transfers_of(rank.number(), peer));
        tickets.push_back(rank.transport().post({peer, kGive, attempt, kept.back()}));
      }
      if (takes && has(sources, peer)) {
        std::fill_n(expected.begin() + slot, kPieces * kPiece,
                    byte_for(peer, rank.number(), attempt));
        kept.push_back(transfers_of(peer, rank.number()));
        tickets.push_back(rank.transport().post({peer, kTake, attempt, kept.back()}));
      }
    }
    for (const Ticket& ticket : tickets) rank.finish(ticket);
    check(target.bytes() == expected, "the bytes differ");
  }
  rank.meet();
}

TEST_P(Peers, one_source_serves_four_targets) {
  run(5, [](Rank& rank) { exchange(rank, {0}, {1, 2, 3, 4}); });
}

TEST_P(Peers, four_sources_serve_one_target) {
  run(5, [](Rank& rank) { exchange(rank, {0, 1, 3, 4}, {2}); });
}

TEST_P(Peers, everyone_serves_everyone) {
  run(4, [](Rank& rank) { exchange(rank, {0, 1, 2, 3}, {0, 1, 2, 3}); });
}

TEST_P(Peers, peers_are_served_in_turn) {
  run(3, [](Rank& rank) {
    constexpr std::int64_t kPiece = 1000;
    const Memory memory(kPiece * 8, 3);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(4, kPiece);
    if (rank.number() != 0) {
      const Ticket ticket = rank.transport().post({0, kGive, 1, transfers});
      rank.meet();
      rank.finish(ticket);
      return rank.meet();
    }
    std::vector<Ticket> tickets;
    for (const int peer : {1, 2}) {
      tickets.push_back(rank.transport().post({peer, kTake, 1, transfers}));
    }
    rank.meet();
    // Each call moves one piece; no peer gets ahead of the other by more than one.
    for (int moved = 1; moved <= 8; ++moved) {
      check(rank.transport().advance(kPiece), "nothing moved");
      const std::int64_t one = rank.transport().progress(tickets[0]).done;
      const std::int64_t two = rank.transport().progress(tickets[1]).done;
      check_equal(one + two, moved);
      check(std::abs(one - two) <= 1, "one peer waits while the other is served");
    }
    rank.meet();
  });
}

TEST_P(Peers, a_region_retires_alone_and_not_while_it_is_used) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const int peer = 1 - rank.number();
    const Direction direction = gives ? kGive : kTake;
    const Memory first(100, gives ? 1 : 0);
    const Memory second(100, gives ? 2 : 0);
    rank.transport().enroll(first.buffer());
    rank.transport().enroll(second.buffer());
    rank.connect_all();
    const std::vector<Transfer> early = {
        contiguous({.source_region = 0, .target_region = 0, .size_bytes = 100})};
    const std::vector<Transfer> late = {
        contiguous({.source_region = 1, .target_region = 1, .size_bytes = 100})};
    const Ticket ticket = rank.transport().post({peer, direction, 1, early});
    if (gives) {
      rank.transport().post({peer, direction, 1, late});
      check_equal(error_of([&] { rank.transport().retire(1); }),
                  "invalid_argument: retire: an unfinished transfer names the region\n  peer  1\n"
                  "  rank  0\n  region  1\n  direction  give");
    }
    rank.finish(ticket);
    rank.transport().retire(0);
    check_equal(error_of([&] { rank.transport().retire(0); }),
                fmt::format("invalid_argument: retire: no such region\n  region  0\n  rank  {}",
                            rank.number()));
    check_equal(error_of([&] {
                  rank.transport().post({peer, direction, 1, early});
                }),
                fmt::format("invalid_argument: post: no such region\n  peer  {}\n  rank  {}\n"
                            "  attempt  1\n  slot  {}\n  region  0",
                            peer, rank.number(), gives ? 2 : 1));
    rank.meet();
    if (!gives) {
      const Ticket rest = rank.transport().post({peer, direction, 1, late});
      check_equal(error_of([&] { rank.transport().retire(1); }),
                  "invalid_argument: retire: an unfinished transfer names the region\n  peer  0\n"
                  "  rank  1\n  region  1\n  direction  take");
      rank.finish(rest);
      check(second.bytes() == std::vector<unsigned char>(100, 2), "the bytes differ");
    }
    rank.meet();
    rank.settle();
    rank.transport().retire(1);
    // A number is not used again.
    check_equal(rank.transport().enroll(first.buffer()), 2);
    rank.meet();
  });
}

TEST_P(Peers, a_region_that_is_enrolled_late_is_known_at_once) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    rank.connect_all();
    const Memory memory(100, gives ? 4 : 0);
    const std::vector<Transfer> transfers = pieces(1, 100);
    rank.transport().enroll(memory.buffer());
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers}));
    check_equal(int{memory[99]}, 4);
    rank.meet();
  });
}

TEST_P(Peers, thousands_of_regions_reach_a_peer_that_does_not_listen) {
  constexpr int kRegions = 3000;
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const Memory memory(kRegions * 4, gives ? 6 : 0);
    const auto enroll_all = [&] {
      for (int i = 0; i < kRegions; ++i) {
        Buffer buffer = memory.buffer();
        buffer.data += i * 4;
        buffer.size_bytes = 4;
        buffer.shareable_offset_bytes = i * 4;
        rank.transport().enroll(buffer);
      }
    };
    // The target enrolls before it connects, the source afterwards.
    if (!gives) enroll_all();
    rank.connect_all();
    if (gives) enroll_all();
    std::vector<Transfer> transfers;
    for (int i = 0; i < kRegions; ++i) {
      transfers.push_back(contiguous({.source_region = i, .target_region = i, .size_bytes = 4}));
    }
    if (gives) memory[kRegions * 4 - 1] = 7;
    const Ticket ticket =
        rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers});
    rank.meet();
    rank.finish(ticket);
    check_equal(int{memory[0]}, 6);
    check_equal(int{memory[kRegions * 4 - 1]}, 7);
    for (int i = 0; i < kRegions; ++i) rank.transport().retire(i);
    rank.meet();
    rank.settle();
    rank.meet();
  });
}

TEST_P(Peers, regions_that_come_and_go_are_known_when_they_are_offered) {
  constexpr int kRegions = 3000;
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const Memory memory(8, gives ? 5 : 0);
    std::vector<Transfer> transfers;
    for (int i = 0; i < kRegions; ++i) {
      transfers.push_back(contiguous({.source_region = i, .target_region = 0, .size_bytes = 8}));
    }
    const std::span<const Transfer> all(transfers);
    rank.connect_all();
    if (!gives) {
      rank.transport().enroll(memory.buffer());
      rank.finish(rank.transport().post({0, kTake, 1, transfers}));
    }
    for (int i = 0; i < kRegions && gives; ++i) {
      rank.transport().enroll(memory.buffer());
      const auto one = all.subspan(static_cast<std::size_t>(i), 1);
      rank.finish(rank.transport().post({1, kGive, 1, one}));
      rank.transport().retire(i);
    }
    rank.meet();
  });
}

TEST_P(Peers, many_files_reach_a_peer) {
  constexpr int kFiles = 60;
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    std::vector<Memory> memories;
    std::vector<Transfer> transfers;
    for (int i = 0; i < kFiles; ++i) {
      memories.emplace_back(100, gives ? i : 0);
      rank.transport().enroll(memories.back().buffer());
      transfers.push_back(contiguous({.source_region = i, .target_region = i, .size_bytes = 100}));
    }
    rank.connect_all();
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers}));
    for (int i = 0; i < kFiles; ++i) check_equal(int{memories[i][99]}, i);
    rank.meet();
  });
}

TEST_P(Peers, offsets_past_four_gibibytes_are_reached_and_holes_take_no_memory) {
  constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
  constexpr std::int64_t kBytes = 6 * kGibibyte;
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const FileDescriptor file(::memfd_create("sparse", MFD_CLOEXEC));
    check(::ftruncate(file.get(), kBytes) == 0, "ftruncate");
    void* data =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
    check(data != MAP_FAILED, "mmap");
    const Mapping mapping(static_cast<std::byte*>(data), kBytes);
    // Three runs of 100 bytes, backwards from 5 GiB at the source, forwards from 0 at the target.
    Transfer transfer;
    transfer.source_offset_bytes = 5 * kGibibyte + 7;
    transfer.target_offset_bytes = 3;
    transfer.nest = {{3}, {-2 * kGibibyte}, {kGibibyte * 5 / 2}, 100, 1, 1};
    for (int i = 0; i < 3 && gives; ++i) {
      std::memset(mapping.data() + (5 - 2 * i) * kGibibyte + 7, i + 1, 100);
    }
    rank.transport().enroll(
        {.data = mapping.data(), .size_bytes = kBytes, .shareable_fd = file.get()});
    rank.connect_all();
    rank.finish(rank.transport().post(
        {1 - rank.number(), gives ? kGive : kTake, 1, std::span(&transfer, 1)}));
    for (int i = 0; i < 3 && !gives; ++i) {
      const std::byte* run = mapping.data() + 3 + i * (kGibibyte * 5 / 2);
      check(std::all_of(run, run + 100, [&](std::byte b) { return b == std::byte(i + 1); }),
            "the bytes differ");
    }
    rank.meet();
    struct stat status {};
    check(::fstat(file.get(), &status) == 0, "fstat");
    check(status.st_blocks * 512 <= 16 * 1024 * 1024, "holes were filled");
  });
}

TEST_P(Peers, a_region_that_is_too_small_is_a_mismatch_and_others_go_on) {
  run(3, [](Rank& rank) {
    const Memory memory(200, rank.number() == 2 ? 0 : 8);
    Buffer buffer = memory.buffer();
    if (rank.number() == 0) buffer.size_bytes = 100;
    rank.transport().enroll(buffer);
    rank.connect_all();
    // Rank 0 offers 100 bytes of its 100, and rank 2 was told 101.
    const std::vector<Transfer> short_one = pieces(1, 100);
    const std::vector<Transfer> long_one = pieces(1, 101);
    const std::vector<Transfer> fine = {contiguous({.target_offset_bytes = 101, .size_bytes = 99})};
    if (rank.number() == 0) {
      const Ticket ticket = rank.transport().post({2, kGive, 1, short_one});
      rank.meet();
      rank.meet();
      check_equal(rank.transport().progress(ticket).done, 0);
      rank.transport().cancel(1, soon());
      rank.finish(rank.transport().post({2, kGive, 2, short_one}));
    } else if (rank.number() == 1) {
      const Ticket ticket = rank.transport().post({2, kGive, 1, fine});
      rank.meet();
      rank.finish(ticket);
      rank.meet();
    } else {
      const Ticket bad = rank.transport().post({0, kTake, 1, long_one});
      const Ticket good = rank.transport().post({1, kTake, 1, fine});
      rank.meet();
      std::vector<std::string> errors;
      rank.advance_until([&] {
        const std::string error = error_of([&] { rank.transport().advance(1); });
        if (error != "no error") errors.push_back(error);
        return rank.transport().progress(good).finished;
      });
      rank.settle();
      check_equal(fmt::format("{}", fmt::join(errors, "\n")),
                  "mismatch: pull: the peer's region is smaller than a transfer says\n  peer  0\n"
                  "  rank  2\n  attempt  1\n  slot  0\n  region  0\n  region_bytes  100\n"
                  "  begin  0\n  end  101");
      check_equal(rank.transport().progress(bad).done, 0);
      check_equal(int{memory[0]}, 0);
      check_equal(int{memory[101]}, 8);
      rank.transport().cancel(1, soon());
      rank.meet();
      rank.finish(rank.transport().post({0, kTake, 2, short_one}));
      check_equal(int{memory[99]}, 8);
    }
    rank.meet();
  });
}

TEST_P(Peers, a_region_that_the_peer_does_not_have_is_a_mismatch) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const Memory memory(100);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = {
        contiguous({.source_region = gives ? 0 : 5, .size_bytes = 100})};
    rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers});
    rank.meet();
    if (!gives) {
      check_equal(error_of([&] { rank.settle(); }),
                  "mismatch: pull: the peer has no such region\n  peer  0\n  rank  1\n"
                  "  attempt  1\n  slot  0\n  region  5");
    }
    rank.meet();
  });
}

// ---- Peers that go ------------------------------------------------------------------------------

// Ends a rank as a kill would: without a word.
void die(Rank& rank) {
  if (are_processes(rank.way())) ::raise(SIGKILL);
  rank.close();
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Advances until an error, and returns it.
std::string wait_for_error(Rank& rank) {
  return error_of([&] { rank.advance_until([] { return false; }); });
}

TEST_P(Peers, a_target_that_dies_is_named_within_a_second_and_others_finish) {
  run(3, [](Rank& rank) {
    const Memory memory(500, rank.number() == 0 ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(5, 100);
    if (rank.number() == 0) {
      rank.transport().post({1, kGive, 1, transfers});
      const Ticket ticket = rank.transport().post({2, kGive, 1, transfers});
      check_equal(wait_for_error(rank),
                  "peer_lost: advance: the peer closed its connection or died\n  peer  1\n"
                  "  rank  0");
      check(now_ms() - std::stoll(rank.hear(1)) < 1000, "it took more than a second");
      check_equal(error_of([&] {
                    rank.transport().post({1, kGive, 1, transfers});
                  }),
                  "peer_lost: post: the peer is gone\n  peer  1\n  rank  0");
      // The living one is served, and the dead one is not reported again.
      rank.tell(2);
      rank.finish(ticket);
      rank.transport().cancel(1, soon());
      rank.transport().retire(0);
      rank.transport().disconnect(1);
      rank.meet(2);
    } else if (rank.number() == 1) {
      const Ticket ticket = rank.transport().post({0, kTake, 1, transfers});
      rank.advance_until([&] { return rank.transport().progress(ticket).done == 2; }, 1);
      rank.tell(0, fmt::format("{}", now_ms()));
      die(rank);
    } else {
      rank.hear(0);
      const Ticket ticket = rank.transport().post({0, kTake, 1, transfers});
      check_equal(wait_for_error(rank),
                  "peer_lost: advance: the peer closed its connection or died\n  peer  1\n"
                  "  rank  2");
      rank.finish(ticket);
      check(memory.bytes() == std::vector<unsigned char>(500, 9), "the bytes differ");
      rank.meet(0);
    }
  });
}

TEST_P(Peers, a_source_that_dies_is_named_within_a_second_and_others_finish) {
  run(3, [](Rank& rank) {
    const Memory memory(1000, static_cast<unsigned char>(rank.number()));
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(5, 100);
    if (rank.number() == 0) {
      const Ticket lost = rank.transport().post({1, kTake, 1, transfers});
      const Ticket ticket = rank.transport().post({2, kTake, 1, transfers});
      check_equal(wait_for_error(rank),
                  "peer_lost: advance: the peer closed its connection or died\n  peer  1\n"
                  "  rank  0");
      check(now_ms() - std::stoll(rank.hear(1)) < 1000, "it took more than a second");
      check(!rank.transport().progress(lost).finished, "a lost transfer is done");
      rank.tell(2);
      rank.finish(ticket);
      check_equal(int{memory[499]}, 2);
      rank.meet(2);
    } else if (rank.number() == 1) {
      const Ticket ticket =
          rank.transport().post({0, kGive, 1, std::span<const Transfer>(transfers).first(3)});
      rank.finish(ticket);
      rank.tell(0, fmt::format("{}", now_ms()));
      die(rank);
    } else {
      rank.hear(0);
      check_equal(wait_for_error(rank),
                  "peer_lost: advance: the peer closed its connection or died\n  peer  1\n"
                  "  rank  2");
      rank.finish(rank.transport().post({0, kGive, 1, transfers}));
      rank.meet(0);
    }
  });
}

TEST_P(Peers, who_takes_leave_is_no_loss_unless_transfers_are_unfinished) {
  run(3, [](Rank& rank) {
    const Memory memory(200, rank.number() == 0 ? 9 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(2, 100);
    if (rank.number() == 0) {
      std::vector<Ticket> tickets;
      for (const int peer : {1, 2}) {
        tickets.push_back(rank.transport().post({peer, kGive, 1, transfers}));
      }
      for (const Ticket& ticket : tickets) rank.finish(ticket);
      rank.tell(1);
      rank.hear(1);
      rank.settle();
      check_equal(error_of([&] {
                    rank.transport().post({1, kGive, 2, transfers});
                  }),
                  "peer_lost: post: the peer is gone\n  peer  1\n  rank  0");
      rank.finish(rank.transport().post({2, kGive, 2, transfers}));
      rank.transport().post({2, kGive, 3, transfers});
      rank.tell(2);
      check_equal(wait_for_error(rank),
                  "peer_lost: advance: the peer left before its transfers were done\n  peer  2\n"
                  "  rank  0");
    } else if (rank.number() == 1) {
      rank.finish(rank.transport().post({0, kTake, 1, transfers}));
      rank.hear(0);
      rank.transport().disconnect(0);
      rank.tell(0);
      check_equal(error_of([&] { rank.transport().disconnect(0); }),
                  "invalid_argument: disconnect: the peer is not connected\n  peer  0\n  rank  1");
      check_equal(error_of([&] { rank.transport().facts(0); }),
                  "invalid_argument: facts: the peer is not connected\n  peer  0\n  rank  1");
      check_equal(rank.transport().facts(2).way, way_in_facts(rank.way()));
      rank.transport().disconnect(2);
      rank.tell(2);
    } else {
      rank.finish(rank.transport().post({0, kTake, 1, transfers}));
      rank.finish(rank.transport().post({0, kTake, 2, transfers}));
      rank.hear(0);
      rank.transport().disconnect(0);
      rank.hear(1);
      rank.settle();
    }
  });
}

TEST_P(Peers, a_rank_that_restarts_connects_again) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const Memory memory(300, gives ? 9 : 0);
    const std::vector<Transfer> transfers = pieces(3, 100);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    for (const Attempt attempt : {1u, 2u, 3u}) {
      const Ticket ticket =
          rank.transport().post({1 - rank.number(), gives ? kGive : kTake, attempt, transfers});
      rank.finish(ticket);
      check_equal(int{memory[299]}, 9);
      if (gives) {
        rank.tell(1);
        check_equal(wait_for_error(rank),
                    "peer_lost: advance: the peer closed its connection or died\n  peer  1\n"
                    "  rank  0");
      } else {
        rank.hear(0);
        rank.close();
        memory[299] = 0;
        rank.reopen();
        rank.transport().enroll(memory.buffer());
      }
      rank.connect_all();
    }
  });
}

}  // namespace
}  // namespace crossmesh::conformance
