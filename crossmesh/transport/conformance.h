// SPDX-License-Identifier: Apache-2.0
// For tests: runs one body per rank, as threads or as forked processes, over a back-end, with a
// side channel between the ranks. What a back-end has to do is in conformance_test.cc.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/detail/attach.h"
#include "crossmesh/transport/detail/ring.h"
#include "crossmesh/transport/inproc.h"
#include "crossmesh/transport/shm.h"

namespace crossmesh::conformance {

enum class Way {
  inproc_threads,
  local_threads,  // shm, as ranks of one process use it; the other threads do not look who is there
  shm_threads,
  attach_threads,
  ring_threads,
  shm_processes,
  attach_processes,
  ring_processes,
};

inline constexpr std::array kThreadWays = {Way::inproc_threads, Way::local_threads,
                                           Way::shm_threads, Way::attach_threads,
                                           Way::ring_threads};
inline constexpr std::array kWays = {Way::inproc_threads,   Way::local_threads, Way::shm_threads,
                                     Way::attach_threads,   Way::ring_threads,  Way::shm_processes,
                                     Way::attach_processes, Way::ring_processes};

inline std::string name_of(Way way) {
  switch (way) {
    case Way::inproc_threads:
      return "inproc_threads";
    case Way::local_threads:
      return "local_threads";
    case Way::shm_threads:
      return "shm_threads";
    case Way::attach_threads:
      return "attach_threads";
    case Way::ring_threads:
      return "ring_threads";
    case Way::shm_processes:
      return "shm_processes";
    case Way::attach_processes:
      return "attach_processes";
    case Way::ring_processes:
      return "ring_processes";
  }
  return "";
}

inline bool are_processes(Way way) { return way >= Way::shm_processes; }

inline ShmWay shm_way_of(Way way) {
  if (way == Way::attach_threads || way == Way::attach_processes) return ShmWay::attach;
  if (way == Way::ring_threads || way == Way::ring_processes) return ShmWay::ring;
  return ShmWay::automatic;
}

// What facts say of shareable memory, and of any memory where the way is forced.
inline std::string way_in_facts(Way way) {
  if (way == Way::inproc_threads) return "pointer";
  if (way == Way::local_threads) return "local";
  const ShmWay forced = shm_way_of(way);
  return std::string(crossmesh::name_of(forced == ShmWay::automatic ? ShmWay::memfd : forced));
}

// Why a way cannot be tested on this machine; empty when it can.
inline std::string why_not_here(Way way) {
  if (shm_way_of(way) != ShmWay::attach) return "";
  std::uint64_t word = 7;
  return detail::refusal_of({::getpid(), {reinterpret_cast<std::uintptr_t>(&word), word}}).why;
}

inline constexpr std::chrono::seconds kPatience{30};
inline const std::string kSession = "0123456789abcdef0123456789abcdef";

inline Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }
inline Deadline at_once() { return std::chrono::steady_clock::now(); }

// Fails the rank that calls it.
inline void check(bool fact, std::string_view what,
                  std::source_location where = std::source_location::current()) {
  if (!fact) throw std::runtime_error(fmt::format("line {}: {}", where.line(), what));
}

template <typename A, typename B>
void check_equal(const A& actual, const B& expected,
                 std::source_location where = std::source_location::current()) {
  if (actual == expected) return;
  throw std::runtime_error(
      fmt::format("line {}: got\n{}\nexpected\n{}", where.line(), actual, expected));
}

// The text of the error that `body` throws.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.code()), error.text());
  }
  return "no error";
}

// Sockets between every two ranks; [a][b] is a's end of its way to b.
using Lines = std::vector<std::vector<FileDescriptor>>;

inline Lines make_lines(int rank_count) {
  const auto n = static_cast<std::size_t>(rank_count);
  Lines lines(n);
  for (auto& line : lines) line.resize(n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      std::array<int, 2> ends{};
      check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
            "socketpair");
      lines[a][b] = FileDescriptor(ends[0]);
      lines[b][a] = FileDescriptor(ends[1]);
    }
  }
  return lines;
}

