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
