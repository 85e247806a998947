// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/control.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <semaphore>
#include <system_error>
#include <thread>
#include <zmq.hpp>

#include "crossmesh/base/error.h"
#include "crossmesh/session/lifeline.h"

namespace crossmesh {
namespace {

// A layout of 10^5 names is a few MB; anything near this is not ours.
constexpr std::int64_t kMessageBytesMax = std::int64_t{1} << 30;

// How long a closing socket may hold on to unsent words, such as the reason of an abort.
constexpr int kLingerMs = 500;

std::string endpoint_of(const std::string& session) { return "ipc://@crossmesh-" + session; }

// Of one process: one that starts again as the same rank is not taken for the old one. A routing
// id must not start with a zero byte, so the numbers travel as text.
std::string routing_id(int rank, std::uint64_t incarnation) {
  return fmt::format("r{}-{:016x}", rank, incarnation);
}

// ZeroMQ ends the process where the system gives it no thread or descriptor, so that both are asked
// for beforehand: its two threads, ten descriptors of its own and two for each connection.
void check_resources(int rank, int connection_count) {
  constexpr int kOwnDescriptors = 10;
  const int needed = kOwnDescriptors + 2 * connection_count;
  const auto refuse = [&](std::string_view what, const std::string& reason) {
    return Error(ErrorCode::io_failed, fmt::format("join: the system gives too few {}", what))
        .with("rank", rank)
        .with("descriptors needed", needed)
        .with("threads needed", 2)
        .with("system", reason);
  };
  std::vector<FileDescriptor> descriptors;
  for (int i = 0; i < needed; ++i) {
    descriptors.emplace_back(::eventfd(0, EFD_CLOEXEC));
    if (descriptors.back().get() < 0) throw refuse("descriptors", std::strerror(errno));
  }
  std::binary_semaphore release{0};
  try {
    // The first stays until the second has started.
    std::jthread first([&] { release.acquire(); });
    try {
      std::jthread second([] {});
    } catch (...) {
      release.release();
      throw;
    }
    release.release();
  } catch (const std::system_error& error) {
    throw refuse("threads", error.code().message());
  }
}

// The parts that follow in a message which is not one of ours.
void drop_rest(zmq::socket_t& socket) {
  zmq::message_t part;
  do {
    if (!socket.recv(part, zmq::recv_flags::dontwait)) return;
  } while (part.more());
}

}  // namespace

struct Control::Sockets {
  // They end last: who sees the end of one has been sent the reason.
  std::optional<LifelineServer> server;
  std::optional<Lifeline> lifeline;
  zmq::context_t context{1};
  zmq::socket_t socket;
  bool coordinator_lost = false;
};

Control::Control(const SessionOptions& options, Deadline deadline)
    : rank_(options.rank), is_lost_(options.is_lost), sockets_(std::make_unique<Sockets>()) {
  const std::string& session = options.session;
  const int member_count = options.source_count + options.target_count - 1;
  check_resources(rank_, is_coordinator() ? member_count : 1);
  zmq::socket_t& socket = sockets_->socket;
  try {
    socket = zmq::socket_t(sockets_->context,
                           is_coordinator() ? zmq::socket_type::router : zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, kLingerMs);
    socket.set(zmq::sockopt::maxmsgsize, kMessageBytesMax);
    socket.set(zmq::sockopt::sndhwm, 0);
    socket.set(zmq::sockopt::rcvhwm, 0);
    if (is_coordinator()) {
      const int own_user = static_cast<int>(::geteuid());
      zmq_setsockopt(socket.handle(), ZMQ_IPC_FILTER_UID, &own_user, sizeof own_user);
      sockets_->server.emplace(session, options.source_count + options.target_count);
      socket.bind(endpoint_of(session));
    } else {
      const Lifeline& lifeline =
          sockets_->lifeline.emplace(session, rank_, deadline, options.on_wait);
      socket.set(zmq::sockopt::routing_id, routing_id(rank_, lifeline.incarnation()));
      socket.connect(endpoint_of(session));
    }
  } catch (const zmq::error_t& error) {
    throw Error(ErrorCode::io_failed, "join: the control socket failed")
        .with("rank", rank_)
        .with("endpoint", endpoint_of(session))
        .with("system", error.what());
  }
}

Control::~Control() = default;

void Control::send(int to, MessageKind kind, nlohmann::json body) {
  if (is_lost_ && is_lost_(name_of(kind), to)) return;
  const std::vector<std::uint8_t> bytes = encode({kind, rank_, std::move(body)});
  if (is_coordinator()) {
    auto incarnation = sockets_->server->incarnation(to);
    if (!incarnation) {
      sockets_->server->accept_waiting();
      incarnation = sockets_->server->incarnation(to);
    }
    if (!incarnation) return;
    sockets_->socket.send(zmq::buffer(routing_id(to, *incarnation)), zmq::send_flags::sndmore);
  }
  sockets_->socket.send(zmq::buffer(bytes), zmq::send_flags::dontwait);
}

// A member shows its lifeline before it speaks.
bool Control::is_from(const std::string& id, int rank) {
  for (const bool looks_again : {true, false}) {
    const auto incarnation = sockets_->server->incarnation(rank);
    if (incarnation && id == routing_id(rank, *incarnation)) return true;
    if (looks_again) sockets_->server->accept_waiting();
  }
  return false;
}

// Why a rank's attempt failed is heard though the rank has started again meanwhile; all else that
// its former process said is dropped.
bool Control::is_last_word(const std::string& id, const Message& message) const {
  if (message.kind != MessageKind::failed || !message.body.contains("attempt")) return false;
  const auto former = sockets_->server->former_incarnation(message.rank);
  return former && id == routing_id(message.rank, *former);
}

std::optional<Message> Control::receive() {
  while (true) {
    zmq::message_t from, frame;
    if (is_coordinator() && !sockets_->socket.recv(from, zmq::recv_flags::dontwait)) return {};
    if (!sockets_->socket.recv(frame, zmq::recv_flags::dontwait)) return {};
    if (frame.more()) {
      drop_rest(sockets_->socket);
      ++malformed_count_;
      continue;
    }
    try {
      Message message = decode({frame.data<std::uint8_t>(), frame.size()});
      if (!is_coordinator()) return message;
      const std::string id = from.to_string();
      if (is_from(id, message.rank) || is_last_word(id, message)) return message;
    } catch (const Error&) {
      if (!is_coordinator()) throw;
    }
    ++malformed_count_;
  }
}

std::vector<int> Control::lost() {
  if (sockets_->server) return sockets_->server->ended();
  if (sockets_->coordinator_lost || !sockets_->lifeline->ended()) return {};
  sockets_->coordinator_lost = true;
  return {0};
}

bool Control::is_refused() const { return sockets_->lifeline && sockets_->lifeline->is_refused(); }

void Control::wait(std::span<const int> fds, Deadline deadline) {
  std::vector<zmq::pollitem_t> items = {{sockets_->socket.handle(), 0, ZMQ_POLLIN, 0}};
  const auto watch = [&](int fd) { items.push_back({nullptr, fd, ZMQ_POLLIN, 0}); };
  if (sockets_->server) {
    for (const int fd : sockets_->server->fds()) watch(fd);
  } else if (!sockets_->coordinator_lost) {
    watch(sockets_->lifeline->fd());
  }
  for (const int fd : fds) watch(fd);
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  zmq::poll(items, std::max(left, std::chrono::milliseconds(0)));
}

}  // namespace crossmesh
