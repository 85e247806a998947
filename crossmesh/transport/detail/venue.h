// SPDX-License-Identifier: Apache-2.0
// Where ranks of a pulling transport find one another and how they share a page: the one thing in
// which `inproc` and `shm` differ. It hands out sockets and does not speak on them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/detail/control_page.h"

namespace crossmesh::detail {

// A fresh control page, and what the peer needs to reach it.
struct PageOffer {
  ControlPagePtr page;
  FileDescriptor fd;        // passed to the peer, or none
  std::uint64_t token = 0;  // tells it the page where there is no descriptor
};

class Venue {
 public:
  virtual ~Venue() = default;

  virtual std::string_view name() const = 0;

  // How bytes are reached here, for LinkFacts.
  virtual std::string_view way() const = 0;

  // Whether an address of a peer means the same here.
  virtual bool shares_addresses() const = 0;

  virtual std::string address() const = 0;

  // Readable while someone waits to be accepted.
  virtual int listener_fd() const = 0;

  // A non-blocking socket to someone who dialed, or none.
  virtual FileDescriptor accept() = 0;

  // A non-blocking socket to a listener, or none while its queue is full.
  // Throws: peer_lost when no one listens there; io_failed.
  virtual FileDescriptor dial(const std::string& address) = 0;

  virtual PageOffer offer_page() = 0;

  // The page that a peer offered; null when it is none.
  virtual ControlPagePtr adopt_page(int fd, std::uint64_t token) = 0;
};

}  // namespace crossmesh::detail
