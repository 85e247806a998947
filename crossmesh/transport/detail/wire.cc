// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/wire.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace crossmesh::detail {
namespace {

// Room for one descriptor; the kernel drops what does not fit.
struct alignas(cmsghdr) Control {
  std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

}  // namespace

Packet receive_packet(int socket) {
  Packet packet;
  Control control;
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  // A broken connection reports itself once, before what was sent in time.
  for (int tries = 0; tries < 3; ++tries) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    const ssize_t size = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return packet;
    if (size < 0) continue;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c), sizeof(fd));
      packet.fd = FileDescriptor(fd);
    }
    packet.received = size == 0 ? Received::end : Received::packet;
    packet.size_bytes = (header.msg_flags & MSG_TRUNC) != 0 ? 0 : static_cast<std::size_t>(size);
    return packet;
  }
  packet.received = Received::end;
  return packet;
}

bool send_packet(int socket, std::span<const std::byte> bytes, int fd) {
  Control control;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  while (::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    // ETOOMANYREFS: too many descriptors are on their way; the peer has to take some first.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return false;
    }
    if (errno != EINTR) return true;
  }
  return true;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid();
}

}  // namespace crossmesh::detail
