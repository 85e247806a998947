// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/roster.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
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

std::string_view session_name(const Roster& roster) { return roster.options.session_name; }

Hello own_hello(const Roster& roster, int peer, Verdict verdict) {
  Hello hello;
  hello.verdict = verdict;
  hello.way = roster.options.way;
  // Memory that was forked is told apart: its word is that of the other process, or none.
  *roster.word = roster.nonce ^ static_cast<std::uint64_t>(::getpid());
  hello.token = {reinterpret_cast<std::uintptr_t>(roster.word.get()), *roster.word};
  hello.rank = roster.rank;
  hello.peer = peer;
  std::copy_n(session_name(roster).begin(), kSessionNameSize, hello.session_name.begin());
  return hello;
}

bool is_own_session(const Roster& roster, const Hello& hello) {
  return std::equal(hello.session_name.begin(), hello.session_name.end(),
                    session_name(roster).begin());
}

// Lets the process at the other end attach to this one, if the way is attach or may be.
void allow_peer(Roster& roster, int socket) {
  const ShmWay way = roster.options.way;
  if (roster.venue->shares_addresses() || way == ShmWay::memfd || way == ShmWay::ring) return;
  // One is named once: a second would take the place of the first, which may be reading.
  const pid_t process = process_behind(socket);
  if (roster.allowed != 0 || process == ::getpid() || !must_allow_attach()) return;
  roster.allowed = process_to_allow({::getpid(), process, parent_of});
  allow_attach(roster.allowed);
}

// A connection to a process that said who it is, of which no one was told anything.
Connection assess(const Roster& roster, const FileDescriptor& socket, const Hello& hello) {
  Connection connection;
  connection.peer = hello.rank;
  connection.own_index = roster.rank < hello.rank ? 0 : 1;
  if (roster.venue->shares_addresses()) {
    connection.memory = PeerMemory(Addresses::shared);
    return connection;
  }
  const ShmWay way = roster.options.way;
  connection.attachment = {process_behind(socket.get()), hello.token};
  if (roster.options.copies_within_process && is_this_process(connection.attachment)) {
    connection.is_here = true;
    connection.memory = PeerMemory(Addresses::shared);
    return connection;
  }
  if (way == ShmWay::attach || way == ShmWay::automatic) {
    connection.refusal = refusal_of(connection.attachment);
    if (connection.refusal.why.empty()) connection.takes = Access::attach;
  }
  const bool falls_back = way == ShmWay::automatic && connection.takes == Access::none;
  if (way == ShmWay::ring || falls_back) connection.takes = Access::ring;
  const bool takes = connection.takes != Access::none;
  connection.memory = PeerMemory(takes ? Addresses::remote : Addresses::none);
  return connection;
}

