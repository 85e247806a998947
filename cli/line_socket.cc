// SPDX-License-Identifier: Apache-2.0
#include "cli/line_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "cli/bounded_input.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::size_t kLineBytesMax = std::size_t{1} << 20;
constexpr int kDepthMax = 32;
// The kernel lowers it to what it allows.
constexpr int kListenQueue = 4096;

struct Address {
  sockaddr_un bytes{};
  socklen_t size = 0;
};

Address address_of(const std::string& name) {
  Address address;
  address.bytes.sun_family = AF_UNIX;
  assert(name.size() + 1 <= sizeof address.bytes.sun_path);
  std::memcpy(address.bytes.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor open_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) {
    throw Error(ErrorCode::io_failed, "rank: cannot open a socket")
        .with("system", std::strerror(errno));
  }
  return fd;
}

std::optional<ucred> peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

bool is_own_user(int fd) {
  const auto peer = peer_of(fd);
  return peer && peer->uid == ::geteuid();
}

}  // namespace

bool LineSocket::send(const Json& line, Clock::time_point deadline) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t sent = ::send(fd_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      left.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN && Clock::now() < deadline) {
      pollfd item{fd_.get(), POLLOUT, 0};
      ::poll(&item, 1, 20);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::optional<Json> LineSocket::receive() {
  char part[4096];
  while (!ended_ && text_.find('\n') == std::string::npos) {
    const ssize_t got = ::recv(fd_.get(), part, sizeof part, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    if (got <= 0 || text_.size() > kLineBytesMax) {
      ended_ = true;
    } else {
      text_.append(part, static_cast<std::size_t>(got));
    }
  }
  const std::size_t end = text_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  Json json = parse_bounded<Json>(std::string_view(text_).substr(0, end), kDepthMax);
  text_.erase(0, end + 1);
  if (json.is_object()) return json;
  ended_ = true;
  text_.clear();
  return std::nullopt;
}

int LineSocket::peer_pid() const {
  const auto peer = peer_of(fd_.get());
  return peer ? peer->pid : 0;
}

FileDescriptor listen_at(const std::string& name) {
  const Address address = address_of(name);
  FileDescriptor listener = open_socket();
  const auto* bytes = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::bind(listener.get(), bytes, address.size) != 0 ||
      ::listen(listener.get(), kListenQueue) != 0) {
    const int reason = errno;
    Error error(ErrorCode::io_failed, "rank: cannot listen for the other ranks");
    error.with("address", "@" + name).with("system", std::strerror(reason));
    if (reason != EADDRINUSE) throw error;
    throw std::move(error).hint("another rank 0 runs this session; give each job its own");
  }
  return listener;
}

std::optional<LineSocket> accept_from(const FileDescriptor& listener) {
  while (true) {
    FileDescriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() >= 0 && is_own_user(fd.get())) return LineSocket(std::move(fd));
    if (fd.get() < 0 && errno != EINTR && errno != ECONNABORTED) return std::nullopt;
  }
}

std::optional<LineSocket> dial(const std::string& name) {
  const Address address = address_of(name);
  FileDescriptor fd = open_socket();
  const auto* bytes = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(fd.get(), bytes, address.size) != 0 || !is_own_user(fd.get())) return std::nullopt;
  return LineSocket(std::move(fd));
}

}  // namespace crossmesh::cli
