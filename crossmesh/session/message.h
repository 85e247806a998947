// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other: small CBOR maps of one versioned schema. A message carries facts
// and layouts, never code, and never weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace crossmesh {

inline constexpr int kMessageVersion = 2;

enum class MessageKind : std::uint8_t {
  join,        // member → coordinator: who it is and where its transport listens
  roster,      // everyone's transport address
  offer,       // fingerprint of this rank's layout, and its options
  want,        // coordinator: send me your layout
  layout,      // a layout, whole, as CBOR inside the message
  layouts,     // the other side's layout, for this rank to compile
  agreed,      // fingerprint of the schedule, and where the parameters lie
  places,      // everyone's places: the session stands
  ready,       // this rank waits for the next update
  start,       // version and attempt: move
  digests,     // what of this attempt was given, by pair of ranks
  differs,     // what an engine took from a trainer is not what that gave
  whole,       // every byte of this attempt is in place here
  released,    // this trainer's weights may be overwritten
  commit,      // the replica is whole: serve it
  committing,  // every replica has been told to commit
  committed,   // this rank serves the version
  finished,    // the update ended well
  alive,       // bytes still flow here
  failed,      // this rank cannot go on; what and in which phase
  abort,       // the attempt ends here, or without one the job; why
  exchange,    // the caller's own data, gathered on the coordinator
  exchanged,   // ... and given to all
  leave,
  left,
  returned,  // an engine rank's new process; connect to it
};

std::string_view name_of(MessageKind kind);

struct Message {
  MessageKind kind = MessageKind::join;
  int rank = -1;  // the sender
  nlohmann::json body = nlohmann::json::object();
};

std::vector<std::uint8_t> encode(const Message& message);

// Throws: corrupt_file naming what is wrong: not CBOR (or too deep), another version, an unknown
// kind, no rank.
Message decode(std::span<const std::uint8_t> bytes);

// A field of a message's body. Throws: corrupt_file naming the kind, the rank and the field.
template <typename T>
T field(const Message& message, std::string_view key);

template <>
std::int64_t field<std::int64_t>(const Message& message, std::string_view key);
template <>
std::string field<std::string>(const Message& message, std::string_view key);
template <>
std::vector<std::int64_t> field<std::vector<std::int64_t>>(const Message& message,
                                                           std::string_view key);

}  // namespace crossmesh
