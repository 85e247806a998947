// SPDX-License-Identifier: Apache-2.0
#include "cli/fault.h"

#include <gtest/gtest.h>

#include <new>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

template <typename Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(Fault, each_kind_is_read) {
  const Fault slow = parse_fault("slow:move:3:1.5");
  EXPECT_EQ(slow.kind, Fault::Kind::slow);
  EXPECT_EQ(slow.phase, Phase::move);
  EXPECT_EQ(slow.rank, 3);
  EXPECT_EQ(slow.seconds, 1.5);
  const Fault memory = parse_fault("memory:join:0");
  EXPECT_EQ(memory.kind, Fault::Kind::memory);
  EXPECT_EQ(memory.phase, Phase::join);
  const Fault lost = parse_fault("lost:commit:0");
  EXPECT_EQ(lost.kind, Fault::Kind::lost);
  EXPECT_EQ(lost.message, "commit");
}

TEST(Fault, what_is_none_is_refused) {
  for (const char* text : {"", "slow", "slow:move:3", "slow:move:3:x", "slow:move:-3:1",
                           "memory:move:3:1", "lost:word:3", "fire:move:3", "slow:move:3x:1"}) {
    EXPECT_EQ(text_of([&] { parse_fault(text); }),
              "move: this is no fault\n  text  " + std::string(text) +
                  "\n  form  slow:PHASE:RANK:SECONDS, memory:PHASE:RANK or lost:MESSAGE:RANK");
  }
  EXPECT_EQ(text_of([] { parse_fault("memory:moving:3"); }),
            "session: no such phase\n  phase  moving\n"
            "  phases  join, agree, ready, start, move, complete, commit, leave");
}

TEST(Fault, it_happens_once_and_to_its_rank) {
  PlantedFault other(parse_fault("memory:move:3"), 2);
  EXPECT_NO_THROW(other.enter(Phase::move));
  PlantedFault memory(parse_fault("memory:move:3"), 3);
  EXPECT_NO_THROW(memory.enter(Phase::start));
  EXPECT_FALSE(memory.loses("whole"));
  EXPECT_THROW(memory.enter(Phase::move), std::bad_alloc);
  EXPECT_NO_THROW(memory.enter(Phase::move));
  PlantedFault lost(parse_fault("lost:whole:3"), 3);
  EXPECT_NO_THROW(lost.enter(Phase::join));
  EXPECT_FALSE(lost.loses("commit"));
  EXPECT_TRUE(lost.loses("whole"));
  EXPECT_FALSE(lost.loses("whole"));
}

TEST(Fault, a_restart_names_an_engine_and_a_version_before_the_last) {
  const Restart restart = parse_restart("2@1");
  EXPECT_EQ(restart.engine, 2);
  EXPECT_EQ(restart.version, 1);
  for (const char* text : {"", "2", "@1", "2@", "2@0", "-1@1", "2@1x"}) {
    EXPECT_EQ(
        text_of([&] { parse_restart(text); }),
        "move: this is no restart\n  text  " + std::string(text) + "\n  form  ENGINE@VERSION");
  }
  FaultWords words;
  words.restart = "0@2";
  EXPECT_EQ(finish_fault_options(words, 3).restart->version, 2);
  EXPECT_EQ(text_of([&] { finish_fault_options(words, 2); }),
            "move: an engine is restarted between updates, and none follows this one\n"
            "  version  2\n  iterations  2");
}

}  // namespace
}  // namespace crossmesh::cli
