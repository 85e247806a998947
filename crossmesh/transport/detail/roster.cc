// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/roster.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

// Who dials speaks at once; those who do not make room for others.
constexpr std::size_t kGuestsMax = 256;
// How long a full queue of a listener is given.
constexpr std::chrono::milliseconds kRetryEvery{5};
// How long a leaving rank waits for a peer that reads.
constexpr std::chrono::seconds kPartingWait{2};

Error io_failure(std::string_view what) {
  return Error(ErrorCode::io_failed, fmt::format("open: {}", what))
      .with("system", std::generic_category().message(errno));
}

Error connect_error(ErrorCode code, std::string_view what, const Roster& roster, int peer) {
  return Error(code, fmt::format("connect: {}", what)).with("peer", peer).with("rank", roster.rank);
}

void watch(const Roster& roster, int fd, bool is_new, bool for_room = false) {
  epoll_event event{};
  event.events = EPOLLIN | (for_room ? EPOLLOUT : 0u);
  event.data.fd = fd;
  const int operation = is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(roster.poller.get(), operation, fd, &event) != 0) {
    throw io_failure("the system watches no more descriptors");
  }
}

// Before closing: a forked child that holds the descriptor would keep it watched.
void unwatch(const Roster& roster, int fd) {
  ::epoll_ctl(roster.poller.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Hello own_hello(const Roster& roster, int peer, Verdict verdict) {
  Hello hello;
  hello.verdict = verdict;
  hello.rank = roster.rank;
  hello.peer = peer;
  std::copy_n(roster.session_name.begin(), kSessionNameSize, hello.session_name.begin());
  return hello;
}

bool is_own_session(const Roster& roster, const Hello& hello) {
  return std::equal(hello.session_name.begin(), hello.session_name.end(),
                    roster.session_name.begin());
}

void tell(Roster& roster, Connection& connection, const std::vector<Announcement>& news) {
  announce(connection, news);
  if (!connection.outbox.empty()) watch(roster, connection.socket.get(), false, true);
}

// Requires: the socket is watched.
Connection make_connection(Roster& roster, int peer, FileDescriptor socket, ControlPagePtr page) {
  Connection connection;
  connection.peer = peer;
  connection.own_index = roster.rank < peer ? 0 : 1;
  connection.socket = std::move(socket);
  connection.page = std::move(page);
  connection.memory = PeerMemory(roster.venue->shares_addresses());
  tell(roster, connection, roster.enrolment->all());
  return connection;
}

Verdict judge(const Roster& roster, const Hello& hello) {
  if (hello.protocol != kProtocol) return Verdict::other_protocol;
  if (!is_own_session(roster, hello)) return Verdict::other_session;
  const bool is_fit = hello.peer == roster.rank && hello.rank > roster.rank;
  return is_fit ? Verdict::welcome : Verdict::other_rank;
}

// Answers what a guest said. Returns false when it said nothing yet.
bool greet(Roster& roster, FileDescriptor& guest) {
  const Packet packet = receive_packet(guest.get());
  if (packet.received == Received::nothing) return false;
  const auto hello = value_in<Hello>(packet);
  if (packet.received == Received::end || !hello || hello->magic != kMagic) {
    unwatch(roster, guest.get());
    guest = FileDescriptor();
    return true;
  }
  const Verdict verdict = judge(roster, *hello);
  Hello answer = own_hello(roster, hello->rank, verdict);
  if (verdict != Verdict::welcome) {
    send_value(guest.get(), answer);
    unwatch(roster, guest.get());
    guest = FileDescriptor();
    return true;
  }
  PageOffer offer = roster.venue->offer_page();
  answer.page_token = offer.token;
  if (!send_value(guest.get(), answer, offer.fd.get())) {
    unwatch(roster, guest.get());
    guest = FileDescriptor();
    return true;
  }
  Connection connection =
      make_connection(roster, hello->rank, std::move(guest), std::move(offer.page));
  // A peer that dials again has given up its earlier connection.
  const auto old = roster.arrivals.find(hello->rank);
  if (old != roster.arrivals.end()) {
    unwatch(roster, old->second.socket.get());
    roster.arrivals.erase(old);
  }
  roster.arrivals.emplace(hello->rank, std::move(connection));
  return true;
}

void admit(Roster& roster) {
  while (true) {
    FileDescriptor guest = roster.venue->accept();
    if (guest.get() < 0) return;
    if (!is_same_user(guest.get())) continue;
    watch(roster, guest.get(), true);
    if (greet(roster, guest)) continue;
    if (roster.guests.size() == kGuestsMax) {
      unwatch(roster, roster.guests.front().get());
      roster.guests.pop_front();
    }
    roster.guests.push_back(std::move(guest));
  }
}

Connection* find_by_socket(std::map<int, Connection>& connections, int socket) {
  for (auto& [peer, connection] : connections) {
    if (connection.socket.get() == socket) return &connection;
  }
  return nullptr;
}

void handle(Roster& roster, int fd, bool has_room) {
  if (fd == roster.venue->listener_fd()) return admit(roster);
  const auto guest = std::find_if(roster.guests.begin(), roster.guests.end(),
                                  [&](const FileDescriptor& g) { return g.get() == fd; });
  if (guest != roster.guests.end()) {
    if (greet(roster, *guest)) roster.guests.erase(guest);
    return;
  }
  Connection* connection = find_by_socket(roster.connections, fd);
  const bool is_arrival = connection == nullptr;
  if (is_arrival) connection = find_by_socket(roster.arrivals, fd);
  if (connection == nullptr) return;
  hear(roster, *connection);
  if (connection->state != PeerState::open) {
    // Nobody asked for it yet; it may dial again.
    if (is_arrival) roster.arrivals.erase(connection->peer);
    return;
  }
  if (has_room && flush(*connection)) {
    watch(roster, fd, false);
    publish(*connection);
  }
}

FileDescriptor dial(Roster& roster, int peer, const std::string& address, Deadline deadline) {
  while (true) {
    FileDescriptor socket;
    try {
      socket = roster.venue->dial(address);
    } catch (Error& error) {
      throw std::move(error).with("peer", peer).with("rank", roster.rank);
    }
    if (socket.get() >= 0) return socket;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      throw connect_error(ErrorCode::timed_out, "the peer's queue stays full", roster, peer);
    }
    service(roster, std::min(deadline, now + kRetryEvery));
  }
}

void check_answer(const Roster& roster, int peer, const Hello& hello) {
  const auto refuse = [&](ErrorCode code, std::string_view what) {
    throw connect_error(code, what, roster, peer);
  };
  if (hello.magic != kMagic) refuse(ErrorCode::mismatch, "no rank answers at this address");
  if (hello.protocol != kProtocol || hello.verdict == Verdict::other_protocol) {
    refuse(ErrorCode::mismatch, "the peer speaks another protocol version");
  }
  if (!is_own_session(roster, hello) || hello.verdict == Verdict::other_session) {
    refuse(ErrorCode::invalid_argument, "the peer belongs to another session");
  }
  if (hello.rank != peer || hello.verdict != Verdict::welcome) {
    throw connect_error(ErrorCode::invalid_argument, "another rank answers at this address", roster,
                        peer)
        .with("answering_rank", hello.rank);
  }
}

Connection dial_and_greet(Roster& roster, int peer, const std::string& address, Deadline deadline) {
  FileDescriptor socket = dial(roster, peer, address, deadline);
  if (!is_same_user(socket.get())) {
    throw connect_error(ErrorCode::invalid_argument, "the peer belongs to another user", roster,
                        peer);
  }
  send_value(socket.get(), own_hello(roster, peer, Verdict::asking));
  watch(roster, socket.get(), true);
  Packet packet = receive_packet(socket.get());
  while (packet.received == Received::nothing) {
    if (!service(roster, deadline)) {
      throw connect_error(ErrorCode::timed_out, "the peer does not answer", roster, peer);
    }
    packet = receive_packet(socket.get());
  }
  if (packet.received == Received::end) {
    throw connect_error(ErrorCode::peer_lost, "the peer closed before it answered", roster, peer);
  }
  check_answer(roster, peer, value_in<Hello>(packet).value_or(Hello{.magic = {}}));
  ControlPagePtr page =
      roster.venue->adopt_page(packet.fd.get(), value_in<Hello>(packet)->page_token);
  if (page == nullptr) {
    throw connect_error(ErrorCode::mismatch, "the peer offers no control page", roster, peer);
  }
  return make_connection(roster, peer, std::move(socket), std::move(page));
}

void await_arrival(Roster& roster, int peer, Deadline deadline) {
  while (!roster.arrivals.contains(peer)) {
    if (service(roster, deadline)) continue;
    throw connect_error(ErrorCode::timed_out, "the peer did not dial", roster, peer);
  }
}

int milliseconds_until(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(rounded, 0, std::numeric_limits<int>::max()));
}

}  // namespace

