// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/attach.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "crossmesh/memory/arena.h"

namespace crossmesh::detail {
namespace {

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// A child that has what this process had, and waits to be killed.
class Child {
 public:
  Child() : process_(::fork()) {
    if (process_ != 0) return;
    while (true) ::pause();
  }
  ~Child() { end(); }
  void end() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_;
};

class Attach : public testing::Test {
 protected:
  void SetUp() override {
    for (std::int64_t i = 0; i < source.bytes(); ++i) source.data()[i] = std::byte(i % 251);
    const std::string why = refusal_of({::getpid(), token}).why;
    if (!why.empty()) GTEST_SKIP() << why;
  }

  std::uint64_t word = 0x0123456789abcdef;
  Token token{address_of(&word), word};
  Mapping source = reserve_private(std::int64_t{1} << 20);
};

TEST_F(Attach, runs_of_another_process_arrive_in_place) {
  const Child child;
  const Attachment other{child.process(), token};
  EXPECT_EQ(refusal_of(other).why, "");
  std::memset(source.data(), 0, static_cast<std::size_t>(source.bytes()));
  // More runs than one call takes: 3000 of 5 bytes, 11 apart there and 7 here.
  const LoopNest nest{{3000}, {11}, {7}, 5, 1, 1};
  std::vector<std::byte> target(3000 * 7, std::byte{0xaa});
  const ReadOutcome outcome = read_runs(other, address_of(source.data()) + 3, target.data(), nest);
  EXPECT_TRUE(outcome.is_whole());
  std::vector<std::byte> expected(3000 * 7, std::byte{0xaa});
  for (std::size_t run = 0; run < 3000; ++run) {
    for (std::size_t i = 0; i < 5; ++i) expected[run * 7 + i] = std::byte((3 + run * 11 + i) % 251);
  }
  EXPECT_EQ(target, expected);
}

TEST_F(Attach, a_hole_ends_a_read_and_is_told) {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  ASSERT_EQ(::munmap(source.data() + 4 * page, static_cast<std::size_t>(page)), 0);
  const Attachment own{::getpid(), token};
  std::vector<std::byte> target(static_cast<std::size_t>(8 * page));
  const auto read = [&](std::int64_t first) {
    return read_runs(own, address_of(source.data() + first), target.data(),
                     {{}, {}, {}, 2 * page, 1, 1});
  };
  EXPECT_TRUE(read(2 * page).is_whole());
  const ReadOutcome part = read(3 * page);
  EXPECT_FALSE(part.is_whole());
  EXPECT_EQ(part.wanted_bytes, 2 * page);
  EXPECT_EQ(part.read_bytes, page);
  EXPECT_EQ(read(4 * page).read_bytes, 0);
  EXPECT_TRUE(read(5 * page).is_whole());
}

TEST_F(Attach, another_process_and_a_dead_one_are_noticed) {
  Child child;
  std::byte byte{};
  word = 1;
  const LoopNest one{{}, {}, {}, 1, 1, 1};
  // The child has the old word, and the address of none.
  EXPECT_TRUE(
      read_runs({child.process(), token}, address_of(source.data()), &byte, one).is_whole());
  const ReadOutcome other = read_runs({::getpid(), token}, address_of(source.data()), &byte, one);
  EXPECT_TRUE(other.is_other_process);
  EXPECT_EQ(refusal_of({::getpid(), token}).why, "another process has the peer's pid");
  EXPECT_EQ(refusal_of({::getpid(), {16, 1}}).why, "the system refuses: Bad address");
  const pid_t dead = child.process();
  child.end();
  EXPECT_EQ(read_runs({dead, token}, address_of(source.data()), &byte, one).error, ESRCH);
  EXPECT_EQ(refusal_of({dead, token}).why, "the system refuses: No such process");
}

TEST(Kinship, the_nearest_common_ancestor_is_named_or_the_peer_itself) {
  // 1 started a shell 10, which started launchers 20 and 30, which started ranks.
  const auto parent_of = [](pid_t process) {
    switch (process) {
      case 21:
      case 22:
        return 20;
      case 31:
        return 30;
      case 20:
      case 30:
        return 10;
      case 10:
      case 40:
        return 1;
      default:
        return 0;
    }
  };
  struct Row {
    const char* name;
    pid_t own;
    pid_t peer;
    pid_t expected;
  };
  const Row rows[] = {
      {"of one launcher", 21, 22, 20},
      {"of two launchers", 21, 31, 10},
      {"its parent", 21, 20, 20},
      {"its child", 20, 21, 20},
      {"only the first process in common", 21, 40, 40},
      {"a process without a parent here", 21, 50, 50},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(process_to_allow({row.own, row.peer, parent_of}), row.expected) << row.name;
  }
}

TEST(Kinship, proc_tells_the_parent) {
  EXPECT_EQ(parent_of(::getpid()), ::getppid());
  EXPECT_EQ(parent_of(0), 0);
}

TEST_F(Attach, this_process_is_told_from_all_others) {
  const Child child;
  EXPECT_TRUE(is_this_process({::getpid(), token}));
  EXPECT_FALSE(is_this_process({child.process(), token}));
  EXPECT_FALSE(is_this_process({::getpid(), {token.address, token.value + 1}}));
  EXPECT_FALSE(is_this_process({::getpid(), {16, 1}}));
  EXPECT_FALSE(is_this_process({::getpid(), {}}));
}

TEST_F(Attach, a_process_that_is_not_seen_or_shows_no_word_is_not_tried) {
  EXPECT_EQ(refusal_of({0, token}).why, "the peer is in another pid namespace");
  EXPECT_EQ(refusal_of({::getpid(), {}}).why, "the peer shows no word to read");
}

}  // namespace
}  // namespace crossmesh::detail
