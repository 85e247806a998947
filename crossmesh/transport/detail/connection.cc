// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/connection.h"

#include <fcntl.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace crossmesh::detail {
namespace {

// Returns false when the message makes no sense.
bool apply(Connection& connection, const Message& message, FileDescriptor fd) {
  PeerMemory& memory = connection.memory;
  switch (message.kind) {
    case MessageKind::bell:
      return true;
    case MessageKind::file:
      if (fd.get() < 0) return false;
      memory.add_file(message.file, std::move(fd));
      return true;
    case MessageKind::region:
      memory.add_region(message.region,
                        {.file = message.file,
                         .offset_bytes = message.offset_bytes,
                         .size_bytes = message.size_bytes,
                         .address = reinterpret_cast<const std::byte*>(message.address)});
      return true;
    case MessageKind::retire:
      memory.remove_region(message.region);
      return true;
    case MessageKind::forget:
      memory.remove_file(message.file);
      return true;
    case MessageKind::access:
      connection.gives = message.access;
      return true;
    case MessageKind::ring:
      connection.ring_reader = open_ring(fd.get(), message.size_bytes);
      return connection.ring_reader.has_value();
    case MessageKind::bye:
      connection.state = PeerState::left;
      return true;
  }
  return false;
}

// Asks for a bell when the next batch is done. The target looks at `awaited` after it stores
// `acknowledged`, and here it is the other way round: one of the two sees the other.
void await_next(const Connection& connection) {
  const Stream& give = connection.give;
  giving_lane(connection).source.awaited.store(pack({give.attempt(), give.next_end()}));
}

}  // namespace

void ring(const Connection& connection) {
  if (connection.state != PeerState::open || connection.is_own) return;
  Bell& bell = connection.page->bells[static_cast<std::size_t>(1 - connection.own_index)];
  if (bell.rung.exchange(1) != 0) return;
  // A full socket wakes the peer by what is in it.
  send_value(connection.socket.get(), Message{.kind = MessageKind::bell});
}

void announce(Connection& connection, const std::vector<Announcement>& announcements) {
  for (const Announcement& a : announcements) {
    const int socket = connection.socket.get();
    if (connection.outbox.empty() && send_value(socket, a.message, a.fd)) continue;
    // The enrolment may forget the file before it is sent.
    FileDescriptor fd;
    if (a.fd >= 0) fd = FileDescriptor(::fcntl(a.fd, F_DUPFD_CLOEXEC, 0));
    connection.outbox.push_back({a.message, std::move(fd)});
  }
}

bool flush(Connection& connection) {
  while (!connection.outbox.empty()) {
    const Unsent& unsent = connection.outbox.front();
    if (!send_value(connection.socket.get(), unsent.message, unsent.fd.get())) return false;
    connection.outbox.pop_front();
  }
  return true;
}

void publish(const Connection& connection) {
  if (!connection.outbox.empty() || connection.give.is_stopped()) return;
  const std::uint64_t word = pack({connection.give.attempt(), connection.give.posted()});
  std::atomic<std::uint64_t>& offered = giving_lane(connection).source.offered;
  if (offered.load() == word) return;
  await_next(connection);
  offered.store(word);
  ring(connection);
}

bool refresh_give(Connection& connection) {
  Stream& give = connection.give;
  const std::int64_t before = give.done();
  while (!give.is_idle()) {
    const Tally tally = unpack(giving_lane(connection).target.acknowledged.load());
    if (tally.attempt != give.attempt() || tally.count <= give.done()) break;
    if (give.finish(tally.count)) await_next(connection);
  }
  return give.done() != before;
}

bool read_messages(Connection& connection) {
  while (true) {
    Packet packet = receive_packet(connection.socket.get());
    if (packet.received == Received::nothing) break;
    if (packet.received == Received::end) return false;
    const auto message = value_in<Message>(packet);
    if (!message || !apply(connection, *message, std::move(packet.fd))) return false;
    if (connection.state == PeerState::left) return false;
  }
  // From here on the peer rings again; the counters are read after this.
  connection.page->bells[static_cast<std::size_t>(connection.own_index)].rung.store(0);
  return true;
}

void close_connection(Connection& connection, PeerState state) {
  refresh_give(connection);
  connection.had_unfinished = !connection.give.is_idle() || !connection.take.is_idle();
  constexpr Attempt kAll = std::numeric_limits<Attempt>::max();
  connection.give.stop(kAll);
  stop_taking(connection, kAll);
  connection.memory.clear();
  connection.ring_writer.reset();
  connection.ring_reader.reset();
  connection.outbox.clear();
  connection.socket = FileDescriptor();
  connection.state = state;
}

void withdraw(const Connection& connection, Attempt attempt) {
  std::atomic<std::uint64_t>& withdrawn = giving_lane(connection).source.withdrawn;
  withdrawn.store(std::max<std::uint64_t>(withdrawn.load(), attempt));
}

bool is_read(const Connection& connection, Attempt attempt) {
  if (connection.state == PeerState::lost) return false;
  const std::uint64_t pulling = giving_lane(connection).target.pulling.load();
  return pulling != 0 && pulling <= attempt;
}

void stop_taking(Connection& connection, Attempt attempt) {
  if (connection.take.attempt() <= attempt) connection.cursor.reset();
  connection.take.stop(attempt);
}

}  // namespace crossmesh::detail
