// SPDX-License-Identifier: Apache-2.0
// `crossmesh move`: every rank of a job on this host, from the checkpoint into checked parameters.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>

#include "cli/colocated.h"
#include "cli/command.h"
#include "cli/command_move.h"
#include "cli/format.h"
#include "cli/launcher.h"
#include "cli/move.h"
#include "cli/output.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
using nlohmann::ordered_json;

namespace {

std::vector<std::string> way_names() {
  std::vector<std::string> names;
  for (const ShmWay way : kShmWays) names.emplace_back(name_of(way));
  return names;
}

}  // namespace

void add_move_options(CLI::App& command, MoveCommand& move) {
  add_request_options(command, move.options.request);
  command.add_option("--transport", move.options.transport, "How bytes go on this host")
      ->check(CLI::IsMember({"shm", "inproc"}))
      ->capture_default_str();
  command
      .add_option("--way", move.way,
                  "How shm reaches a trainer's memory; attach and ring make that memory private")
      ->check(CLI::IsMember(way_names()))
      ->capture_default_str();
  command.add_flag("--colocate", move.options.colocate,
                   "Trainer i and engine i are one process, and copy there");
  command
      .add_option("--digest", move.digest,
                  "Compare digests before a commit: of all tensors, or one in 16, in turn")
      ->check(CLI::IsMember({"on", "sampled", "off"}))
      ->capture_default_str();
  command.add_flag("--check-replicas", move.options.check_replicas,
                   "Compare what trainer ranks hold of the same weights before each update");
  command.add_option("--iterations", move.options.iterations, "Updates to make, each checked")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      .add_option("--timeout", move.options.timeout_seconds, "Seconds without progress, at most")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command.add_option("--pause", move.pause, "Stop every rank in this phase of the last update")
      ->check(CLI::IsMember(
          {"join", "agree", "ready", "start", "move", "complete", "commit", "leave"}));
  command
      .add_option("--dump", move.options.dump,
                  "Write what the serving ranks hold in the end, for `verify`")
      ->type_name("DIR");
  command
      .add_option(
          "--floor", move.floor,
          "Measure beside the updates: one memcpy per engine, or a plain loop over its runs")
      ->check(CLI::IsMember({"memcpy", "runs"}))
      ->capture_default_str();
  command.add_flag("--no-floor", move.no_floor, "Do not measure the floor beside the updates");
  add_fault_options(command, move.faults);
}

namespace {

// The words that `move` was given; its ranks are started with the same ones.
std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  const auto command = std::find(words.begin(), words.end(), "move");
  return {command == words.end() ? command : command + 1, words.end()};
}

}  // namespace

void finish_options(MoveCommand& move) {
  if (!move.pause.empty()) move.options.pause = phase_from_name(move.pause);
  move.options.digest = digest_mode_from_name(move.digest);
  move.options.floor = move.no_floor          ? FloorKind::none
                       : move.floor == "runs" ? FloorKind::runs
                                              : FloorKind::memcpy;
  move.options.faults = finish_fault_options(move.faults, move.options.iterations);
  if (move.options.faults.restart) {
    // What measures the floor has met all engines once, and would miss one that comes back.
    move.options.floor = FloorKind::none;
    if (move.options.transport == "inproc" || move.options.colocate) {
      throw Error(ErrorCode::invalid_argument,
                  "move: --restart-engine kills an engine that is a process of its own");
    }
  }
  for (const ShmWay way : kShmWays) {
    if (name_of(way) == move.way) move.options.way = way;
  }
  if (move.options.way != ShmWay::automatic && move.options.transport == "inproc") {
    throw Error(ErrorCode::invalid_argument, "move: --way chooses between processes, not threads")
        .with("transport", "inproc")
        .with("way", move.way)
        .hint("--transport shm");
  }
  if (move.options.colocate && move.options.transport == "inproc") {
    throw Error(ErrorCode::invalid_argument,
                "move: --colocate pairs ranks in processes, and threads are in one")
        .with("transport", "inproc")
        .hint("--transport shm");
  }
  if (move.options.pause && move.options.transport == "inproc") {
    throw Error(ErrorCode::invalid_argument, "move: --pause stops processes, not threads")
        .with("transport", "inproc")
        .hint("--transport shm");
  }
}

