// SPDX-License-Identifier: Apache-2.0
// How the command line writes numbers and tables for people, and how it reads sizes. Machines read
// --json, which has plain bytes and seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace crossmesh::cli {

// `512 B`, `64.0 KiB`, `1.19 GiB`: three digits, the largest unit that leaves a number of at
// least 1.
std::string bytes_text(std::int64_t bytes);

// `12.3 us`, `4.56 ms`, `1.23 s`.
std::string seconds_text(double seconds);

// `12.3 GB/s`, decimal, as memory and links are sold.
std::string rate_text(double bytes_per_second);

// `1,234,567`
std::string count_text(std::int64_t count);

// Reads `65536`, `64KiB`, `1.5GiB`, `2MB` (a decimal unit); nothing when it is not a size.
std::optional<std::int64_t> size_from_text(std::string_view text);

// Rows of cells under headings, padded to columns. Numbers stand to the right, names to the left.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns);

  // Requires: as many cells as columns.
  void add(std::vector<std::string> cells);

  // Each line indented by `indent` spaces and ended by a newline, without trailing blanks.
  std::string text(int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `key  value` lines with the values in one column.
std::string facts_text(const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace crossmesh::cli
