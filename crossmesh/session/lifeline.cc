// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/lifeline.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// What a member says, once. Garbage of a stranger that dials does not name a rank by chance.
// greeting = magic rank incarnation
// refusal  = kRefused, the only byte that a coordinator ever says
constexpr std::array<char, 12> kMagic = {'c', 'm', '-', 'l', 'i', 'f', 'e', 'l', 'i', 'n', 'e', 1};

struct Greeting {
  std::array<char, 12> magic{};
  std::int32_t rank = -1;
  std::uint64_t incarnation = 0;
};
static_assert(sizeof(Greeting) == 24);

constexpr char kRefused = 'R';

struct Address {
  sockaddr_un bytes{};
  socklen_t size = 0;
};

Address address_of(const std::string& session) {
  const std::string name = "crossmesh-" + session + "-lifeline";
  Address address;
  address.bytes.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.bytes.sun_path) {
    throw Error(ErrorCode::invalid_argument, "join: session name too long")
        .with("session", session);
  }
  std::memcpy(address.bytes.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor open_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) {
    throw Error(ErrorCode::io_failed, "join: cannot open a socket").with("system", strerror(errno));
  }
  return fd;
}

bool is_own_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// Whether the other end closed.
bool is_closed(int fd) {
  pollfd item{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

LifelineServer::LifelineServer(const std::string& session, int rank_count)
    : rank_count_(rank_count), listener_(open_socket()) {
  const Address address = address_of(session);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) !=
      0) {
    throw Error(ErrorCode::io_failed, "join: the session's name is taken")
        .with("session", session)
        .with("system", strerror(errno))
        .hint("another coordinator runs this session; give this job a name of its own");
  }
  ::listen(listener_.get(), 4096);
}

void LifelineServer::accept_waiting() {
  while (true) {
    FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) break;
    if (is_own_user(fd.get())) unnamed_.push_back(std::move(fd));
  }
  std::vector<FileDescriptor> still_unnamed;
  for (FileDescriptor& fd : unnamed_) {
    Greeting greeting;
    const auto got = ::recv(fd.get(), &greeting, sizeof greeting, 0);
    if (got == sizeof greeting && greeting.magic == kMagic && greeting.rank >= 0 &&
        greeting.rank < rank_count_) {
      admit(greeting.rank, greeting.incarnation, std::move(fd));
    } else if (got < 0 && errno == EAGAIN) {
      still_unnamed.push_back(std::move(fd));
    }
  }
  unnamed_ = std::move(still_unnamed);
}

void LifelineServer::admit(int rank, std::uint64_t incarnation, FileDescriptor fd) {
  const auto known = fd_of_rank_.find(rank);
  if (known != fd_of_rank_.end()) {
    if (!is_closed(known->second.get())) {
      ::send(fd.get(), &kRefused, 1, MSG_NOSIGNAL);
      return;
    }
    fd_of_rank_.erase(known);
    replaced_.push_back(rank);
  }
  fd_of_rank_.emplace(rank, std::move(fd));
  if (const auto former = this->incarnation(rank)) former_of_rank_[rank] = *former;
  incarnation_of_rank_[rank] = incarnation;
}

std::optional<std::uint64_t> LifelineServer::incarnation(int rank) const {
  const auto found = incarnation_of_rank_.find(rank);
  if (found == incarnation_of_rank_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::uint64_t> LifelineServer::former_incarnation(int rank) const {
  const auto found = former_of_rank_.find(rank);
  if (found == former_of_rank_.end()) return std::nullopt;
  return found->second;
}

std::vector<int> LifelineServer::ended() {
  accept_waiting();
  std::vector<int> ranks = std::exchange(replaced_, {});
  std::vector<int> closed;
  for (const auto& [rank, fd] : fd_of_rank_) {
    if (is_closed(fd.get())) closed.push_back(rank);
  }
  for (const int rank : closed) fd_of_rank_.erase(rank);
  ranks.insert(ranks.end(), closed.begin(), closed.end());
  return ranks;
}

std::vector<int> LifelineServer::fds() const {
  std::vector<int> fds = {listener_.get()};
  for (const FileDescriptor& fd : unnamed_) fds.push_back(fd.get());
  for (const auto& [rank, fd] : fd_of_rank_) fds.push_back(fd.get());
  return fds;
}

Lifeline::Lifeline(const std::string& session, int rank, Deadline deadline,
                   const std::function<void()>& on_wait) {
  const Address address = address_of(session);
  while (true) {
    fd_ = open_socket();
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) ==
        0) {
      break;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(ErrorCode::timed_out, "join: the coordinator does not answer")
          .with("rank", rank)
          .with("session", session)
          .hint("rank 0 must be running with the same session name");
    }
    if (on_wait) on_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (::getrandom(&incarnation_, sizeof incarnation_, 0) != sizeof incarnation_) {
    throw Error(ErrorCode::io_failed, "join: the system gives no random number")
        .with("system", strerror(errno));
  }
  const Greeting greeting{kMagic, rank, incarnation_};
  if (!is_own_user(fd_.get()) ||
      ::send(fd_.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
    throw Error(ErrorCode::io_failed, "join: the coordinator's socket refused this rank")
        .with("rank", rank)
        .with("session", session);
  }
}

bool Lifeline::ended() const { return is_closed(fd_.get()); }

bool Lifeline::is_refused() const {
  char said = 0;
  return ::recv(fd_.get(), &said, 1, MSG_PEEK) == 1 && said == kRefused;
}

}  // namespace crossmesh
