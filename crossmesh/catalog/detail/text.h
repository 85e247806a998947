// SPDX-License-Identifier: Apache-2.0
// Names that come from a file, made fit to print and to write: a hostile name can
// neither break a line of an error nor fill the screen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace crossmesh::catalog_detail {

// The offset of the first byte that is not part of well-formed UTF-8; nothing if all are.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// `name` on one line: control characters as \xNN, and cut after 200 bytes with its length.
// Requires: `name` is UTF-8, else a cut may fall inside a character.
std::string printable(std::string_view name);

// `2, 3`
std::string joined(std::span<const std::int64_t> numbers);

// `text` as a JSON string, quotes included. Requires: `text` is UTF-8.
std::string json_quoted(std::string_view text);

}  // namespace crossmesh::catalog_detail
