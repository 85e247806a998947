// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/inproc.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/transport/pull.h"

namespace crossmesh {

namespace {

// Sockets to an endpoint that it has not accepted; `bell` is readable while there are some.
struct Inbox {
  FileDescriptor bell;
  std::deque<FileDescriptor> waiting;
};

Error io_failure(std::string_view what) {
  return Error(ErrorCode::io_failed, fmt::format("open: {}", what))
      .with("system", std::generic_category().message(errno));
}

}  // namespace

struct InprocHub::State {
  std::mutex mutex;
  std::map<std::string, Inbox> inbox_by_address;
  std::map<std::uint64_t, detail::ControlPagePtr> offered_pages;  // until the peer adopts them
  std::uint64_t page_count = 0;
};

InprocHub::InprocHub() : state_(std::make_unique<State>()) {}
InprocHub::~InprocHub() = default;

namespace {

class InprocVenue final : public detail::Venue {
 public:
  InprocVenue(InprocHub::State& hub, int rank)
      : hub_(hub), address_(fmt::format("inproc-{}", rank)) {
    FileDescriptor bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (bell.get() < 0) throw io_failure("the system gives no more descriptors");
    bell_ = bell.get();
    const std::lock_guard lock(hub_.mutex);
    if (hub_.inbox_by_address.contains(address_)) {
      throw Error(ErrorCode::invalid_argument, "open: the rank is in the hub already")
          .with("rank", rank);
    }
    hub_.inbox_by_address[address_].bell = std::move(bell);
  }
  ~InprocVenue() override {
    const std::lock_guard lock(hub_.mutex);
    hub_.inbox_by_address.erase(address_);
  }
  InprocVenue(const InprocVenue&) = delete;
  InprocVenue& operator=(const InprocVenue&) = delete;

  std::string_view name() const override { return "inproc"; }
  std::string_view way() const override { return "pointer"; }
  bool shares_addresses() const override { return true; }
  std::string address() const override { return address_; }
  int listener_fd() const override { return bell_; }

  FileDescriptor accept() override {
    const std::lock_guard lock(hub_.mutex);
    Inbox& inbox = hub_.inbox_by_address.at(address_);
    std::uint64_t count = 0;
    if (inbox.waiting.empty()) {
      [[maybe_unused]] const ssize_t size = ::read(bell_, &count, sizeof(count));
      return FileDescriptor();
    }
    FileDescriptor socket = std::move(inbox.waiting.front());
    inbox.waiting.pop_front();
    return socket;
  }

  FileDescriptor dial(const std::string& address) override {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw io_failure("the system gives no more descriptors");
    }
    FileDescriptor own(ends[0]);
    FileDescriptor peers(ends[1]);
    const std::lock_guard lock(hub_.mutex);
    const auto found = hub_.inbox_by_address.find(address);
    if (found == hub_.inbox_by_address.end()) {
      throw Error(ErrorCode::peer_lost, "connect: no one listens at this address")
          .with("address", address);
    }
    found->second.waiting.push_back(std::move(peers));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t size = ::write(found->second.bell.get(), &one, sizeof(one));
    return own;
  }

  detail::PageOffer offer_page() override {
    auto page = std::make_shared<detail::ControlPage>();
    const std::lock_guard lock(hub_.mutex);
    const std::uint64_t token = ++hub_.page_count;
    hub_.offered_pages.emplace(token, page);
    return {std::move(page), FileDescriptor(), token};
  }

  detail::ControlPagePtr adopt_page(int /*fd*/, std::uint64_t token) override {
    const std::lock_guard lock(hub_.mutex);
    const auto found = hub_.offered_pages.find(token);
    if (found == hub_.offered_pages.end()) return nullptr;
    detail::ControlPagePtr page = std::move(found->second);
    hub_.offered_pages.erase(found);
    return page;
  }

 private:
  InprocHub::State& hub_;
  std::string address_;
  int bell_ = -1;
};

}  // namespace

std::unique_ptr<Transport> make_inproc(const InprocOptions& options) {
  auto venue = std::make_unique<InprocVenue>(options.hub->state(), options.rank);
  return std::make_unique<PullTransport>(
      PullOptions{.session_name = options.session_name, .rank = options.rank}, std::move(venue));
}

}  // namespace crossmesh
