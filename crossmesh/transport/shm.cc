// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/shm.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/transport/pull.h"

namespace crossmesh {
namespace {

constexpr int kSocketType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
// The kernel lowers it to what it allows.
constexpr int kListenQueue = 4096;

Error failure(ErrorCode code, std::string_view what) {
  return Error(code, std::string(what)).with("system", std::generic_category().message(errno));
}

// An address is `@name`; the socket's is a zero byte and the name, and no file.
struct SocketAddress {
  sockaddr_un value{};
  socklen_t size = 0;
};

SocketAddress socket_address(const std::string& address) {
  SocketAddress result;
  result.value.sun_family = AF_UNIX;
  if (address.size() < 2 || address.size() > sizeof(result.value.sun_path) || address[0] != '@') {
    throw Error(ErrorCode::invalid_argument, "connect: this is no address of a rank")
        .with("address", address);
  }
  std::copy(address.begin() + 1, address.end(), result.value.sun_path + 1);
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  return result;
}

// Not the session's name: everyone on the host can list abstract sockets.
std::string fresh_address(int rank) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    throw failure(ErrorCode::io_failed, "open: the system gives no random number");
  }
  return fmt::format("@crossmesh-{:016x}-{}", random, rank);
}

detail::ControlPagePtr page_in(Mapping mapping) {
  auto owner = std::make_shared<Mapping>(std::move(mapping));
  auto* page = reinterpret_cast<detail::ControlPage*>(owner->data());
  return {std::move(owner), page};
}

class ShmVenue final : public detail::Venue {
 public:
  ShmVenue(int rank, ShmWay way)
      : way_(way == ShmWay::automatic ? ShmWay::memfd : way), address_(fresh_address(rank)) {
    const SocketAddress own = socket_address(address_);
    listener_ = FileDescriptor(::socket(AF_UNIX, kSocketType, 0));
    const auto* value = reinterpret_cast<const sockaddr*>(&own.value);
    if (listener_.get() < 0 || ::bind(listener_.get(), value, own.size) != 0 ||
        ::listen(listener_.get(), kListenQueue) != 0) {
      throw failure(ErrorCode::io_failed, "open: cannot listen").with("address", address_);
    }
  }

  std::string_view name() const override { return "shm"; }
  std::string_view way() const override { return name_of(way_); }
  bool shares_addresses() const override { return false; }
  std::string address() const override { return address_; }
  int listener_fd() const override { return listener_.get(); }

  FileDescriptor accept() override {
    while (true) {
      FileDescriptor socket(
          ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return socket;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      throw failure(ErrorCode::io_failed, "connect: cannot accept a peer");
    }
  }

  FileDescriptor dial(const std::string& address) override {
    const SocketAddress peer = socket_address(address);
    FileDescriptor socket(::socket(AF_UNIX, kSocketType, 0));
    if (socket.get() < 0) throw failure(ErrorCode::io_failed, "connect: cannot make a socket");
    const auto* value = reinterpret_cast<const sockaddr*>(&peer.value);
    if (::connect(socket.get(), value, peer.size) == 0) return socket;
    if (errno == EAGAIN || errno == EINTR) return FileDescriptor();
    if (errno == ECONNREFUSED) {
      throw Error(ErrorCode::peer_lost, "connect: no one listens at this address")
          .with("address", address);
    }
    throw failure(ErrorCode::io_failed, "connect: cannot dial").with("address", address);
  }

  detail::PageOffer offer_page() override {
    SharedMemory memory =
        reserve_shared("crossmesh-control", sizeof(detail::ControlPage), PeerAccess::read_write);
    return {page_in(std::move(memory.mapping)), std::move(memory.fd), 0};
  }

  detail::ControlPagePtr adopt_page(int fd, std::uint64_t /*token*/) override {
    constexpr std::int64_t kBytes = sizeof(detail::ControlPage);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_size < kBytes) return nullptr;
    return page_in(map_shared(fd, kBytes, MapAccess::read_write));
  }

 private:
  ShmWay way_;
  std::string address_;
  FileDescriptor listener_;
};

}  // namespace

std::unique_ptr<Transport> make_shm(const ShmOptions& options) {
  return std::make_unique<PullTransport>(
      PullOptions{.session_name = options.session_name,
                  .rank = options.rank,
                  .way = options.way,
                  .copies_within_process = options.copies_within_process,
                  .ring_bytes = options.ring_bytes},
      std::make_unique<ShmVenue>(options.rank, options.way));
}

}  // namespace crossmesh