Roster open_roster(std::string session_name, int rank, std::unique_ptr<Venue> venue) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (session_name.size() != kSessionNameSize ||
      !std::all_of(session_name.begin(), session_name.end(), is_digit)) {
    throw Error(ErrorCode::invalid_argument, "open: a session's name is 32 hexadecimal digits")
        .with("session_name", session_name);
  }
  if (rank < 0) throw Error(ErrorCode::invalid_argument, "open: no such rank").with("rank", rank);
  Roster roster;
  roster.session_name = std::move(session_name);
  roster.rank = rank;
  roster.venue = std::move(venue);
  roster.poller = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  roster.nudger = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (roster.poller.get() < 0 || roster.nudger.get() < 0) {
    throw io_failure("the system gives no more descriptors");
  }
  watch(roster, roster.nudger.get(), true);
  watch(roster, roster.venue->listener_fd(), true);
  return roster;
}

void meet(Roster& roster, int peer, const std::string& address, Deadline deadline) {
  if (peer == roster.rank) {
    throw connect_error(ErrorCode::unsupported, "a rank does not connect to itself", roster, peer);
  }
  if (peer < 0) throw connect_error(ErrorCode::invalid_argument, "no such rank", roster, peer);
  const auto known = roster.connections.find(peer);
  if (known != roster.connections.end()) {
    if (known->second.state == PeerState::open) hear(roster, known->second);
    if (known->second.state == PeerState::open) {
      throw connect_error(ErrorCode::invalid_argument, "the peer is connected already", roster,
                          peer);
    }
    roster.connections.erase(known);
  }
  const Listening listening(roster);
  if (peer < roster.rank) {
    roster.connections.emplace(peer, dial_and_greet(roster, peer, address, deadline));
  } else {
    await_arrival(roster, peer, deadline);
    roster.connections.insert(roster.arrivals.extract(peer));
  }
}

