// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <sstream>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/arena.h"

namespace crossmesh::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{20};

// report  = { pause } ( restart | outcome { outcome } )
// restart = "restart" newline
// pause  = "paused" newline
// outcome = JSON on one line, newline
constexpr std::string_view kPaused = "paused\n";
constexpr std::string_view kRestart = "restart\n";

struct Child {
  std::vector<int> ranks;
  pid_t pid = 0;
  FileDescriptor report;
  std::string text;
  std::optional<int> status;
  bool stopped = false;
  bool killed = false;   // by the launcher, since it did not end
  bool returns = false;  // it was killed and started again

  bool has_paused() const { return text.starts_with(kPaused); }
};

std::size_t rank_count_of(const Launch& launch) {
  std::size_t count = 0;
  for (const std::vector<int>& ranks : launch.ranks) count += ranks.size();
  return count;
}

[[noreturn]] void become_rank(const Launch& launch, const std::vector<int>& ranks, int report_fd,
                              pid_t parent, bool returns) {
  // A launcher that dies takes its ranks with it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  std::vector<std::string> words = {"crossmesh", "rank"};
  words.insert(words.end(), launch.arguments.begin(), launch.arguments.end());
  for (const auto& [name, value] :
       {std::pair<std::string, std::string>{"--session", launch.session},
        {"--rank", std::to_string(ranks.front())},
        {"--world-size", std::to_string(rank_count_of(launch))},
        {"--report-fd", std::to_string(report_fd)}}) {
    words.push_back(name);
    words.push_back(value);
  }
  if (ranks.size() > 1) {
    words.emplace_back("--beside");
    words.push_back(std::to_string(ranks.back()));
  }
  if (returns) words.emplace_back("--returns");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv("/proc/self/exe", pointers.data());
  ::_exit(127);
}

Child start(const Launch& launch, const std::vector<int>& ranks, bool returns = false) {
  const int rank = ranks.front();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::io_failed, "launch: cannot make a pipe")
        .with("rank", rank)
        .with("system", std::strerror(errno));
  }
  Child child;
  child.report = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw Error(ErrorCode::io_failed, "launch: cannot start a process")
        .with("rank", rank)
        .with("system", std::strerror(errno));
  }
  if (pid == 0) {
    ::fcntl(write_end.get(), F_SETFD, 0);
    become_rank(launch, ranks, write_end.get(), parent, returns);
  }
  ::fcntl(child.report.get(), F_SETFL, O_NONBLOCK);
  child.ranks = ranks;
  child.pid = pid;
  child.returns = returns;
  return child;
}

void read_report(Child& child) {
  char part[4096];
  while (true) {
    const ssize_t got = ::read(child.report.get(), part, sizeof part);
    if (got <= 0) return;
    child.text.append(part, static_cast<std::size_t>(got));
  }
}

void look_at(Child& child) {
  if (child.status) return;
  int status = 0;
  const pid_t seen = ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED);
  if (seen != child.pid) return;
  if (WIFSTOPPED(status)) {
    child.stopped = true;
  } else if (WIFCONTINUED(status)) {
    child.stopped = false;
  } else {
    child.status = status;
  }
}

// Kills a rank that asks for it, and starts it again.
void restart_if_asked(const Launch& launch, Child& child) {
  if (child.returns || child.status || !child.text.ends_with(kRestart)) return;
  ::kill(child.pid, SIGKILL);
  while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  child = start(launch, std::vector<int>(child.ranks), /*returns=*/true);
}

// Of one of its ranks.
RankOutcome outcome_of(const Child& child, int rank) {
  std::istringstream lines(child.text);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("rank", -1) == rank) return outcome_from_json(json);
  }
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.title = fmt::format("rank {}", rank);
  if (child.killed) {
    outcome.state = "killed";
    outcome.error =
        Error(ErrorCode::timed_out, "rank: the process did not end after others had failed")
            .with("rank", rank)
            .with("stopped by a signal", child.stopped ? "yes" : "no");
    return outcome;
  }
  outcome.state = "ended";
  Error error(ErrorCode::peer_lost, "rank: the process ended without a word");
  error.with("rank", rank);
  const int status = child.status.value_or(0);
  if (WIFSIGNALED(status)) {
    error.with("signal", WTERMSIG(status));
  } else {
    error.with("exit code", WEXITSTATUS(status));
  }
  outcome.error = error;
  return outcome;
}

