// SPDX-License-Identifier: Apache-2.0
#include "cli/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/cpu_path.h"
#include "crossmesh/transport/refusal.h"

namespace crossmesh::cli {
namespace {

constexpr std::int64_t kBufferBytesMax = std::int64_t{128} << 20;
constexpr std::int64_t kBufferBytesMin = std::int64_t{1} << 20;
constexpr double kSecondsPerKind = 0.12;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : "unknown";
}

// The word in brackets of `always [madvise] never`.
std::string chosen_word(const std::string& line) {
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return line;
  return line.substr(begin + 1, end - begin - 1);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::vector<std::string> processor_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  const auto add = [&](bool has, const char* name) {
    if (has) features.emplace_back(name);
  };
  add(__builtin_cpu_supports("sse4.2"), "sse4.2");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
#endif
  return features;
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0
             ? CPU_COUNT(&set)
             : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

std::optional<std::int64_t> limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::optional<std::int64_t> dev_shm_bytes() {
  struct statvfs facts {};
  if (statvfs("/dev/shm", &facts) != 0) return std::nullopt;
  return static_cast<std::int64_t>(facts.f_blocks) * static_cast<std::int64_t>(facts.f_frsize);
}

std::string ptrace_scope() {
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (scope == "unknown") return "no yama: same user";
  if (scope == "0") return "0: same user";
  if (scope == "1") return "1: descendants only";
  if (scope == "2") return "2: administrators only";
  return scope + ": nobody";
}

std::string user_namespaces() {
  const std::string allowed = first_line("/proc/sys/kernel/unprivileged_userns_clone");
  const std::string most = first_line("/proc/sys/user/max_user_namespaces");
  if (most == "0") return "off: user.max_user_namespaces is 0";
  if (allowed == "0") return "off: kernel.unprivileged_userns_clone is 0";
  return most == "unknown" ? "unknown" : "on, at most " + most;
}

// Tries what the transport needs, rather than guessing from versions.
TransportFacts shm_facts() {
  try {
    const SharedMemory probe = reserve_shared("crossmesh-info", 1);
    return {"shm", true, "one process per rank on one host: sealed memfd segments, pulled"};
  } catch (const Error& error) {
    return {"shm", false, error.text()};
  }
}

// Whether a child reads a word of this process, as a rank reads a peer's; else the system's error.
int error_of_attach() {
  std::uint64_t word = 1;
  int start[2];
  if (::pipe2(start, O_CLOEXEC) != 0) return errno;
  const FileDescriptor reader(start[0]);
  const FileDescriptor writer(start[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno;
  if (child == 0) {
    std::uint64_t seen = 0;
    const iovec local{&seen, sizeof seen};
    const iovec remote{&word, sizeof word};
    const bool is_told = ::read(reader.get(), &seen, 1) == 1;
    const bool is_read = ::process_vm_readv(::getppid(), &local, 1, &remote, 1, 0) > 0;
    ::_exit(is_told && is_read ? 0 : errno);
  }
  // Where one process may be let in, that is the child; elsewhere it changes nothing.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(child), 0, 0, 0);
  int status = 0;
  const bool is_started = ::write(writer.get(), "", 1) == 1;
  ::waitpid(child, &status, 0);
  ::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  return is_started && WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
}

TransportFacts attach_facts() {
  const std::string what = "shm, private memory: read by process_vm_readv";
  const Refusal refusal = explain({error_of_attach(), read_ptrace_scope()});
  if (refusal.why.empty()) return {"attach", true, what};
  if (refusal.way_out.empty()) return {"attach", false, refusal.why};
  return {"attach", false, fmt::format("{}; it takes {}", refusal.why, refusal.way_out)};
}

TransportFacts ring_facts(const TransportFacts& shm) {
  if (!shm.available) return {"ring", false, shm.why};
  return {"ring", true, "shm, private memory: packed into a bounded ring, while a trainer waits"};
}

std::vector<TransportFacts> transports() {
  const std::string not_built = "not built: this version has no such back-end";
  const TransportFacts shm = shm_facts();
  return {
      {"inproc", true, "every rank a thread of one process"}, shm, attach_facts(), ring_facts(shm),
      {"ucx", false, not_built + " (several hosts)"},
  };
}

// Repeats `work` for a moment; the shortest time of one round.
template <typename Work>
double best_seconds(Work&& work) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point begin = Clock::now();
  double best = 1e9;
  do {
    const Clock::time_point start = Clock::now();
    work();
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < kSecondsPerKind);
  return best;
}

}  // namespace

Machine inspect_machine() {
  Machine machine;
  machine.processor = processor_name();
  machine.cores = usable_cores();
  machine.cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.features = processor_features();
  machine.copy_path = std::string(name_of(best_cpu_path()));
  machine.page_bytes = sysconf(_SC_PAGESIZE);
  machine.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * machine.page_bytes;
  machine.memory_available_bytes = available_memory_bytes();
  const std::string thp = "/sys/kernel/mm/transparent_hugepage/";
  machine.transparent_huge_pages = chosen_word(first_line(thp + "enabled"));
  machine.transparent_huge_pages_shared = chosen_word(first_line(thp + "shmem_enabled"));
  machine.transports = transports();
  machine.open_files_max = limit_of(RLIMIT_NOFILE);
  machine.locked_bytes_max = limit_of(RLIMIT_MEMLOCK);
  machine.dev_shm_bytes = dev_shm_bytes();
  machine.ptrace_scope = ptrace_scope();
  machine.user_namespaces = user_namespaces();
  return machine;
}

CopyRates measure_copy_rates() {
  CopyRates rates;
  rates.buffer_bytes = std::clamp(available_memory_bytes() / 8, kBufferBytesMin, kBufferBytesMax) &
                       ~std::int64_t{4095};
  const Mapping source = reserve_private(rates.buffer_bytes);
  const Mapping target = reserve_private(rates.buffer_bytes);
  std::memset(source.data(), 1, static_cast<std::size_t>(rates.buffer_bytes));
  const double bytes = static_cast<double>(rates.buffer_bytes);
  rates.memcpy =
      bytes / best_seconds([&] {
        std::memcpy(target.data(), source.data(), static_cast<std::size_t>(rates.buffer_bytes));
      });
  LoopNest nest;
  nest.run_count = rates.buffer_bytes;
  rates.streaming =
      bytes / best_seconds([&] { copy(source.data(), target.data(), nest, StoreHint::streaming); });
  return rates;
}

}  // namespace crossmesh::cli