void quiesce(Roster& roster, Connection& connection) {
  if (connection.state != PeerState::open) return;
  constexpr Attempt kAll = std::numeric_limits<Attempt>::max();
  withdraw(connection, kAll);
  const Deadline deadline = std::chrono::steady_clock::now() + kPartingWait;
  const Listening listening(roster);
  while (is_read(connection, kAll) && service(roster, deadline)) {
  }
}

void drop(const Roster& roster, Connection& connection, PeerState state) {
  unwatch(roster, connection.socket.get());
  close_connection(connection, state);
}

void tell_all(Roster& roster, const std::vector<Announcement>& announcements) {
  for (auto& [peer, connection] : roster.connections) {
    if (connection.state == PeerState::open) tell(roster, connection, announcements);
  }
  for (auto& [peer, connection] : roster.arrivals) tell(roster, connection, announcements);
}

bool service(Roster& roster, Deadline deadline) {
  std::array<epoll_event, 64> events;
  int count = -1;
  do {
    count = ::epoll_wait(roster.poller.get(), events.data(), static_cast<int>(events.size()),
                         milliseconds_until(deadline));
  } while (count < 0 && errno == EINTR);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    handle(roster, event.data.fd, (event.events & EPOLLOUT) != 0);
  }
  return count > 0;
}

void hear(Roster& roster, Connection& connection) {
  if (read_messages(connection)) return;
  const bool was_told = connection.state == PeerState::left;
  drop(roster, connection, was_told ? PeerState::left : PeerState::lost);
}

void clear_nudge(Roster& roster) {
  if (!std::exchange(roster.is_nudged, false)) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(roster.nudger.get(), &count, sizeof(count));
}

Listening::Listening(Roster& roster) : roster_(roster) { clear_nudge(roster); }

Listening::~Listening() {
  if (std::exchange(roster_.is_nudged, true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(roster_.nudger.get(), &one, sizeof(one));
}

}  // namespace crossmesh::detail
