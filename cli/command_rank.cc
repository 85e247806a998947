// SPDX-License-Identifier: Apache-2.0
// `crossmesh rank`: one rank of a job, started by hand or by a launcher, or by `move`.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "cli/colocated.h"
#include "cli/command.h"
#include "cli/command_move.h"
#include "cli/launcher.h"
#include "cli/progress.h"
#include "cli/rank_identity.h"
#include "cli/roll.h"
#include "crossmesh/base/error.h"
#include "crossmesh/transport/shm.h"

namespace crossmesh::cli {
namespace {

struct RankCommand {
  MoveCommand move;
  IdentityFlags identity;
  // Of `move`, which gathers the outcomes itself.
  int report_fd = -1;
  int beside = -1;  // another rank of the same process
  Asked asked;
};

std::optional<std::string> environment_value(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::chrono::milliseconds timeout_of(const RankCommand& command) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(command.move.options.timeout_seconds * 1000));
}

// The options in which all ranks must agree, as they were given.
Asked asked_of(const CLI::App& command) {
  const std::set<std::string> own = {"--help", "MODEL",     "--rank",  "--world-size", "--session",
                                     "--json", "--timeout", "--pause", "--report-fd",  "--beside"};
  Asked asked = Asked::object();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (own.contains(name)) continue;
    const std::vector<std::string> words = option->results();
    const std::string text =
        words.empty() ? option->get_default_str() : fmt::format("{}", fmt::join(words, " "));
    if (!text.empty()) asked[name] = text;
  }
  return asked;
}

// Runs ranks of this process; one, unless `move` puts two into it.
std::vector<RankOutcome> run_program(const RankCommand& command, const std::vector<int>& ranks,
                                     const std::string& session,
                                     const std::function<void()>& on_pause,
                                     const std::function<void()>& on_restart = {}) {
  const MoveOptions& options = command.move.options;
  std::unique_ptr<Progress> progress;
  std::function<void(int)> on_iteration;
  if (ranks.front() == 0) {
    progress = std::make_unique<Progress>("move", options.iterations, Progress::Unit::steps);
    on_iteration = [&](int done) { progress->update(done); };
  }
  return run_ranks(
      ranks, {options, session, ranks.front(), on_pause, on_restart},
      [&](int rank) {
        return make_shm({.session_name = session, .rank = rank, .way = options.way});
      },
      on_iteration);
}

// `move` has checked the request, calls no roll and gathers the outcomes over pipes.
int run_launched(const RankCommand& command) {
  if (command.move.options.pause) hold_continue_signal();
  const RankIdentity identity = identify_rank(command.identity, environment_value);
  std::vector<int> ranks = {identity.rank};
  if (command.beside >= 0) ranks.push_back(command.beside);
  bool failed = false;
  for (const RankOutcome& outcome : run_program(
           command, ranks, identity.session, [&] { report_pause(command.report_fd); },
           [&] { report_restart(command.report_fd); })) {
    report_outcome(command.report_fd, outcome);
    failed |= outcome.error.has_value();
  }
  return failed ? kExitFailed : kExitDone;
}

void pause_here(const RankCommand& command) {
  fmt::print(stderr, "paused in {}; `kill -CONT {}` to go on\n", command.move.pause, ::getpid());
  std::raise(SIGSTOP);
}

// Everything that can be refused before the ranks meet.
RankCounts check_rank(const RankCommand& command, const RankIdentity& identity) {
  const RankCounts counts = check_move(command.move.options);
  check_world_size(identity, counts);
  return counts;
}

// Meets the others by `meet`, then runs.
RankOutcome run_after(const RankCommand& command, const RankIdentity& identity,
                      const RankCounts& counts, const std::function<void()>& meet) {
  try {
    meet();
  } catch (const Error& error) {
    const char* side = identity.rank < counts.trainers ? "trainer" : "engine";
    return {identity.rank, fmt::format("{} {}", side, identity.rank), "aborted", error, {}};
  }
  return run_program(command, {identity.rank}, identity.session, [&] { pause_here(command); })
      .front();
}

int run_first(const RankCommand& command, const RankIdentity& identity) {
  Roll roll(identity.session);
  RankCounts counts;
  try {
    counts = check_rank(command, identity);
  } catch (const Error& error) {
    roll.refuse(error);
    throw;
  }
  const RankOutcome own = run_after(command, identity, counts,
                                    [&] { roll.call(counts, command.asked, timeout_of(command)); });
  return finish(command.move, roll.gather(counts, own, timeout_of(command)));
}

int run_other(const RankCommand& command, const RankIdentity& identity) {
  RankCounts counts;
  try {
    counts = check_rank(command, identity);
  } catch (const Error& error) {
    report_refusal(identity.session, identity.rank, error);
    throw;
  }
  RollMember member(identity.session, identity.rank);
  RankOutcome outcome = run_after(command, identity, counts,
                                  [&] { member.join(command.asked, timeout_of(command)); });
  const bool verified = !outcome.error && outcome.result.at("verified").get<bool>();
  outcome.result = {};  // every rank has the same, and rank 0 prints it
  if (outcome.error) {
    fmt::print(stderr, "crossmesh: {}\n{}\n", outcome.error->text(), outcome_line(outcome));
  }
  member.report(outcome, timeout_of(command));
  return verified ? kExitDone : kExitFailed;
}

int run_rank_command(RankCommand& command, Invocation& invocation) {
  finish_options(command.move);
  if (command.report_fd >= 0) return run_launched(command);
  if (command.move.options.colocate) {
    throw Error(ErrorCode::invalid_argument, "rank: a process that is started alone is one rank")
        .with("option", "--colocate")
        .hint("`crossmesh move --colocate` starts processes of two ranks");
  }
  const RankIdentity identity = identify_rank(command.identity, environment_value);
  // A launcher may send what all ranks print to one place.
  if (identity.rank != 0) invocation.json = false;
  return identity.rank == 0 ? run_first(command, identity) : run_other(command, identity);
}

std::string check_session(const std::string& text) {
  const bool is_name =
      text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_name ? "" : text + " is not 32 lower-case hexadecimal digits";
}

}  // namespace

void register_rank(CLI::App& app, Invocation& invocation) {
  const auto rank = std::make_shared<RankCommand>();
  CLI::App* command = app.add_subcommand(
      "rank", "One rank of a job, by hand or by a launcher such as torchrun; rank 0 prints");
  add_move_options(*command, rank->move);
  command->get_option("--transport")->check(CLI::IsMember({"shm"}));
  command->add_flag("--json", rank->move.json, "Results as JSON");
  command->add_option("--rank", rank->identity.rank, "This one, training ranks first; else RANK")
      ->check(CLI::Range(0, 999'999));
  command
      ->add_option("--world-size", rank->identity.world_size,
                   "How many ranks there are; else WORLD_SIZE")
      ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--session", rank->identity.session,
                   "The job's name: 32 hexadecimal digits; else by MASTER_ADDR and MASTER_PORT")
      ->check(check_session);
  command->add_option("--report-fd", rank->report_fd)->group("");
  command->add_option("--beside", rank->beside)->group("");
  command->callback([=, &invocation] {
    invocation.json = rank->move.json;
    rank->asked = asked_of(*command);
    invocation.run = [=, &invocation] { return run_rank_command(*rank, invocation); };
  });
}

}  // namespace crossmesh::cli
