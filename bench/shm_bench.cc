// SPDX-License-Identifier: Apache-2.0
// Private memory of one process taken by another, beside ONE contiguous process_vm_readv of as many
// bytes, round by round in one run. The source rewrites its memory before each round; the target
// writes private memory that was touched before.
// `of raw` is the median seconds of that one read over those of the way; `cpu` is the same of the
// target's processor time, which other load disturbs less.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/shm.h"

namespace crossmesh {
namespace {

constexpr int kRounds = 11;
constexpr std::int64_t kAdvanceBytes = std::int64_t{64} << 20;

// Transfers from one region into another.
struct Work {
  std::string name;
  std::vector<Transfer> transfers;
  std::int64_t source_bytes = 0;
  std::int64_t target_bytes = 0;
};

// Adds a bf16 matrix of which the target wants one half: of each row, or of the rows.
struct Matrix {
  std::int64_t rows;
  std::int64_t columns;
  bool splits_columns;
};

void append(Work& work, const Matrix& matrix) {
  const std::int64_t half = matrix.rows * matrix.columns;  // two bytes each, half of them
  Transfer transfer;
  transfer.source_offset_bytes = work.source_bytes;
  transfer.target_offset_bytes = work.target_bytes;
  transfer.source_dtype = transfer.target_dtype = DType::bf16;
  const std::int64_t run = matrix.columns;  // bytes of half a row
  if (matrix.splits_columns) {
    transfer.nest = {{matrix.rows}, {2 * run}, {run}, run / 2, 2, 2};
  } else {
    transfer.nest = {{}, {}, {}, half / 2, 2, 2};
  }
  work.transfers.push_back(transfer);
  work.source_bytes += 2 * half;
  work.target_bytes += half;
}

// What one of two engine ranks wants of Qwen3-0.6B, norms aside.
Work qwen3_600m() {
  constexpr Matrix kLayer[] = {{2048, 1024, false}, {1024, 1024, false}, {1024, 1024, false},
                               {1024, 2048, true},  {3072, 1024, false}, {3072, 1024, false},
                               {1024, 3072, true}};
  Work work{"qwen3_600m", {}};
  append(work, {151936, 1024, false});
  for (int layer = 0; layer < 28; ++layer) {
    for (const Matrix& matrix : kLayer) append(work, matrix);
  }
  return work;
}

// Every other `run_bytes` of 512 rows, again and again.
Work rows_of(std::int64_t run_bytes) {
  Work work{fmt::format("rows_of_{}", run_bytes), {}};
  while (work.target_bytes < std::int64_t{256} << 20) append(work, {512, run_bytes, true});
  return work;
}

enum class Mover : char { raw, attach, ring, stop };

constexpr Mover kMovers[] = {Mover::raw, Mover::attach, Mover::ring};

// One end of the pair: rank 0 gives and rank 1 takes.
class End {
 public:
  End(int rank, std::int64_t bytes, int line)
      : rank_(rank), line_(line), memory_(reserve_private(bytes)) {
    for (const Mover mover : {Mover::attach, Mover::ring}) {
      transports_.push_back(
          make_shm({.session_name = std::string(32, mover == Mover::ring ? 'b' : 'a'),
                    .rank = rank,
                    .way = mover == Mover::ring ? ShmWay::ring : ShmWay::attach}));
      transports_.back()->enroll({.data = memory_.data(), .size_bytes = bytes});
    }
  }

  std::byte* data() const { return memory_.data(); }

  void connect() {
    for (const auto& transport : transports_) {
      const std::string own = transport->address();
      send(own.data(), own.size());
      char address[200];
      const ssize_t size = ::recv(line_, address, sizeof(address), 0);
      if (size <= 0) std::abort();
      transport->connect(1 - rank_, std::string(address, static_cast<std::size_t>(size)),
                         std::chrono::steady_clock::now() + std::chrono::seconds(30));
    }
  }

