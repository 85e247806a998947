// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/message.h"

#include <array>
#include <optional>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/wire.h"

namespace crossmesh {
namespace {

using nlohmann::json;

// Levels of a message: its own, its body's, and those of a layout in it.
constexpr int kDepthMax = kWireDepthMax + 4;

constexpr std::array<std::string_view, 26> kNames = {
    "join",     "roster",     "offer",     "want",     "layout",  "layouts", "agreed",
    "places",   "ready",      "start",     "digests",  "differs", "whole",   "released",
    "commit",   "committing", "committed", "finished", "alive",   "failed",  "abort",
    "exchange", "exchanged",  "leave",     "left",     "returned"};

std::optional<MessageKind> kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<MessageKind>(i);
  }
  return std::nullopt;
}

Error malformed(std::string_view what) {
  return Error(ErrorCode::corrupt_file, fmt::format("receive: malformed message: {}", what));
}

const json& member(const Message& message, std::string_view key) {
  const auto found = message.body.find(key);
  if (found == message.body.end()) {
    throw malformed("a field is missing")
        .with("message", name_of(message.kind))
        .with("rank", message.rank)
        .with("field", key);
  }
  return *found;
}

Error wrong_type(const Message& message, std::string_view key, const json& value) {
  return malformed("a field has another type")
      .with("message", name_of(message.kind))
      .with("rank", message.rank)
      .with("field", key)
      .with("type", value.type_name());
}

}  // namespace

std::string_view name_of(MessageKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

// message = { "v": int, "kind": text, "rank": int, "body": map }
std::vector<std::uint8_t> encode(const Message& message) {
  return json::to_cbor(json{{"v", kMessageVersion},
                            {"kind", name_of(message.kind)},
                            {"rank", message.rank},
                            {"body", message.body}});
}

Message decode(std::span<const std::uint8_t> bytes) {
  const json whole = json_from_cbor(bytes, kDepthMax);
  if (!whole.is_object()) throw malformed("not a CBOR map");
  const auto version = whole.find("v");
  const auto kind = whole.find("kind");
  const auto rank = whole.find("rank");
  const auto body = whole.find("body");
  if (version == whole.end() || *version != kMessageVersion) {
    throw malformed("another schema version").with("expected", kMessageVersion);
  }
  if (kind == whole.end() || !kind->is_string()) throw malformed("no kind");
  if (rank == whole.end() || !rank->is_number_integer()) throw malformed("no rank");
  if (body == whole.end() || !body->is_object()) throw malformed("no body");
  const auto known = kind_from_name(kind->get_ref<const std::string&>());
  if (!known) throw malformed("unknown kind").with("kind", kind->get<std::string>());
  return {*known, rank->get<int>(), *body};
}

template <>
std::int64_t field<std::int64_t>(const Message& message, std::string_view key) {
  const json& value = member(message, key);
  if (!value.is_number_integer()) throw wrong_type(message, key, value);
  return value.get<std::int64_t>();
}

template <>
std::string field<std::string>(const Message& message, std::string_view key) {
  const json& value = member(message, key);
  if (!value.is_string()) throw wrong_type(message, key, value);
  return value.get<std::string>();
}

template <>
std::vector<std::int64_t> field<std::vector<std::int64_t>>(const Message& message,
                                                           std::string_view key) {
  const json& value = member(message, key);
  if (!value.is_array()) throw wrong_type(message, key, value);
  std::vector<std::int64_t> numbers;
  numbers.reserve(value.size());
  for (const json& item : value) {
    if (!item.is_number_integer()) throw wrong_type(message, key, item);
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

}  // namespace crossmesh
