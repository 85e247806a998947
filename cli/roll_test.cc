// SPDX-License-Identifier: Apache-2.0
#include "cli/roll.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <future>
#include <thread>

namespace crossmesh::cli {
namespace {

using namespace std::chrono_literals;

constexpr RankCounts kCounts{2, 2};
constexpr auto kPatience = 20s;  // of waits that a test expects to end well
constexpr auto kShort = 50ms;    // of waits that it expects to end at their limit
const Asked kAsked = {{"--engine", "tp=2"}, {"--iterations", "3"}};

RankOutcome outcome_of(int rank, std::optional<Error> error = {}) {
  return {rank, fmt::format("engine {}", rank), error ? "torn" : "done", std::move(error), {}};
}

std::string text_of(const Error& error) {
  return fmt::format("{}: {}", name_of(error.code()), error.text());
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return text_of(error);
  }
  return "nothing";
}

// What a gathered outcome says, on one line.
std::string summary(const RankOutcome& outcome) {
  return fmt::format("{}, {}, {}, {}", outcome.rank, outcome.title, outcome.state,
                     outcome.error ? text_of(*outcome.error) : "no error");
}

std::vector<std::string> summaries(const std::vector<RankOutcome>& outcomes) {
  std::vector<std::string> texts;
  for (const RankOutcome& outcome : outcomes) texts.push_back(summary(outcome));
  return texts;
}

// A job whose ranks are threads.
class Job : public testing::Test {
 protected:
  // Starts a rank that joins, and then reports `error`.
  std::future<std::string> member(int rank, Asked asked = kAsked, std::optional<Error> error = {}) {
    return std::async(std::launch::async, [this, rank, asked, error] {
      RollMember member(session_, rank);
      const std::string refused = error_of([&] { member.join(asked, kPatience); });
      if (refused == "nothing") member.report(outcome_of(rank, error), kPatience);
      return refused;
    });
  }

  // Sends `line` to rank 0 as another program might. The connection stays with the test.
  LineSocket& stranger(const nlohmann::ordered_json& line) {
    strangers_.push_back(*dial("crossmesh-" + session_ + "-roll"));
    strangers_.back().send(line, std::chrono::steady_clock::now() + kPatience);
    return strangers_.back();
  }

  static nlohmann::ordered_json hello(int rank, const Asked& asked = kAsked) {
    return {{"rank", rank}, {"asked", asked}};
  }

  // The error that rank 0 sent to a stranger.
  static std::string refusal_to(LineSocket& socket) {
    while (const auto line = socket.receive()) {
      if (!line->contains("refused")) continue;
      const auto& error = line->at("refused");
      return text_of(
          Error::from_text(static_cast<ErrorCode>(error.at("code").get<int>()), error.at("text")));
    }
    return "nothing";
  }

  std::string session_ = new_session_name();
  std::deque<LineSocket> strangers_;
};

TEST_F(Job, begins_when_all_are_there_and_tells_how_each_ended) {
  for (const bool rank_0_is_first : {true, false}) {
    std::vector<std::future<std::string>> members;
    std::optional<Roll> roll;
    if (rank_0_is_first) roll.emplace(session_);
    const Error torn = Error(ErrorCode::peer_lost, "session: lost").with("lost", "rank 1");
    members.push_back(member(3, kAsked));
    members.push_back(member(1, kAsked));
    members.push_back(member(2, kAsked, torn));
    if (!rank_0_is_first) roll.emplace(session_);
    roll->call(kCounts, kAsked, kPatience);
    EXPECT_EQ(
        summaries(roll->gather(kCounts, outcome_of(0), kPatience)),
        (std::vector<std::string>{"0, engine 0, done, no error", "1, engine 1, done, no error",
                                  "2, engine 2, torn, peer_lost: session: lost\n"
                                  "  lost  rank 1",
                                  "3, engine 3, done, no error"}));
    roll.reset();  // A rank that failed stays until rank 0 has gone.
    for (auto& one : members) EXPECT_EQ(one.get(), "nothing");
  }
}

TEST_F(Job, names_the_ranks_that_do_not_come) {
  Roll roll(session_);
  LineSocket& second = stranger(hello(2));
  const std::string text =
      "timed_out: rank: not every rank has come\n"
      "  missing  trainer 1 (rank 1), engine 1 (rank 3)\n"
      "  seconds since the last one came  0.05\n"
      "  hint  start it with the same session; --timeout is how long the others wait";
  EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kShort); }), text);
  EXPECT_EQ(refusal_to(second), text);
  EXPECT_EQ(summaries(roll.gather(kCounts, outcome_of(0), kShort)),
            (std::vector<std::string>{
                "0, engine 0, done, no error",
                "1, rank 1, missing, timed_out: rank: the process did not come\n  rank  1",
                "2, rank 2, silent, timed_out: rank: the process does not say how it ended\n"
                "  rank  2",
                "3, rank 3, missing, timed_out: rank: the process did not come\n  rank  3"}));
}

