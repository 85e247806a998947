// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/lifeline.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace crossmesh {
namespace {

constexpr int kRanks = 3;

std::string new_session(const std::string& test) { return test + "-" + std::to_string(::getpid()); }

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(5); }

// Dials as a stranger does, says `bytes`, and closes.
void say_and_close(const std::string& session, const std::string& bytes) {
  const std::string name = "crossmesh-" + session + "-lifeline";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

TEST(Lifeline, the_end_of_a_member_is_known_once) {
  const std::string session = new_session("ends");
  LifelineServer server(session, kRanks);
  std::optional<Lifeline> first(std::in_place, session, 1, soon());
  const Lifeline second(session, 2, soon());
  EXPECT_EQ(server.ended(), std::vector<int>());
  first.reset();
  EXPECT_EQ(server.ended(), std::vector<int>{1});
  EXPECT_EQ(server.ended(), std::vector<int>());
}

TEST(Lifeline, the_end_of_the_server_is_known) {
  const std::string session = new_session("server");
  std::optional<LifelineServer> server(std::in_place, session, kRanks);
  const Lifeline member(session, 1, soon());
  server->ended();
  EXPECT_FALSE(member.ended());
  server.reset();
  EXPECT_TRUE(member.ended());
}

TEST(Lifeline, strangers_that_speak_are_no_ranks) {
  const std::string session = new_session("strangers");
  LifelineServer server(session, kRanks);
  const Lifeline member(session, 1, soon());
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\1\0\0\0", 4), std::string("x"),
        std::string("\2\0\0\0", 4), std::string(4096, '\0'), std::string(4096, '\xff'),
        std::string()}) {
    say_and_close(session, bytes);
    EXPECT_EQ(server.ended(), std::vector<int>()) << bytes.size();
  }
}

TEST(Lifeline, ranks_outside_the_job_are_not_heard) {
  const std::string session = new_session("outside");
  LifelineServer server(session, kRanks);
  for (const int rank : {-1, kRanks, 1 << 30}) {
    { const Lifeline outside(session, rank, soon()); }
    EXPECT_EQ(server.ended(), std::vector<int>()) << rank;
  }
}

TEST(Lifeline, a_second_process_of_a_living_rank_is_refused) {
  const std::string session = new_session("twins");
  LifelineServer server(session, kRanks);
  std::optional<Lifeline> first(std::in_place, session, 1, soon());
  EXPECT_EQ(server.incarnation(1), std::nullopt);
  EXPECT_EQ(server.ended(), std::vector<int>());
  const Lifeline second(session, 1, soon());
  EXPECT_EQ(server.ended(), std::vector<int>());
  EXPECT_TRUE(second.ended());
  EXPECT_TRUE(second.is_refused());
  EXPECT_FALSE(first->ended());
  EXPECT_EQ(server.incarnation(1), first->incarnation());
}

TEST(Lifeline, a_rank_that_starts_again_is_another_incarnation) {
  const std::string session = new_session("again");
  LifelineServer server(session, kRanks);
  std::optional<Lifeline> first(std::in_place, session, 1, soon());
  server.ended();
  first.reset();
  // Both the end and the new process are there before the server looks.
  const Lifeline second(session, 1, soon());
  server.accept_waiting();
  EXPECT_EQ(server.incarnation(1), second.incarnation());
  EXPECT_EQ(server.ended(), std::vector<int>{1});
  EXPECT_EQ(server.ended(), std::vector<int>());
  EXPECT_FALSE(second.ended());
  EXPECT_FALSE(second.is_refused());
}

}  // namespace
}  // namespace crossmesh
