// SPDX-License-Identifier: Apache-2.0
// What two ranks say to each other over a local socket: who they are, which memory they have, and
// bells. Weights never travel here.
//
//   connection = greeting { message }
//   greeting   = hello (dialer)  hello + page (acceptor)
//   message    = bell | file + descriptor | region | retire | forget | access | ring + descriptor
//              | bye
//
// The dialer's first message is `access`; the acceptor's access is in its hello.
//
// Each is one SOCK_SEQPACKET packet of fixed size, in the byte order of the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/detail/attach.h"
#include "crossmesh/transport/way.h"

namespace crossmesh::detail {

inline constexpr std::array<char, 8> kMagic = {'x', 'm', 'e', 's', 'h', '-', 't', '1'};
inline constexpr std::uint32_t kProtocol = 3;
inline constexpr std::size_t kSessionNameSize = 32;

// What an acceptor thinks of a dialer.
enum class Verdict : std::uint32_t {
  asking,
  welcome,
  other_protocol,
  other_session,
  other_rank,
  other_way,
};

// How a rank takes its peer's private memory.
enum class Access : std::uint32_t {
  unknown,  // it did not say yet
  none,     // not at all, or by an address of its own process
  attach,
  ring,
};

struct Hello {
  std::array<char, 8> magic = kMagic;
  std::uint32_t protocol = kProtocol;
  Verdict verdict = Verdict::asking;
  std::int32_t rank = -1;
  std::int32_t peer = -1;  // whom the sender believes to speak to
  std::array<char, kSessionNameSize> session_name{};
  std::uint64_t page_token = 0;  // names the control page where no descriptor does
  Token token = {};              // the sender's memory is known by it
  ShmWay way = ShmWay::automatic;
  Access access = Access::unknown;  // of the acceptor, to the dialer's memory
};

enum class MessageKind : std::uint32_t {
  bell,    // look at the control page
  file,    // `file`, with its descriptor: regions may lie in it
  region,  // `region` lies at `address`, and at `offset_bytes` of `file` if it has one
  retire,  // `region` is gone
  forget,  // `file` is gone
  access,  // how the sender takes private memory of the receiver
  ring,    // where the sender packs for the receiver: `size_bytes` of its descriptor
  bye,     // the sender will close, on purpose
};

struct Message {
  MessageKind kind = MessageKind::bell;
  std::int32_t region = -1;
  std::int32_t file = -1;
  Access access = Access::unknown;
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  std::uint64_t address = 0;
};

enum class Received { packet, nothing, end };

struct Packet {
  Received received = Received::nothing;
  std::array<std::byte, 128> bytes{};
  std::size_t size_bytes = 0;
  FileDescriptor fd;
};

// Takes one packet if there is one. `end` when the peer closed, or its end of the socket broke.
Packet receive_packet(int socket);

// Whether the packet was sent; false when the socket is full. A closed peer swallows packets: its
// end is seen when reading.
bool send_packet(int socket, std::span<const std::byte> bytes, int fd = -1);

template <typename Value>
bool send_value(int socket, const Value& value, int fd = -1) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(Packet::bytes));
  return send_packet(socket, std::as_bytes(std::span(&value, 1)), fd);
}

// Nothing when the packet has another size.
template <typename Value>
std::optional<Value> value_in(const Packet& packet) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(Packet::bytes));
  if (packet.size_bytes != sizeof(Value)) return std::nullopt;
  Value value;
  std::copy_n(packet.bytes.begin(), sizeof(Value),
              std::as_writable_bytes(std::span(&value, 1)).begin());
  return value;
}

// Whether the other end of a local socket runs as this process's user.
bool is_same_user(int socket);

}  // namespace crossmesh::detail