  void send(const void* data, std::size_t size) const {
    if (::send(line_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }
  template <typename Value>
  Value receive() const {
    Value value{};
    if (::recv(line_, &value, sizeof(value), MSG_WAITALL) != sizeof(value)) std::abort();
    return value;
  }

  Ticket post(Mover mover, const Work& work, Attempt attempt) const {
    return of(mover).post(
        {1 - rank_, rank_ == 0 ? Direction::give : Direction::take, attempt, work.transfers});
  }
  void finish(Mover mover, const Ticket& ticket) const {
    Transport& transport = of(mover);
    while (!transport.progress(ticket).finished) {
      if (transport.advance(kAdvanceBytes)) continue;
      pollfd ready{transport.wake_fds().at(0), POLLIN, 0};
      ::poll(&ready, 1, 1000);
    }
  }

 private:
  Transport& of(Mover mover) const { return *transports_[mover == Mover::ring ? 1 : 0]; }

  int rank_;
  int line_;
  Mapping memory_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

void serve(const Work& work, int line) {
  End end(0, work.source_bytes, line);
  const auto address = reinterpret_cast<std::uintptr_t>(end.data());
  // Where one process may be let in, the transport names it too.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
  end.connect();
  end.send(&address, sizeof(address));
  Attempt attempt = 0;
  for (Mover mover = end.receive<Mover>(); mover != Mover::stop; mover = end.receive<Mover>()) {
    std::memset(end.data(), static_cast<int>(++attempt),
                static_cast<std::size_t>(work.source_bytes));
    Ticket ticket;
    if (mover != Mover::raw) ticket = end.post(mover, work, attempt);
    end.send(&attempt, sizeof(attempt));
    if (mover != Mover::raw) end.finish(mover, ticket);
  }
}

void read_raw(pid_t child, std::uintptr_t address, const End& end, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  const iovec local{end.data(), size};
  const iovec remote{reinterpret_cast<void*>(address), size};
  if (::process_vm_readv(child, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
    fmt::print(stderr, "shm_bench: one read does not read all\n");
    std::exit(1);
  }
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void measure(const Work& work) {
  int lines[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, lines) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(lines[0]);
    serve(work, lines[1]);
    ::_exit(0);
  }
  ::close(lines[1]);
  End end(1, work.target_bytes, lines[0]);
  end.connect();
  const auto address = end.receive<std::uintptr_t>();
  std::vector<double> seconds[3];
  std::vector<double> processor[3];
  // The first round only warms up.
  for (int round = 0; round <= kRounds; ++round) {
    for (const Mover mover : kMovers) {
      end.send(&mover, sizeof(mover));
      const auto attempt = end.receive<Attempt>();
      const double processor_begin = processor_seconds();
      const auto begin = std::chrono::steady_clock::now();
      if (mover == Mover::raw) read_raw(child, address, end, work.target_bytes);
      if (mover != Mover::raw) end.finish(mover, end.post(mover, work, attempt));
      const auto passed = std::chrono::steady_clock::now() - begin;
      const double processor_passed = processor_seconds() - processor_begin;
      if (static_cast<unsigned char>(end.data()[work.target_bytes - 1]) != attempt % 256) {
        fmt::print(stderr, "shm_bench: the bytes are not those of this round\n");
        std::exit(1);
      }
      if (round == 0) continue;
      seconds[static_cast<int>(mover)].push_back(std::chrono::duration<double>(passed).count());
      processor[static_cast<int>(mover)].push_back(processor_passed);
    }
  }
  constexpr Mover kStop = Mover::stop;
  end.send(&kStop, sizeof(kStop));
  ::waitpid(child, nullptr, 0);
  ::close(lines[0]);
  const double raw = median(seconds[0]);
  const auto rate = [&](double s) { return static_cast<double>(work.target_bytes) / s / 1e9; };
  fmt::print("{:<14} {:>8.2f}", work.name, rate(raw));
  for (const int mover : {1, 2}) {
    fmt::print(" {:>8.2f} {:>7.2f} {:>5.2f}", rate(median(seconds[mover])),
               raw / median(seconds[mover]), median(processor[0]) / median(processor[mover]));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace crossmesh

int main() {
  using namespace crossmesh;
  fmt::print("{:<14} {:>8}", "GB/s, medians", "raw");
  for (const char* way : {"attach", "ring"}) fmt::print(" {:>8} {:>7} {:>5}", way, "of raw", "cpu");
  fmt::print("\n");
  std::fflush(stdout);
  measure(qwen3_600m());
  for (const std::int64_t bytes : {48, 512, 2048, 3072, 5120}) measure(rows_of(bytes));
  return 0;
}
