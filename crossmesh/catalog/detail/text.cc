// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/detail/text.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace crossmesh::catalog_detail {
namespace {

constexpr std::size_t kPrintedBytesMax = 200;

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// The bytes of the character that begins at `i`, or 0 if it is ill-formed.
// Source: the table of well-formed byte sequences of the Unicode standard, 3.9.
std::size_t character_bytes(std::string_view text, std::size_t i) {
  const unsigned lead = byte_at(text, i);
  if (lead < 0x80) return 1;
  std::size_t bytes = 0;
  unsigned second_min = 0x80;
  unsigned second_max = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    bytes = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    bytes = 3;
    if (lead == 0xE0) second_min = 0xA0;
    if (lead == 0xED) second_max = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    bytes = 4;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;
  } else {
    return 0;
  }
  if (text.size() - i < bytes) return 0;
  const unsigned second = byte_at(text, i + 1);
  if (second < second_min || second > second_max) return 0;
  for (std::size_t k = 2; k < bytes; ++k) {
    if ((byte_at(text, i + k) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t i = 0;
  while (i < text.size()) {
    // Headers are nearly all ASCII, which eight bytes at a time shows.
    std::uint64_t word = 0;
    if (text.size() - i >= sizeof word) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & kHighBits) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const std::size_t bytes = character_bytes(text, i);
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::nullopt;
}

std::string printable(std::string_view name) {
  const std::size_t whole_bytes = name.size();
  if (whole_bytes > kPrintedBytesMax) {
    std::size_t cut = kPrintedBytesMax;
    while (cut > 0 && (byte_at(name, cut) & 0xC0) == 0x80) --cut;
    name = name.substr(0, cut);
  }
  std::string text;
  text.reserve(name.size());
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() < whole_bytes) text += fmt::format("... ({} bytes)", whole_bytes);
  return text;
}

std::string joined(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    if (!text.empty()) text += ", ";
    text += fmt::to_string(number);
  }
  return text;
}

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20) {
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      quoted += c;
    }
  }
  quoted += '"';
  return quoted;
}

}  // namespace crossmesh::catalog_detail