class Rank {
 public:
  Rank(int number, int count, Way way, Lines& lines, InprocHub& hub)
      : number_(number), count_(count), way_(way), lines_(lines), hub_(hub) {
    transport_ = make(kSession, number);
  }

  int number() const { return number_; }
  int count() const { return count_; }
  Way way() const { return way_; }
  Transport& transport() { return *transport_; }
  void close() { transport_.reset(); }
  void reopen() { transport_ = make(kSession, number_); }

  std::unique_ptr<Transport> make(const std::string& session_name, int rank) {
    if (way_ == Way::inproc_threads) {
      return make_inproc({.hub = &hub_, .session_name = session_name, .rank = rank});
    }
    return make_shm({.session_name = session_name,
                     .rank = rank,
                     .way = shm_way_of(way_),
                     .copies_within_process = way_ == Way::local_threads,
                     .ring_bytes = detail::kRingBytesMin});
  }

  // The side channel; it is no part of what is tested.
  void tell(int peer, const std::string& text = "go") {
    const std::string packet = text + "\n";
    check(::send(line(peer), packet.data(), packet.size(), MSG_NOSIGNAL) > 0, "tell");
  }
  std::string hear(int peer) {
    pollfd ready{line(peer), POLLIN, 0};
    const auto patience = std::chrono::milliseconds(kPatience).count();
    check(::poll(&ready, 1, static_cast<int>(patience)) == 1,
          fmt::format("rank {} hears nothing from {}", number_, peer));
    std::array<char, 4096> text{};
    const ssize_t size = ::recv(line(peer), text.data(), text.size(), 0);
    check(size > 0, fmt::format("rank {} lost {}", number_, peer));
    return {text.data(), static_cast<std::size_t>(size) - 1};
  }
  bool is_told(int peer) const {
    pollfd ready{line(peer), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
  }
  // Waits until the peer does so too.
  void meet(int peer) {
    tell(peer, "meet");
    check_equal(hear(peer), "meet");
  }
  // Both ranks of two get what both said, that of rank 0 first.
  std::string agree(const std::string& text) {
    tell(1 - number_, text);
    const std::string other = hear(1 - number_);
    return number_ == 0 ? text + other : other + text;
  }
  // Every rank waits for every other. It ends most tests: who goes is lost to the others.
  void meet() {
    for (int peer = 0; peer < count_; ++peer) {
      if (peer != number_) tell(peer, "meet");
    }
    for (int peer = 0; peer < count_; ++peer) {
      if (peer != number_) check_equal(hear(peer), "meet");
    }
  }

  // Connects to every other rank, in an order that differs from rank to rank.
  void connect_all() {
    for (int peer = 0; peer < count_; ++peer) {
      if (peer != number_) tell(peer, transport_->address());
    }
    for (int i = 1; i < count_; ++i) {
      const int peer = (number_ + i) % count_;
      transport_->connect(peer, hear(peer), soon());
    }
  }

  // Advances until `fact()`; sleeps while nothing moves.
  template <typename Fact>
  void advance_until(Fact&& fact, std::int64_t slice_bytes = std::int64_t{1} << 20,
                     std::source_location where = std::source_location::current()) {
    const Deadline deadline = soon();
    while (!fact()) {
      if (transport_->advance(slice_bytes)) continue;
      if (fact()) return;
      wait(deadline, where);
    }
  }
  void finish(const Ticket& ticket, std::source_location where = std::source_location::current()) {
    advance_until([&] { return transport_->progress(ticket).finished; }, std::int64_t{1} << 20,
                  where);
  }
  // Advances until there is nothing to do right now.
  void settle() {
    while (transport_->advance(std::int64_t{1} << 20)) {
    }
  }
  void wait(Deadline deadline, std::source_location where = std::source_location::current()) {
    std::vector<pollfd> ready;
    for (const int fd : transport_->wake_fds()) ready.push_back({fd, POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    check(::poll(ready.data(), ready.size(), static_cast<int>(left.count())) > 0, "was not woken",
          where);
  }

 private:
  int line(int peer) const {
    return lines_[static_cast<std::size_t>(number_)][static_cast<std::size_t>(peer)].get();
  }

  int number_;
  int count_;
  Way way_;
  Lines& lines_;
  InprocHub& hub_;
  std::unique_ptr<Transport> transport_;
};

using Body = std::function<void(Rank&)>;

// What went wrong in a rank; empty when nothing did.
inline std::string run_rank(int number, int count, Way way, Lines& lines, InprocHub& hub,
                            const Body& body) {
  try {
    Rank rank(number, count, way, lines, hub);
    body(rank);
    return {};
  } catch (const std::exception& error) {
    return fmt::format("rank {}: {}\n", number, error.what());
  }
}

inline std::string run_threads(Way way, int count, const Body& body) {
  Lines lines = make_lines(count);
  InprocHub hub;
  std::vector<std::string> failures(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) {
    threads.emplace_back([&, number] {
      failures[static_cast<std::size_t>(number)] = run_rank(number, count, way, lines, hub, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& failure : failures) all += failure;
  return all;
}

inline std::string run_processes(Way way, int count, const Body& body) {
  Lines lines = make_lines(count);
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  std::vector<pid_t> children;
  // What is buffered would be written by every child.
  std::fflush(nullptr);
  for (int number = 0; number < count; ++number) {
    const pid_t child = ::fork();
    if (child == 0) {
      InprocHub hub;
      const std::string failure = run_rank(number, count, way, lines, hub, body);
      [[maybe_unused]] const ssize_t size = ::write(writer.get(), failure.data(), failure.size());
      ::_exit(failure.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  writer = FileDescriptor();
  std::string all;
  std::array<char, 4096> text{};
  while (true) {
    const ssize_t size = ::read(reader.get(), text.data(), text.size());
    if (size <= 0) break;
    all.append(text.data(), static_cast<std::size_t>(size));
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    // A rank that a test kills is no failure.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) {
      all += fmt::format("a rank ended with status {}\n", status);
    }
  }
  return all;
}

// Runs `body` once per rank. Returns what failed, or nothing.
inline std::string run_ranks(Way way, int count, const Body& body) {
  return are_processes(way) ? run_processes(way, count, body) : run_threads(way, count, body);
}

// Shareable memory of one rank.
struct Memory {
  explicit Memory(std::int64_t size_bytes, unsigned char fill = 0)
      : shared(reserve_shared("conformance", size_bytes)) {
    std::memset(data(), fill, static_cast<std::size_t>(size_bytes));
  }
  std::byte* data() const { return shared.mapping.data(); }
  unsigned char& operator[](std::int64_t i) const {
    return reinterpret_cast<unsigned char*>(data())[i];
  }
  Buffer buffer() const {
    return {.data = data(), .size_bytes = shared.mapping.bytes(), .shareable_fd = shared.fd.get()};
  }
  std::vector<unsigned char> bytes() const {
    const auto* first = reinterpret_cast<const unsigned char*>(data());
    return {first, first + shared.mapping.bytes()};
  }

  SharedMemory shared;
};

// A plain copy of bytes between equal regions.
struct Span {
  Region source_region = 0;
  Region target_region = 0;
  std::int64_t source_offset_bytes = 0;
  std::int64_t target_offset_bytes = 0;
  std::int64_t size_bytes = 0;
};

inline Transfer contiguous(const Span& span) {
  Transfer transfer;
  transfer.source_region = span.source_region;
  transfer.target_region = span.target_region;
  transfer.source_offset_bytes = span.source_offset_bytes;
  transfer.target_offset_bytes = span.target_offset_bytes;
  transfer.nest.run_count = span.size_bytes;
  return transfer;
}

// `count` pieces of `size_bytes` each, one after the other on both sides.
inline std::vector<Transfer> pieces(int count, std::int64_t size_bytes) {
  std::vector<Transfer> transfers;
  for (int i = 0; i < count; ++i) {
    transfers.push_back(contiguous({.source_offset_bytes = i * size_bytes,
                                    .target_offset_bytes = i * size_bytes,
                                    .size_bytes = size_bytes}));
  }
  return transfers;
}

}  // namespace crossmesh::conformance
