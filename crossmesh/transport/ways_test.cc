// SPDX-License-Identifier: Apache-2.0
// What goes from private memory, in each way and by the way that is left; and what a rank gives
// itself.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "crossmesh/memory/copy.h"
#include "crossmesh/transport/conformance.h"
#include "crossmesh/transport/refusal.h"

namespace crossmesh::conformance {
namespace {

constexpr auto kGive = Direction::give;
constexpr auto kTake = Direction::take;

class Ways : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string why = why_not_here(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  void run(int count, const Body& body) { EXPECT_EQ(run_ranks(GetParam(), count, body), ""); }
};

INSTANTIATE_TEST_SUITE_P(Ways, Ways, testing::ValuesIn(kWays),
                         [](const auto& way) { return name_of(way.param); });

// Memory of one rank alone.
struct Private {
  explicit Private(std::int64_t size_bytes, unsigned char fill = 0)
      : mapping(reserve_private(size_bytes)) {
    std::memset(mapping.data(), fill, static_cast<std::size_t>(size_bytes));
  }
  unsigned char& operator[](std::int64_t i) const {
    return reinterpret_cast<unsigned char*>(mapping.data())[i];
  }
  Buffer buffer() const { return {.data = mapping.data(), .size_bytes = mapping.bytes()}; }
  std::vector<unsigned char> bytes() const { return {&(*this)[0], &(*this)[0] + mapping.bytes()}; }