TEST_F(Job, a_number_that_comes_twice_is_turned_away_and_told) {
  Roll roll(session_);
  stranger(hello(2));
  LineSocket& second = stranger(hello(2));
  EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kShort); }),
            "timed_out: rank: not every rank has come\n"
            "  missing  trainer 1 (rank 1), engine 1 (rank 3)\n"
            "  came twice  engine 0 (rank 2)\n"
            "  seconds since the last one came  0.05\n"
            "  hint  start it with the same session; --timeout is how long the others wait");
  EXPECT_EQ(refusal_to(second),
            fmt::format("invalid_argument: rank: another process came as this rank\n"
                        "  rank  2\n"
                        "  its pid  {}\n"
                        "  hint  give every process of the job a RANK or --rank of its own",
                        ::getpid()));
}

TEST_F(Job, an_option_that_differs_is_named_to_all) {
  struct Row {
    Asked asked;
    std::string facts;
  };
  const std::vector<Row> rows = {
      {{{"--engine", "tp=2"}, {"--iterations", "4"}},
       "  option  --iterations\n  rank 0  3\n  rank 3  4"},
      {{{"--engine", "tp=2"}}, "  option  --iterations\n  rank 0  3\n  rank 3  not given"},
      {{{"--engine", "tp=2"}, {"--iterations", "3"}, {"--new", 7}},
       "  option  --new\n  rank 0  not given\n  rank 3  7"}};
  for (const Row& row : rows) {
    Roll roll(session_);
    LineSocket& first = stranger(hello(1));
    LineSocket& third = stranger(hello(3, row.asked));
    const std::string text =
        "mismatch: rank: ranks were started with different options\n" + row.facts;
    EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kPatience); }), text);
    EXPECT_EQ(refusal_to(first), text);
    EXPECT_EQ(refusal_to(third), text);
  }
}

TEST_F(Job, a_rank_that_refuses_itself_ends_it_for_all) {
  Roll roll(session_);
  LineSocket& first = stranger(hello(1));
  report_refusal(session_, 2, Error(ErrorCode::io_failed, "open model: no").with("path", "x"));
  const std::string text = "io_failed: open model: no\n  path  x";
  EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kPatience); }), text);
  EXPECT_EQ(refusal_to(first), text);
  EXPECT_EQ(summary(roll.gather(kCounts, outcome_of(0), kShort)[2]), "2, rank 2, refused, " + text);
}

TEST_F(Job, a_rank_0_that_refuses_itself_tells_who_has_come) {
  Roll roll(session_);
  LineSocket& first = stranger(hello(1));
  roll.refuse(Error(ErrorCode::io_failed, "open model: no").with("path", "x"));
  EXPECT_EQ(refusal_to(first), "io_failed: open model: no\n  path  x");
}

TEST_F(Job, refuses_a_rank_outside_of_it) {
  Roll roll(session_);
  LineSocket& fourth = stranger(hello(4));
  error_of([&] { roll.call(kCounts, kAsked, kShort); });
  EXPECT_EQ(refusal_to(fourth),
            "invalid_argument: rank: the rank is outside the job\n"
            "  rank  4\n  trainer ranks  2\n  engine ranks  2");
}

TEST_F(Job, a_rank_that_ends_before_it_begins_is_named) {
  Roll roll(session_);
  LineSocket& first = stranger(hello(1));
  stranger(hello(3));
  ::shutdown(strangers_.back().fd(), SHUT_RDWR);
  const std::string text =
      "peer_lost: rank: a process ended before the job began\n"
      "  lost  engine 1 (rank 3)\n"
      "  hint  see what that process printed last";
  EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kPatience); }), text);
  EXPECT_EQ(refusal_to(first), text);
}