bool all_of_living(const std::vector<Child>& children,
                   const std::function<bool(const Child&)>& is) {
  return std::all_of(children.begin(), children.end(),
                     [&](const Child& child) { return child.status || is(child); });
}

void signal_all(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) {
    if (!child.status) ::kill(child.pid, signal);
  }
}

void kill_living(std::vector<Child>& children) {
  for (Child& child : children) {
    if (!child.status) child.killed = true;
  }
  signal_all(children, SIGKILL);
}

// Stops the ranks once all of them have come to the pause, and tells when they stand.
class Pauser {
 public:
  explicit Pauser(const Launch& launch) : launch_(launch) {}

  void look(const std::vector<Child>& children) {
    if (!launch_.on_all_stopped || told_) return;
    if (!asked_ && all_of_living(children, [](const Child& c) { return c.has_paused(); })) {
      signal_all(children, SIGSTOP);
      asked_ = true;
    }
    if (!asked_ || !all_of_living(children, [](const Child& c) { return c.stopped; })) return;
    std::vector<RankProcess> processes;
    for (const Child& child : children) {
      for (const int rank : child.ranks) processes.push_back({rank, child.pid});
    }
    std::ranges::sort(processes, {}, &RankProcess::rank);
    launch_.on_all_stopped(processes);
    told_ = true;
  }

 private:
  const Launch& launch_;
  bool asked_ = false;
  bool told_ = false;
};

bool is_standing(const Child& child) { return child.stopped && !child.status; }

// Ends when every child has; one that has no more time is killed.
void await_children(const Launch& launch, std::vector<Child>& children) {
  std::optional<Clock::time_point> failed_at;
  Pauser pauser(launch);
  const auto ended = [](const Child& child) { return child.status.has_value(); };
  while (!std::all_of(children.begin(), children.end(), ended)) {
    std::vector<pollfd> items;
    for (Child& child : children) {
      look_at(child);
      read_report(child);
      restart_if_asked(launch, child);
      if (!child.status) items.push_back({child.report.get(), POLLIN, 0});
      if (child.status && *child.status != 0 && !failed_at) failed_at = Clock::now();
    }
    pauser.look(children);
    const bool pauses = launch.on_all_stopped != nullptr;
    if (pauses && failed_at && std::any_of(children.begin(), children.end(), is_standing)) {
      failed_at = Clock::now();  // A rank that --pause has stopped is not late.
    }
    const bool none_runs = !pauses && all_of_living(children, is_standing);
    if (failed_at && (none_runs || Clock::now() - *failed_at > launch.grace)) {
      kill_living(children);
    }
    ::poll(items.data(), items.size(), static_cast<int>(kLook.count()));
  }
  for (Child& child : children) read_report(child);
}

}  // namespace

std::vector<RankOutcome> launch(const Launch& launch) {
  std::vector<Child> children;
  try {
    for (const std::vector<int>& ranks : launch.ranks) children.push_back(start(launch, ranks));
  } catch (const Error&) {
    signal_all(children, SIGKILL);
    throw;
  }
  await_children(launch, children);
  std::vector<RankOutcome> outcomes;
  for (const Child& child : children) {
    for (const int rank : child.ranks) outcomes.push_back(outcome_of(child, rank));
  }
  std::ranges::sort(outcomes, {}, &RankOutcome::rank);
  return outcomes;
}

namespace {

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

sigset_t continue_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCONT);
  return set;
}

}  // namespace

void report_outcome(int fd, const RankOutcome& outcome) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  write_all(fd, to_json(outcome).dump(-1, ' ', false, Handler::replace) + "\n");
}

void hold_continue_signal() {
  const sigset_t set = continue_signal();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void report_pause(int fd) {
  write_all(fd, kPaused);
  const sigset_t set = continue_signal();
  int signal = 0;
  ::sigwait(&set, &signal);
}

void report_restart(int fd) {
  write_all(fd, kRestart);
  while (true) ::pause();
}

}  // namespace crossmesh::cli