  Mapping mapping;
};

// What private memory goes by.
std::string private_way(Way way) {
  if (way == Way::inproc_threads || way == Way::local_threads) return way_in_facts(way);
  if (shm_way_of(way) != ShmWay::automatic) return way_in_facts(way);
  return why_not_here(are_processes(way) ? Way::attach_processes : Way::attach_threads).empty()
             ? "attach"
             : "ring";
}

// ---- Private memory -----------------------------------------------------------------------------

// A copy whose source has to be put in place by other code than a run of a copy.
struct Shape {
  const char* name;
  Transfer transfer;
};

Transfer strided(const LoopNest& nest, std::int64_t first = 0) {
  Transfer transfer;
  transfer.source_offset_bytes = first;
  transfer.nest = nest;
  return transfer;
}

Transfer cast(const LoopNest& nest) {
  Transfer transfer;
  transfer.nest = nest;
  transfer.source_dtype = nest.source_element_bytes == 4 ? DType::f32 : DType::bf16;
  transfer.target_dtype = nest.target_element_bytes == 4 ? DType::f32 : DType::bf16;
  return transfer;
}

std::vector<Shape> shapes() {
  return {
      {"one long run", strided({{}, {}, {}, 300'000, 1, 1})},
      {"rows", strided({{100}, {6144}, {3072}, 3072, 1, 1})},
      {"far rows", strided({{50}, {19'000}, {9000}, 9000, 1, 1})},
      {"rows apart on both sides", strided({{1500}, {600}, {520}, 512, 1, 1})},
      {"short runs", strided({{5000}, {96}, {48}, 48, 1, 1})},
      {"sparse bytes", strided({{3000}, {100}, {1}, 1, 1, 1})},
      {"backwards", strided({{300}, {-1000}, {700}, 700, 1, 1}, 299 * 1000)},
      {"short and backwards", strided({{300}, {-20}, {10}, 10, 1, 1}, 299 * 20)},
      {"one row many times", strided({{50}, {0}, {1000}, 1000, 1, 1})},
      {"a transpose", strided({{300, 200}, {2, 600}, {400, 2}, 1, 2, 2})},
      {"narrowed", cast({{70}, {4000}, {1500}, 700, 4, 2})},
      {"widened", cast({{70}, {1500}, {4000}, 700, 2, 4})},
      {"narrowed and transposed", cast({{60, 50}, {4, 240}, {100, 2}, 1, 4, 2})},
  };
}

// Numbers that no conversion rounds, as f32 and as bf16: their low halves are zero.
void fill_source(const Private& memory) {
  for (std::int64_t i = 0; i + 4 <= memory.mapping.bytes(); i += 4) {
    const float value = static_cast<float>(i / 4 % 250);
    std::memcpy(&memory[i], &value, 4);
  }
}

TEST_P(Ways, private_memory_arrives_whatever_its_shape) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    constexpr std::int64_t kBytes = 1'000'000;
    const Private source(kBytes);
    const Private target(kBytes);
    fill_source(source);
    rank.transport().enroll(gives ? source.buffer() : target.buffer());
    rank.connect_all();
    Attempt attempt = 0;
    for (const Shape& shape : shapes()) {
      std::memset(target.mapping.data(), 0xaa, kBytes);
      const Ticket ticket = rank.transport().post(
          {1 - rank.number(), gives ? kGive : kTake, ++attempt, std::span(&shape.transfer, 1)});
      rank.advance_until([&] { return rank.transport().progress(ticket).finished; }, 70'000);
      if (gives) continue;
      const Private expected(kBytes, 0xaa);
      convert(source.mapping.data() + shape.transfer.source_offset_bytes, expected.mapping.data(),
              shape.transfer.nest, shape.transfer.source_dtype, shape.transfer.target_dtype);
      check(target.bytes() == expected.bytes(), shape.name);
    }
    check_equal(rank.transport().facts(1 - rank.number()).way, private_way(rank.way()));
    const double rate = rank.transport().facts(1 - rank.number()).bytes_per_second;
    check(gives ? rate == 0 : rate > 0, "the rate is not that of what was pulled");
    rank.meet();
  });
}

// Puts what it sees where it lies, and counts how often it saw each byte.
class Watcher final : public Witness {
 public:
  explicit Watcher(std::int64_t size_bytes) : seen(size_bytes), count(size_bytes) {}

  bool watches(const Transfer& transfer) const override { return &transfer == watched; }

  void moved(const Transfer& transfer, const Part& part) override {
    const std::int64_t at = transfer.target_offset_bytes + part.target_offset_bytes;
    LoopNest nest = part.nest;
    if (part.source == nullptr) {
      nest.source_strides = nest.target_strides;
      nest.source_element_bytes = nest.target_element_bytes;
    }
    const std::byte* source = part.source != nullptr ? part.source : part.target;
    copy(source, seen.mapping.data() + at, nest);
    add(at, nest, 0);
    ++part_count;
    bytes_max = std::max(bytes_max, element_count(nest) * nest.target_element_bytes);
  }

  Private seen;
  Private count;
  const Transfer* watched = nullptr;
  std::int64_t part_count = 0;
  std::int64_t bytes_max = 0;

 private:
  void add(std::int64_t at, const LoopNest& nest, int dim) {
    if (dim == nest.counts.size()) {
      for (std::int64_t i = 0; i < nest.run_count * nest.target_element_bytes; ++i) ++count[at + i];
      return;
    }
    for (std::int64_t i = 0; i < nest.counts[dim]; ++i) {
      add(at + i * nest.target_strides[dim], nest, dim + 1);
    }
  }
};

TEST_P(Ways, a_witness_sees_each_byte_of_what_it_watches_once_where_it_lies) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    constexpr std::int64_t kBytes = 1'000'000;
    const Private alone(kBytes);
    const Memory shared(kBytes);
    const Private target(kBytes);
    fill_source(alone);
    std::memcpy(shared.data(), alone.mapping.data(), kBytes);
    rank.transport().enroll(gives ? alone.buffer() : target.buffer());
    if (gives) rank.transport().enroll(shared.buffer());
    rank.connect_all();
    Attempt attempt = 0;
    for (const Shape& shape : shapes()) {
      for (const Region region : {0, 1}) {
        std::memset(target.mapping.data(), 0, kBytes);
        // The first is watched, the other is not.
        std::vector<Transfer> transfers(2, shape.transfer);
        for (Transfer& transfer : transfers) transfer.source_region = region;
        Watcher watcher(kBytes);
        watcher.watched = &transfers[0];
        const Ticket ticket =
            rank.transport().post({1 - rank.number(), gives ? kGive : kTake, ++attempt, transfers,
                                   gives ? nullptr : &watcher});
        rank.advance_until([&] { return rank.transport().progress(ticket).finished; });
        if (gives) continue;
        const LoopNest& nest = shape.transfer.nest;
        check(watcher.seen.bytes() == target.bytes(), shape.name);
        const std::vector<unsigned char> counts = watcher.count.bytes();
        check(*std::max_element(counts.begin(), counts.end()) == 1, shape.name);
        check_equal(std::count(counts.begin(), counts.end(), 1),
                    element_count(nest) * nest.target_element_bytes);
        check(watcher.bytes_max <= std::int64_t{128} << 10, shape.name);
      }
    }
    rank.meet();
  });
}

TEST_P(Ways, shareable_and_private_memory_mix_in_one_batch) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    const Memory shared(40'000, gives ? 3 : 0);
    const Private alone(40'000, gives ? 4 : 0);
    rank.transport().enroll(shared.buffer());
    rank.transport().enroll(alone.buffer());
    rank.connect_all();
    std::vector<Transfer> transfers;
    for (int i = 0; i < 40; ++i) {
      transfers.push_back(contiguous({.source_region = i % 2,
                                      .target_region = i % 3 % 2,
                                      .source_offset_bytes = i * 1000,
                                      .target_offset_bytes = i * 1000,
                                      .size_bytes = 1000}));
    }
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers}));
    for (int i = 0; i < 40 && !gives; ++i) {
      const int found = i % 3 % 2 == 0 ? shared[i * 1000 + 999] : alone[i * 1000 + 999];
      check_equal(found, 3 + i % 2);
    }
    const std::string way = private_way(rank.way());
    const bool is_mixed = way_in_facts(rank.way()) == "memfd";
    const LinkFacts facts = rank.transport().facts(1 - rank.number());
    check_equal(facts.way, is_mixed ? "memfd+" + way : way);
    check_equal(facts.bytes_pulled, gives ? 0 : 40'000);
    rank.meet();
  });
}

TEST_P(Ways, a_source_that_lost_its_memory_is_named) {
  run(2, [](Rank& rank) {
    if (shm_way_of(rank.way()) != ShmWay::attach) return;
    const bool gives = rank.number() == 0;
    const std::int64_t page = ::sysconf(_SC_PAGESIZE);
    Private memory(4 * page, gives ? 5 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = {contiguous({.size_bytes = 2 * page}),
                                             contiguous({.source_offset_bytes = 2 * page,
                                                         .target_offset_bytes = 2 * page,
                                                         .size_bytes = 2 * page})};
    // Not unmapped: another thread could be given the page.
    if (gives) {
      ::mprotect(memory.mapping.data() + 3 * page, static_cast<std::size_t>(page), PROT_NONE);
    }
    const Ticket ticket =
        rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers});
    rank.meet();
    if (!gives) {
      check_equal(error_of([&] { rank.settle(); }),
                  fmt::format("io_failed: pull: the peer's memory cannot be read whole\n  peer  0\n"
                              "  rank  1\n  attempt  1\n  slot  1\n  region  0\n"
                              "  wanted_bytes  {}\n  read_bytes  {}",
                              2 * page, page));
      check_equal(rank.transport().progress(ticket).done, 1);
      rank.settle();
    }
    rank.meet();
    rank.transport().cancel(1, soon());
    rank.meet();
    const std::vector<Transfer> less = {transfers[0]};
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 2, less}));
    rank.meet();
  });
}

