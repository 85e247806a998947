// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/attach.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <string>

#include "crossmesh/memory/arena.h"

namespace crossmesh::detail {
namespace {

// The first is for the token.
using Vectors = std::array<iovec, IOV_MAX>;

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

ReadOutcome read_vectors(const Attachment& other, std::span<iovec> local, std::span<iovec> remote,
                         std::int64_t bytes) {
  std::uint64_t word = 0;
  local[0] = {&word, sizeof(word)};
  remote[0] = {pointer(other.token.address), sizeof(word)};
  const ssize_t size = ::process_vm_readv(other.process, local.data(), local.size(), remote.data(),
                                          remote.size(), 0);
  if (size < 0) return {bytes, -1, errno, false};
  const auto read = static_cast<std::int64_t>(size) - static_cast<std::int64_t>(sizeof(word));
  return {bytes, read, 0, read >= 0 && word != other.token.value};
}

// Collects runs and reads them when there are as many as one call takes.
class Reader {
 public:
  explicit Reader(const Attachment& other) : other_(other) {}

  bool add(std::uint64_t source, std::byte* target, std::size_t bytes) {
    const auto end = [](const iovec& v) { return static_cast<std::byte*>(v.iov_base) + v.iov_len; };
    const bool joins_remote = remotes_ > 1 && end(remote_[remotes_ - 1]) == pointer(source);
    const bool joins_local = locals_ > 1 && end(local_[locals_ - 1]) == target;
    if ((!joins_remote && remotes_ == remote_.size()) ||
        (!joins_local && locals_ == local_.size())) {
      if (!flush()) return false;
      return add(source, target, bytes);
    }
    if (joins_remote) remote_[remotes_ - 1].iov_len += bytes;
    if (!joins_remote) remote_[remotes_++] = {pointer(source), bytes};
    if (joins_local) local_[locals_ - 1].iov_len += bytes;
    if (!joins_local) local_[locals_++] = {target, bytes};
    bytes_ += static_cast<std::int64_t>(bytes);
    return true;
  }

  // Whether everything that was added is read.
  bool flush() {
    if (bytes_ == 0) return outcome_.is_whole();
    outcome_ = read_vectors(other_, std::span(local_).first(locals_),
                            std::span(remote_).first(remotes_), bytes_);
    locals_ = remotes_ = 1;
    bytes_ = 0;
    return outcome_.is_whole();
  }

  const ReadOutcome& outcome() const { return outcome_; }

 private:
  const Attachment& other_;
  Vectors local_;
  Vectors remote_;
  std::size_t locals_ = 1;
  std::size_t remotes_ = 1;
  std::int64_t bytes_ = 0;
  ReadOutcome outcome_;
};

bool add_runs(Reader& reader, std::uint64_t source, std::byte* target, const LoopNest& nest,
              int loop = 0) {
  if (loop == nest.counts.size()) {
    const auto bytes = static_cast<std::size_t>(nest.run_count * nest.source_element_bytes);
    return bytes == 0 || reader.add(source, target, bytes);
  }
  for (std::int64_t i = 0; i < nest.counts[loop]; ++i) {
    if (!add_runs(reader, source + static_cast<std::uint64_t>(i * nest.source_strides[loop]),
                  target + i * nest.target_strides[loop], nest, loop + 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

ReadOutcome read_runs(const Attachment& other, std::uint64_t source, std::byte* target,
                      const LoopNest& nest) {
  Reader reader(other);
  if (add_runs(reader, source, target, nest)) reader.flush();
  return reader.outcome();
}

Refusal refusal_of(const Attachment& other) {
  if (other.process <= 0) return explain_other_namespace();
  if (other.token.address == 0) return {"the peer shows no word to read", {}};
  std::array<iovec, 1> local{};
  std::array<iovec, 1> remote{};
  const ReadOutcome outcome = read_vectors(other, local, remote, 0);
  if (outcome.is_whole()) return {};
  if (outcome.read_bytes >= 0) return {"another process has the peer's pid", {}};
  if (outcome.error == 0) return {"the peer's word lies on no page", {}};
  return explain({outcome.error, read_ptrace_scope()});
}

bool is_this_process(const Attachment& other) {
  if (other.process != ::getpid() || other.token.address == 0) return false;
  // The system reads the word, since there may be no page at its address here.
  const FileDescriptor counter(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::uint64_t word = 0;
  if (::syscall(SYS_write, counter.get(), pointer(other.token.address), sizeof(word)) < 0 ||
      ::read(counter.get(), &word, sizeof(word)) < 0) {
    return false;
  }
  return word == other.token.value;
}

pid_t process_behind(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool must_allow_attach() { return read_ptrace_scope() == 1; }

void allow_attach(pid_t process) {
  // Where it fails the peer's test read does too, and says so.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(process), 0, 0, 0);
}

pid_t process_to_allow(const Kinship& kinship) {
  for (pid_t of_peer = kinship.peer; of_peer > 1; of_peer = kinship.parent_of(of_peer)) {
    for (pid_t own = kinship.own; own > 1; own = kinship.parent_of(own)) {
      if (own == of_peer) return own;
    }
  }
  return kinship.peer;
}

pid_t parent_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name of the program comes before it, in brackets, and may hold brackets itself.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  char state = 0;
  pid_t parent = 0;
  return fields >> state >> parent ? parent : 0;
}

}  // namespace crossmesh::detail