Verdict judge(const Roster& roster, const Hello& hello) {
  if (hello.protocol != kProtocol) return Verdict::other_protocol;
  if (!is_own_session(roster, hello)) return Verdict::other_session;
  const bool is_fit = hello.peer == roster.rank && hello.rank > roster.rank;
  if (is_fit && hello.way != roster.options.way) return Verdict::other_way;
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
  allow_peer(roster, guest.get());
  Connection connection = assess(roster, guest, *hello);
  PageOffer offer = roster.venue->offer_page();
  answer.page_token = offer.token;
  answer.access = connection.takes;
  if (!send_value(guest.get(), answer, offer.fd.get())) {
    unwatch(roster, guest.get());
    guest = FileDescriptor();
    return true;
  }
  connection.socket = std::move(guest);
  connection.page = std::move(offer.page);
  tell(roster, connection, roster.enrolment->all());
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

// Whether the peer's memory is to be read by attaching alone, and cannot.
bool lacks_attach(const Roster& roster, const Connection& connection) {
  if (roster.options.way != ShmWay::attach || roster.venue->shares_addresses()) return false;
  return !connection.is_here && connection.takes != Access::attach;
}

// Whether an arrival that has gone is to be told of; others may dial again.
bool is_kept(const Roster& roster, const Connection& arrival) {
  if (arrival.peer == roster.awaited && arrival.gives != Access::unknown) return true;
  return lacks_attach(roster, arrival);
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
    if (is_arrival && !is_kept(roster, *connection)) roster.arrivals.erase(connection->peer);
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
  if (hello.rank == peer && hello.verdict == Verdict::other_way) {
    throw connect_error(ErrorCode::invalid_argument, "the peer moves bytes in another way", roster,
                        peer)
        .with("way", name_of(roster.options.way))
        .with("peer_way", name_of(hello.way));
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
  allow_peer(roster, socket.get());
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
  const Hello answer = value_in<Hello>(packet).value_or(Hello{.magic = {}});
  check_answer(roster, peer, answer);
  Connection connection = assess(roster, socket, answer);
  connection.gives = answer.access;
  connection.page = roster.venue->adopt_page(packet.fd.get(), answer.page_token);
  if (connection.page == nullptr) {
    throw connect_error(ErrorCode::mismatch, "the peer offers no control page", roster, peer);
  }
  connection.socket = std::move(socket);
  tell(roster, connection, {{{.kind = MessageKind::access, .access = connection.takes}}});
  tell(roster, connection, roster.enrolment->all());
  return connection;
}

void await_arrival(Roster& roster, int peer, Deadline deadline) {
  const auto has_come = [&] {
    const auto found = roster.arrivals.find(peer);
    return found != roster.arrivals.end() && found->second.gives != Access::unknown;
  };
  roster.awaited = peer;
  while (!has_come()) {
    if (service(roster, deadline)) continue;
    roster.awaited = -1;
    throw connect_error(ErrorCode::timed_out, "the peer did not dial", roster, peer);
  }
  roster.awaited = -1;
}

// Where attaching was asked for and nothing else will do.
void require_attach(Roster& roster, Connection& connection) {
  if (!lacks_attach(roster, connection)) return;
  const Refusal refusal = connection.refusal;
  const int peer = connection.peer;
  if (connection.state == PeerState::open) drop(roster, connection, PeerState::left);
  roster.connections.erase(peer);
  throw connect_error(ErrorCode::unsupported, "this process cannot attach to the peer", roster,
                      peer)
      .with("why", refusal.why)
      .hint(refusal.way_out + (refusal.way_out.empty() ? "" : "; or ") + "another way than attach");
}

int milliseconds_until(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(rounded, 0, std::numeric_limits<int>::max()));
}

}  // namespace

void tell(Roster& roster, Connection& connection, const std::vector<Announcement>& announcements) {
  announce(connection, announcements);
  if (!connection.outbox.empty()) watch(roster, connection.socket.get(), false, true);
}

Roster open_roster(RosterOptions options, std::unique_ptr<Venue> venue) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const std::string& name = options.session_name;
  if (name.size() != kSessionNameSize || !std::all_of(name.begin(), name.end(), is_digit)) {
    throw Error(ErrorCode::invalid_argument, "open: a session's name is 32 hexadecimal digits")
        .with("session_name", name);
  }
  if (options.rank < 0) {
    throw Error(ErrorCode::invalid_argument, "open: no such rank").with("rank", options.rank);
  }
  Roster roster;
  roster.rank = options.rank;
  roster.options = std::move(options);
  roster.word = std::make_unique<std::uint64_t>();
  if (::getrandom(&roster.nonce, sizeof(roster.nonce), 0) != sizeof(roster.nonce)) {
    throw io_failure("the system gives no random number");
  }
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
    own_connection(roster);
    return;
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
  require_attach(roster, roster.connections.at(peer));
}

Connection& own_connection(Roster& roster) {
  const auto [found, is_new] = roster.connections.try_emplace(roster.rank);
  Connection& connection = found->second;
  if (!is_new) return connection;
  connection.peer = roster.rank;
  connection.is_own = true;
  connection.gives = Access::none;
  connection.page = std::make_shared<ControlPage>();
  return connection;
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

void drop(Roster& roster, Connection& connection, PeerState state) {
  unwatch(roster, connection.socket.get());
  if (connection.attachment.process == roster.allowed) roster.allowed = 0;
  close_connection(connection, state);
}

void tell_all(Roster& roster, const std::vector<Announcement>& announcements) {
  for (auto& [peer, connection] : roster.connections) {
    if (connection.state != PeerState::open || connection.is_own) continue;
    tell(roster, connection, announcements);
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
  if (connection.is_own || read_messages(connection)) return;
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
