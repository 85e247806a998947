// SPDX-License-Identifier: Apache-2.0
// Writing results to standard output: text for people, JSON for machines. A reader that has gone,
// or a full disk, is an error like any other.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace crossmesh::cli {

// Throws: io_failed where not all of it could be written.
void print_text(std::string_view text);

// Indented by two, ended by a newline; bytes that are not UTF-8 become U+FFFD.
// Throws: as print_text.
void print_json(const nlohmann::ordered_json& value);

}  // namespace crossmesh::cli