namespace {

void print_paused(const MoveCommand& move, const RankCounts& counts,
                  const std::vector<RankProcess>& processes) {
  if (move.json) {
    ordered_json ranks = ordered_json::array();
    for (const RankProcess& process : processes) {
      ranks.push_back({{"rank", process.rank},
                       {"side", process.rank < counts.trainers ? "trainer" : "engine"},
                       {"pid", process.pid}});
    }
    fmt::print("{}\n", ordered_json{{"paused", move.pause}, {"ranks", ranks}}.dump());
  } else {
    fmt::print("paused in {}; `kill -CONT` each rank to go on\n", move.pause);
    for (const RankProcess& process : processes) {
      fmt::print("  {} {}  pid {}\n", process.rank < counts.trainers ? "trainer" : "engine",
                 process.rank, process.pid);
    }
  }
  std::fflush(stdout);
}

}  // namespace

std::string outcome_line(const RankOutcome& outcome) {
  return fmt::format("  {}: {}", outcome.title, outcome.state.empty() ? "failed" : outcome.state);
}

namespace {

// What the first of `outcomes` that `is` so met, or nothing.
template <typename Is>
const Error* error_where(const std::vector<RankOutcome>& outcomes, const Is& is) {
  for (const RankOutcome& outcome : outcomes) {
    if (outcome.error && is(outcome)) return &*outcome.error;
  }
  return nullptr;
}

// Of several errors, the one to show. A rank that died without a word is the cause of whatever the
// others met, and who misses it knows the phase. Else it is the first that is neither a
// lost peer nor a long wait, if there is one.
Error cause_of(const std::vector<RankOutcome>& outcomes) {
  const auto is_silent = [](const RankOutcome& o) { return o.state == "ended"; };
  const auto speaks = [](const RankOutcome& o) {
    const std::set<std::string> wordless = {"ended", "killed", "missing", "silent"};
    return !wordless.contains(o.state);
  };
  for (const RankOutcome& dead : outcomes) {
    if (!is_silent(dead)) continue;
    const std::string name = fmt::format("(rank {})", dead.rank);
    const Error* seen = error_where(outcomes, [&](const RankOutcome& o) {
      return speaks(o) && o.error->text().find(name) != std::string::npos;
    });
    if (seen != nullptr) return *seen;
  }
  const Error* first = error_where(outcomes, speaks);
  if (const Error* silent = error_where(outcomes, is_silent)) {
    Error cause = *silent;
    if (first != nullptr)
      cause.with("met by others", first->text().substr(0, first->text().find('\n')));
    return cause;
  }
  for (const bool may_be_late : {false, true}) {
    const Error* real = error_where(outcomes, [&](const RankOutcome& o) {
      const ErrorCode code = o.error->code();
      return speaks(o) && code != ErrorCode::peer_lost &&
             (may_be_late || code != ErrorCode::timed_out);
    });
    if (real != nullptr) return *real;
  }
  return first != nullptr ? *first : *error_where(outcomes, [](const auto&) { return true; });
}

void print_failure(const MoveCommand& move, const std::vector<RankOutcome>& outcomes) {
  const Error cause = cause_of(outcomes);
  fmt::print(stderr, "crossmesh: {}\n", cause.text());
  for (const RankOutcome& outcome : outcomes) {
    fmt::print(stderr, "{}\n", outcome_line(outcome));
  }
  if (!move.json) return;
  ordered_json ranks = ordered_json::array();
  for (const RankOutcome& outcome : outcomes) {
    ordered_json one = {{"rank", outcome.rank}, {"title", outcome.title}, {"state", outcome.state}};
    one["error"] = outcome.error ? ordered_json{{"code", name_of(outcome.error->code())},
                                                {"text", outcome.error->text()}}
                                 : ordered_json();
    ranks.push_back(std::move(one));
  }
  print_json(
      {{"error", {{"code", name_of(cause.code())}, {"text", cause.text()}}}, {"ranks", ranks}});
}

std::string result_text(const ordered_json& result) {
  std::string text = fmt::format(
      "{}: {} elements checked over {} updates\n", result["verified"] ? "verified" : "NOT VERIFIED",
      result["elements_checked"].get<std::int64_t>(), result["iterations"].size());
  if (result.contains("fault"))
    text += fmt::format("fault: {}\n", result["fault"].get<std::string>());
  for (const ordered_json& one : result["iterations"]) {
    const double seconds = one["seconds"];
    const std::int64_t bytes = one["bytes"];
    text += fmt::format("  version {}  {:.4f} s  {}  {:.2f} GB/s\n", one["version"].get<int>(),
                        seconds, bytes_text(bytes), static_cast<double>(bytes) / seconds / 1e9);
  }
  text += fmt::format("{} needed, {} of them by the fallback; checking takes {:.2f} s a version\n",
                      bytes_text(result["bytes_needed"]), bytes_text(result["bytes_fallback"]),
                      result["verify_seconds_median"].get<double>());
  if (const ordered_json& digest = result["digest"]; digest["mode"] != "off") {
    text += fmt::format(
        "digests {}: {} an update; engines {:.4f} s in it ({:.0f}%), trainers {:.4f} s before it\n",
        digest["mode"].get<std::string>(), bytes_text(digest["bytes_median"]),
        digest["engine_seconds_median"].get<double>(), 100 * digest["engine_share"].get<double>(),
        digest["trainer_seconds_median"].get<double>());
  }
  if (!result["ratio_to_floor"].is_null()) {
    text += fmt::format("update {:.4f} s, floor {:.4f} s: {:.2f} of the floor\n",
                        result["seconds_median"].get<double>(),
                        result["floor_seconds_median"].get<double>(),
                        result["ratio_to_floor"].get<double>());
  }
  return text;
}

}  // namespace

