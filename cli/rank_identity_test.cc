// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_identity.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Variables = std::map<std::string, std::string>;

const Variables kLaunched = {
    {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const std::string kSession = "00112233445566778899aabbccddeeff";

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Variables changed(const Variables& changes) {
  Variables variables = changes;
  variables.insert(kLaunched.begin(), kLaunched.end());
  return variables;
}

RankIdentity identify(const Variables& variables, const IdentityFlags& flags = {}) {
  return identify_rank(flags, environment_of(variables));
}

std::string refusal(const Variables& variables, const IdentityFlags& flags = {}) {
  try {
    identify(variables, flags);
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.code()), error.text());
  }
  return "nothing";
}

TEST(RankIdentity, a_launcher_says_all_of_it) {
  const RankIdentity identity = identify(kLaunched);
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.world_size, 4);
  // Ranks of one job may run other builds of this program: the name must not change between them.
  EXPECT_EQ(identity.session, "8662a6fae632562e22822aadb71016fa");
}

TEST(RankIdentity, a_session_is_named_by_address_port_and_run) {
  const std::vector<Variables> jobs = {{},
                                       {{"MASTER_ADDR", "127.0.0.2"}},
                                       {{"MASTER_PORT", "29501"}},
                                       {{"TORCHELASTIC_RUN_ID", "none"}},
                                       {{"TORCHELASTIC_RUN_ID", "other"}}};
  std::set<std::string> names;
  for (const Variables& job : jobs) {
    const std::string name = identify(changed(job)).session;
    EXPECT_EQ(name.size(), 32u);
    names.insert(name);
    Variables other_rank = changed(job);
    other_rank["RANK"] = "0";
    EXPECT_EQ(identify(other_rank).session, name);
  }
  EXPECT_EQ(names.size(), jobs.size());
  EXPECT_EQ(identify(changed({{"TORCHELASTIC_RUN_ID", ""}})).session, identify(kLaunched).session);
}

TEST(RankIdentity, flags_win_over_variables) {
  const RankIdentity identity =
      identify(kLaunched, {.session = kSession, .rank = 5, .world_size = 6});
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.world_size, 6);
  EXPECT_EQ(identity.session, kSession);
}

TEST(RankIdentity, a_rank_and_a_session_by_flag_need_no_variable) {
  const RankIdentity identity = identify({}, {.session = kSession, .rank = 5});
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.world_size, std::nullopt);
  EXPECT_EQ(identity.session, kSession);
}

TEST(RankIdentity, what_is_missing_is_named) {
  for (const auto& [variable, flag] :
       std::map<std::string, std::string>{{"RANK", "--rank"},
                                          {"WORLD_SIZE", "--world-size"},
                                          {"MASTER_ADDR", "--session"},
                                          {"MASTER_PORT", "--session"}}) {
    const std::string text = fmt::format(
        "invalid_argument: identify rank: a variable is missing\n"
        "  variable  {}\n"
        "  hint  a launcher such as torchrun sets it; by hand, give {}",
        variable, flag);
    Variables without = kLaunched;
    without.erase(variable);
    EXPECT_EQ(refusal(without), text);
    EXPECT_EQ(refusal(changed({{variable, ""}})), text);
  }
}

TEST(RankIdentity, what_is_no_number_is_named) {
  struct Row {
    std::string variable, value, expected;
  };
  const std::vector<Row> rows = {{"RANK", "two", "0 to 999999"},
                                 {"RANK", "-1", "0 to 999999"},
                                 {"RANK", "1 ", "0 to 999999"},
                                 {"RANK", "99999999999", "0 to 999999"},
                                 {"WORLD_SIZE", "0", "1 to 1000000"},
                                 {"WORLD_SIZE", "4.0", "1 to 1000000"},
                                 {"MASTER_PORT", "0", "1 to 65535"},
                                 {"MASTER_PORT", "65536", "1 to 65535"},
                                 {"LOCAL_WORLD_SIZE", "x", "1 to 1000000"}};
  for (const Row& row : rows) {
    EXPECT_EQ(refusal(changed({{row.variable, row.value}})),
              fmt::format("invalid_argument: identify rank: a variable is no number in its range\n"
                          "  variable  {}\n"
                          "  value  {}\n"
                          "  expected  {}",
                          row.variable, row.value, row.expected));
  }
}

TEST(RankIdentity, a_rank_outside_the_job_is_refused_by_the_names_that_were_given) {
  const std::string text =
      "invalid_argument: identify rank: the rank is outside the job\n"
      "  {}  4\n"
      "  {}  4\n"
      "  hint  ranks count from 0";
  EXPECT_EQ(refusal(changed({{"RANK", "4"}})),
            fmt::format(fmt::runtime(text), "RANK", "WORLD_SIZE"));
  EXPECT_EQ(refusal(kLaunched, {.rank = 4}),
            fmt::format(fmt::runtime(text), "--rank", "WORLD_SIZE"));
  EXPECT_EQ(refusal(kLaunched, {.rank = 4, .world_size = 4}),
            fmt::format(fmt::runtime(text), "--rank", "--world-size"));
}

TEST(RankIdentity, ranks_on_other_hosts_are_refused) {
  EXPECT_EQ(refusal(changed({{"LOCAL_WORLD_SIZE", "2"}})),
            "unsupported: identify rank: the job's ranks are not all on this host\n"
            "  LOCAL_WORLD_SIZE  2\n"
            "  WORLD_SIZE  4\n"
            "  hint  start all ranks on one host");
  EXPECT_EQ(identify(changed({{"LOCAL_WORLD_SIZE", "4"}})).world_size, 4);
}

std::string refusal_of_size(std::optional<int> world_size, int rank) {
  try {
    check_world_size({kSession, rank, world_size}, {2, 3});
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.code()), error.text());
  }
  return "nothing";
}

TEST(RankIdentity, the_job_is_as_large_as_both_specs) {
  EXPECT_EQ(refusal_of_size(5, 4), "nothing");
  EXPECT_EQ(refusal_of_size(std::nullopt, 4), "nothing");
  EXPECT_EQ(refusal_of_size(4, 3),
            "invalid_argument: rank: the job is not as large as its specs\n"
            "  world size  4\n"
            "  trainer ranks  2\n"
            "  engine ranks  3\n"
            "  hint  start 5 ranks, each with WORLD_SIZE or --world-size 5");
  EXPECT_EQ(refusal_of_size(std::nullopt, 5),
            "invalid_argument: rank: the rank is outside the job\n"
            "  rank  5\n"
            "  trainer ranks  2\n"
            "  engine ranks  3\n"
            "  hint  ranks count from 0");
}

}  // namespace
}  // namespace crossmesh::cli