TEST_F(Job, strangers_that_speak_nonsense_are_no_ranks) {
  const std::vector<std::string> nonsense = {"\n",
                                             "hello\n",
                                             "[1]\n",
                                             "{\"rank\":\"one\"}\n",
                                             "{\"rank\":1}\n",
                                             "{\"rank\":1,\"refused\":1}\n",
                                             std::string(100, '[') + "\n",
                                             std::string(std::size_t{3} << 19, 'x')};
  std::vector<std::jthread> writers;  // the last one ends when the roll has
  Roll roll(session_);
  for (const std::string& text : nonsense) {
    strangers_.push_back(*dial("crossmesh-" + session_ + "-roll"));
    const int fd = ::dup(strangers_.back().fd());
    ::fcntl(fd, F_SETFL, 0);
    writers.emplace_back([fd, &text] {
      for (std::size_t at = 0; at < text.size();) {
        const auto sent = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (sent <= 0) break;
        at += static_cast<std::size_t>(sent);
      }
      ::close(fd);
    });
  }
  std::vector<std::future<std::string>> members;
  for (const int rank : {1, 2, 3}) members.push_back(member(rank));
  EXPECT_EQ(error_of([&] { roll.call(kCounts, kAsked, kPatience); }), "nothing");
  for (auto& one : members) EXPECT_EQ(one.get(), "nothing");
}

TEST_F(Job, ranks_that_end_without_a_word_are_told) {
  Roll roll(session_);
  stranger(hello(1));
  stranger(hello(2));
  stranger(hello(3));
  roll.call(kCounts, kAsked, kPatience);
  ::shutdown(strangers_[0].fd(), SHUT_RDWR);
  strangers_[1].send({{"outcome", {{"rank", 2}}}}, std::chrono::steady_clock::now());
  EXPECT_EQ(summaries(roll.gather(kCounts, outcome_of(0), kShort)),
            (std::vector<std::string>{
                "0, engine 0, done, no error",
                "1, rank 1, ended, peer_lost: rank: the process ended without a word\n  rank  1",
                "2, rank 2, ended, peer_lost: rank: the process ended without a word\n  rank  2",
                "3, rank 3, silent, timed_out: rank: the process does not say how it ended\n"
                "  rank  3"}));
}

TEST_F(Job, a_member_misses_rank_0) {
  const auto join = [&] {
    RollMember member(session_, 1);
    return error_of([&] { member.join(kAsked, kShort); });
  };
  EXPECT_EQ(join(), fmt::format("timed_out: rank: rank 0 does not answer\n"
                                "  rank  1\n"
                                "  session  {}\n"
                                "  seconds  0.05\n"
                                "  hint  start rank 0 with the same session; --timeout is how "
                                "long the others wait",
                                session_));
  std::optional<Roll> roll(session_);
  EXPECT_EQ(join(), fmt::format("timed_out: rank: rank 0 does not let this rank in\n"
                                "  rank  1\n"
                                "  session  {}\n"
                                "  hint  rank 0 is stopped, or its job has begun without this "
                                "process",
                                session_));
  EXPECT_EQ(error_of([&] { roll->call({1, 1}, kAsked, kPatience); }),
            "peer_lost: rank: a process ended before the job began\n"
            "  lost  engine 0 (rank 1)\n"
            "  hint  see what that process printed last");
}

TEST_F(Job, a_member_is_told_when_rank_0_ends) {
  const FileDescriptor listener = listen_at("crossmesh-" + session_ + "-roll");
  auto first = member(1);
  std::optional<LineSocket> socket;
  while (!(socket = accept_from(listener))) std::this_thread::yield();
  socket.reset();
  EXPECT_EQ(first.get(), fmt::format("peer_lost: rank: rank 0 ended before the job began\n"
                                     "  rank  1\n"
                                     "  session  {}\n"
                                     "  hint  see what rank 0 printed last",
                                     session_));
}

TEST_F(Job, two_jobs_of_one_name_are_refused) {
  const Roll roll(session_);
  EXPECT_EQ(error_of([&] { Roll second(session_); }),
            fmt::format("io_failed: rank: cannot listen for the other ranks\n"
                        "  address  @crossmesh-{}-roll\n"
                        "  system  Address already in use\n"
                        "  hint  another rank 0 runs this session; give each job its own",
                        session_));
}

}  // namespace
}  // namespace crossmesh::cli