// ---- A source that has to serve -----------------------------------------------------------------

TEST_P(Ways, more_than_a_ring_holds_waits_for_the_source) {
  run(2, [](Rank& rank) {
    if (shm_way_of(rank.way()) != ShmWay::ring) return;
    const bool gives = rank.number() == 0;
    constexpr std::int64_t kBytes = detail::kRingBytesMin * 4;
    const Private memory(kBytes, gives ? 6 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(64, kBytes / 64);
    const Ticket ticket =
        rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers});
    rank.meet();
    // What was packed when it was posted is there; the rest is not.
    if (!gives) {
      rank.settle();
      check_equal(rank.transport().progress(ticket).done, 16);
    }
    rank.meet();
    rank.finish(ticket);
    if (!gives) {
      check(memory.bytes() == std::vector<unsigned char>(kBytes, 6), "the bytes differ");
    }
    rank.meet();
  });
}

TEST_P(Ways, a_source_that_dies_while_it_serves_is_lost) {
  run(2, [](Rank& rank) {
    const bool gives = rank.number() == 0;
    constexpr std::int64_t kBytes = detail::kRingBytesMin * 4;
    const Private memory(kBytes, gives ? 6 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(64, kBytes / 64);
    const std::span<const Transfer> all(transfers);
    const Ticket ticket = rank.transport().post(
        {1 - rank.number(), gives ? kGive : kTake, 1, gives ? all.first(8) : all});
    rank.meet();
    if (gives) {
      rank.finish(ticket);
      if (are_processes(rank.way())) ::raise(SIGKILL);
      return rank.close();
    }
    check_equal(error_of([&] { rank.advance_until([] { return false; }); }),
                "peer_lost: advance: the peer closed its connection or died\n  peer  0\n"
                "  rank  1");
    check_equal(rank.transport().progress(ticket).done, 8);
  });
}

// ---- The way that is taken ----------------------------------------------------------------------

TEST(ShmWays, private_memory_is_not_given_where_files_alone_are_mapped) {
  const auto open = [](int rank) {
    return make_shm({.session_name = kSession,
                     .rank = rank,
                     .way = ShmWay::memfd,
                     .copies_within_process = false});
  };
  const auto giver = open(0);
  const auto taker = open(1);
  const Private memory(8);
  giver->enroll(memory.buffer());
  std::thread dialer([&] { taker->connect(0, giver->address(), soon()); });
  giver->connect(1, "", soon());
  dialer.join();
  const std::vector<Transfer> transfers = pieces(1, 8);
  EXPECT_EQ(error_of([&] {
              giver->post({1, kGive, 1, transfers});
            }),
            "unsupported: post: peers cannot reach private memory\n  peer  1\n  rank  0\n"
            "  attempt  1\n  slot  0\n  region  0\n"
            "  hint  enroll memory that a memfd holds, or allow another way");
}

TEST(ShmWays, a_ring_that_is_too_small_is_refused) {
  EXPECT_EQ(error_of([] { make_shm({.session_name = kSession, .rank = 0, .ring_bytes = 16'383}); }),
            "limit_exceeded: open: a ring is too small\n  ring_bytes  16383\n"
            "  ring_bytes_min  16384");
}

// The socket of a listener names the process that opened it, and not the one that serves.
TEST(ShmWays, a_process_that_was_forked_is_not_taken_for_its_parent) {
  auto low = make_shm({.session_name = kSession, .rank = 0});
  const std::vector<Transfer> transfers = pieces(1, 100);
  const pid_t child = ::fork();
  if (child == 0) {
    const Private memory(100, 9);
    low->enroll(memory.buffer());
    low->connect(1, "", soon());
    low->post({1, kGive, 1, transfers});
    // Until the parent kills it.
    while (true) {
      pollfd ready{low->wake_fds().at(0), POLLIN, 0};
      if (!low->advance(1 << 20)) ::poll(&ready, 1, -1);
    }
  }
  const auto high = make_shm({.session_name = kSession, .rank = 1});
  const Private memory(100, 1);
  high->enroll(memory.buffer());
  high->connect(0, low->address(), soon());
  const Ticket ticket = high->post({0, kTake, 1, transfers});
  while (!high->progress(ticket).finished) {
    pollfd ready{high->wake_fds().at(0), POLLIN, 0};
    if (!high->advance(1 << 20) && ::poll(&ready, 1, 30000) != 1) break;
  }
  EXPECT_EQ(memory.bytes(), std::vector<unsigned char>(100, 9));
  EXPECT_EQ(high->facts(0).way, "ring");
  EXPECT_EQ(high->facts(0).why_not_attach, "another process has the peer's pid");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// Processes that changed their user may not attach to one another, unless they are root.
TEST(ShmWays, private_memory_goes_by_the_ring_where_attaching_is_forbidden) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const Body body = [](Rank& rank) {
    const bool gives = rank.number() == 0;
    rank.close();
    check(::setgid(65534) == 0 && ::setuid(65534) == 0, "still root");
    rank.reopen();
    const Private memory(100'000, gives ? 7 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(10, 10'000);
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers}));
    check_equal(int{memory[99'999]}, 7);
    const LinkFacts facts = rank.transport().facts(1 - rank.number());
    check_equal(facts.way, "ring");
    check(!facts.why_not_attach.empty(), "no reason is given");
    rank.meet();
  };
  EXPECT_EQ(run_ranks(Way::shm_processes, 2, body), "");
}

TEST(ShmWays, attaching_that_was_asked_for_and_is_forbidden_is_an_error) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const Body body = [](Rank& rank) {
    rank.close();
    check(::setgid(65534) == 0 && ::setuid(65534) == 0, "still root");
    rank.reopen();
    const std::string error = error_of([&] { rank.connect_all(); });
    const Refusal refusal = explain({EPERM, read_ptrace_scope()});
    check_equal(error, fmt::format("unsupported: connect: this process cannot attach to the peer\n"
                                   "  peer  {}\n  rank  {}\n  why  {}\n"
                                   "  hint  {}; or another way than attach",
                                   1 - rank.number(), rank.number(), refusal.why, refusal.way_out));
    rank.meet();
  };
  EXPECT_EQ(run_ranks(Way::attach_processes, 2, body), "");
}

// Whether a process here may start others in a pid namespace of their own.
bool may_part_pids() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Makes rank 1 a process that does not see the pids of others. Returns whether to go on.
bool goes_on_apart(Rank& rank) {
  if (rank.number() == 0) return true;
  rank.close();
  check(::unshare(CLONE_NEWPID) == 0, "no pid namespace");
  const pid_t child = ::fork();
  if (child != 0) {
    ::waitpid(child, nullptr, 0);
    return false;
  }
  rank.reopen();
  return true;
}

TEST(ShmWays, private_memory_goes_by_the_ring_into_another_pid_namespace) {
  if (!may_part_pids()) GTEST_SKIP() << "may not make a pid namespace";
  const Body body = [](Rank& rank) {
    if (!goes_on_apart(rank)) return;
    const bool gives = rank.number() == 0;
    const Private memory(100'000, gives ? 7 : 0);
    rank.transport().enroll(memory.buffer());
    rank.connect_all();
    const std::vector<Transfer> transfers = pieces(10, 10'000);
    rank.finish(rank.transport().post({1 - rank.number(), gives ? kGive : kTake, 1, transfers}));
    check_equal(int{memory[99'999]}, 7);
    const LinkFacts facts = rank.transport().facts(1 - rank.number());
    check_equal(facts.way, "ring");
    if (!gives) check_equal(facts.why_not_attach, "the peer is in another pid namespace");
    rank.meet();
  };
  EXPECT_EQ(run_ranks(Way::shm_processes, 2, body), "");
}

TEST(ShmWays, attaching_out_of_another_pid_namespace_is_an_error_that_says_what_to_change) {
  if (!may_part_pids()) GTEST_SKIP() << "may not make a pid namespace";
  const Body body = [](Rank& rank) {
    if (!goes_on_apart(rank)) return;
    const std::string error = error_of([&] { rank.connect_all(); });
    if (rank.number() == 1) {
      check_equal(error,
                  "unsupported: connect: this process cannot attach to the peer\n  peer  0\n"
                  "  rank  1\n  why  the peer is in another pid namespace\n"
                  "  hint  one pid namespace for all ranks (docker run --pid host, or --pid "
                  "container:NAME); or another way than attach");
    }
    rank.meet();
  };
  EXPECT_EQ(run_ranks(Way::attach_processes, 2, body), "");
}

// ---- One process --------------------------------------------------------------------------------

// Not what others would do: without attaching private memory does not go by memfd.
TEST(ShmWays, ranks_of_one_process_copy_in_place_whatever_the_way) {
  for (const ShmWay way : kShmWays) {
    const auto giver = make_shm({.session_name = kSession, .rank = 0, .way = way});
    const auto taker = make_shm({.session_name = kSession, .rank = 1, .way = way});
    const Memory shared(100, 8);
    const Private alone(100, 9);
    const Private target(200);
    giver->enroll(shared.buffer());
    giver->enroll(alone.buffer());
    taker->enroll(target.buffer());
    std::thread dialer([&] { taker->connect(0, giver->address(), soon()); });
    giver->connect(1, "", soon());
    dialer.join();
    const std::vector<Transfer> transfers = {
        contiguous({.size_bytes = 100}),
        contiguous({.source_region = 1, .target_offset_bytes = 100, .size_bytes = 100})};
    const Ticket give = giver->post({1, kGive, 1, transfers});
    const Ticket take = taker->post({0, kTake, 1, transfers});
    while (taker->advance(1 << 20)) {
    }
    giver->advance(1);
    EXPECT_TRUE(giver->progress(give).finished) << name_of(way);
    EXPECT_TRUE(taker->progress(take).finished) << name_of(way);
    EXPECT_EQ(int{target[99]} * 10 + target[100], 89) << name_of(way);
    EXPECT_EQ(giver->facts(1).way, "local") << name_of(way);
    EXPECT_EQ(taker->facts(0).way, "local") << name_of(way);
    EXPECT_EQ(taker->facts(0).bytes_pulled, 200) << name_of(way);
    EXPECT_EQ(taker->facts(0).why_not_attach, "") << name_of(way);
  }
}

// ---- Oneself ------------------------------------------------------------------------------------

TEST_P(Ways, what_a_rank_gives_itself_is_copied_in_place) {
  run(2, [](Rank& rank) {
    const int own = rank.number();
    const bool gives = own == 0;
    const Private source(3000, 5);
    const Private target(3000);
    rank.transport().enroll(source.buffer());
    rank.transport().enroll(target.buffer());
    rank.connect_all();
    rank.transport().connect(own, rank.transport().address(), soon());
    std::vector<Transfer> transfers = pieces(3, 1000);
    for (Transfer& transfer : transfers) transfer.target_region = 1;
    transfers[2].nest = {{}, {}, {}, 250, 4, 2};
    transfers[2].source_dtype = DType::f32;
    transfers[2].target_dtype = DType::bf16;
    const std::span<const Transfer> all(transfers);
    // A batch of one direction moves nothing; a part of it, as much as was offered.
    const Ticket take = rank.transport().post({own, kTake, 1, all});
    rank.settle();
    check_equal(rank.transport().progress(take).done, 0);
    const Ticket give = rank.transport().post({own, kGive, 1, all.first(1)});
    rank.settle();
    check_equal(rank.transport().progress(take).done, 1);
    check_equal(rank.transport().progress(give).finished, true);
    const Ticket rest = rank.transport().post({own, kGive, 1, all.subspan(1)});
    // A peer is served beside it.
    const std::vector<Transfer> other = {
        contiguous({.target_region = 1, .target_offset_bytes = 2500, .size_bytes = 500})};
    const Ticket ticket = rank.transport().post({1 - own, gives ? kGive : kTake, 1, other});
    rank.finish(ticket);
    rank.finish(take);
    rank.finish(rest);
    const Private expected(3000, 0);
    std::memset(&expected[0], 5, 2000);
    convert(source.mapping.data(), expected.mapping.data() + 2000, transfers[2].nest, DType::f32,
            DType::bf16);
    if (!gives) std::memset(&expected[2500], 5, 500);
    check(target.bytes() == expected.bytes(), "the bytes differ");
    check_equal(rank.transport().facts(own).way, "local");
    rank.meet();
  });
}

TEST_P(Ways, what_a_rank_gives_itself_is_cancelled_and_retired_like_any_other) {
  run(1, [](Rank& rank) {
    const Private source(2000, 5);
    const Private target(2000);
    rank.transport().enroll(source.buffer());
    rank.transport().enroll(target.buffer());
    std::vector<Transfer> transfers = pieces(2, 1000);
    for (Transfer& transfer : transfers) transfer.target_region = 1;
    const Ticket give = rank.transport().post({0, kGive, 1, transfers});
    const Ticket take = rank.transport().post({0, kTake, 1, transfers});
    rank.transport().advance(1);
    check_equal(error_of([&] { rank.transport().retire(0); }),
                "invalid_argument: retire: an unfinished transfer names the region\n  peer  0\n"
                "  rank  0\n  region  0\n  direction  give");
    rank.transport().cancel(1, soon());
    rank.settle();
    check_equal(rank.transport().progress(give).finished, false);
    check_equal(rank.transport().progress(take).finished, false);
    check_equal(int{target[1999]}, 0);
    rank.transport().post({0, kGive, 2, transfers});
    rank.finish(rank.transport().post({0, kTake, 2, transfers}));
    rank.settle();
    check(target.bytes() == std::vector<unsigned char>(2000, 5), "the bytes differ");
    rank.transport().retire(0);
    rank.transport().disconnect(0);
  });
}

}  // namespace
}  // namespace crossmesh::conformance