int finish(const MoveCommand& move, const std::vector<RankOutcome>& outcomes) {
  const bool failed = std::any_of(outcomes.begin(), outcomes.end(),
                                  [](const RankOutcome& o) { return o.error.has_value(); });
  if (failed) {
    print_failure(move, outcomes);
    return kExitFailed;
  }
  const ordered_json& result = outcomes.front().result;
  if (move.json) {
    print_json(result);
  } else {
    print_text(result_text(result));
  }
  return result["verified"] ? kExitDone : kExitFailed;
}

namespace {

int run_move(MoveCommand& move) {
  finish_options(move);
  if (move.options.transport == "inproc") return finish(move, move_in_threads(move.options));
  const RankCounts counts = check_move(move.options);
  Launch job;
  job.arguments = own_words();
  const std::string& name = move.options.faults.session;
  job.session = name.empty() ? new_session_name() : name;
  job.ranks = ranks_of_processes(counts, move.options.colocate);
  job.grace =
      std::chrono::milliseconds(static_cast<std::int64_t>(move.options.timeout_seconds * 2000));
  if (move.options.pause) {
    job.on_all_stopped = [&](const std::vector<RankProcess>& processes) {
      print_paused(move, counts, processes);
    };
  }
  return finish(move, launch(job));
}

}  // namespace

void register_move(CLI::App& app, Invocation& invocation) {
  const auto move = std::make_shared<MoveCommand>();
  CLI::App* command = app.add_subcommand(
      "move",
      "Move a checkpoint from training ranks into serving ranks on this host, and check it");
  add_move_options(*command, *move);
  command->add_flag("--json", move->json, "Results as JSON");
  command->callback([=, &invocation] {
    invocation.json = move->json;
    invocation.run = [=] { return run_move(*move); };
  });
}

}  // namespace crossmesh::cli
