// SPDX-License-Identifier: Apache-2.0
#include "cli/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace crossmesh::cli {
namespace {

// Three significant digits of a number in [1, 1000), or whatever a 1023 of a binary unit takes.
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKibi = 1024;
constexpr std::array<Unit, 9> kSizeUnits = {{{"", 1},
                                             {"B", 1},
                                             {"KiB", kKibi},
                                             {"MiB", kKibi* kKibi},
                                             {"GiB", kKibi* kKibi* kKibi},
                                             {"TiB", kKibi* kKibi* kKibi* kKibi},
                                             {"KB", 1e3},
                                             {"MB", 1e6},
                                             {"GB", 1e9}}};

void append_line(std::string& text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + '\n';
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kNames = {"KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / kKibi;
  std::size_t unit = 0;
  while (std::fabs(value) >= 1023.5 && unit + 1 < kNames.size()) {
    value /= kKibi;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kNames[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 999.5e-6) return fmt::format("{} us", three_digits(seconds * 1e6));
  if (seconds < 999.5e-3) return fmt::format("{} ms", three_digits(seconds * 1e3));
  return fmt::format("{} s", three_digits(seconds));
}

std::string rate_text(double bytes_per_second) {
  if (bytes_per_second < 999.5e6) {
    return fmt::format("{} MB/s", three_digits(bytes_per_second / 1e6));
  }
  return fmt::format("{} GB/s", three_digits(bytes_per_second / 1e9));
}

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  const int first = count < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::optional<std::int64_t> size_from_text(std::string_view text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string number(text.substr(0, digits));
  std::string_view unit = digits == std::string_view::npos ? "" : text.substr(digits);
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto found = std::find_if(kSizeUnits.begin(), kSizeUnits.end(),
                                  [&](const Unit& u) { return u.name == unit; });
  if (found == kSizeUnits.end() || number.empty() || number.front() == '.') return std::nullopt;
  if (std::count(number.begin(), number.end(), '.') > 1) return std::nullopt;
  const double value = std::strtod(number.c_str(), nullptr) * found->factor;
  if (!(value < 0x1p62)) return std::nullopt;
  const double whole = std::floor(value);
  if (found->factor == 1 && whole != value) return std::nullopt;
  return static_cast<std::int64_t>(whole);
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.heading.size());
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  const auto line_of = [&](auto&& cell) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) line += "  ";
      line += columns_[c].align == Align::left ? fmt::format("{:<{}}", cell(c), widths[c])
                                               : fmt::format("{:>{}}", cell(c), widths[c]);
    }
    return line;
  };
  append_line(text, line_of([&](std::size_t c) { return columns_[c].heading; }));
  for (const auto& row : rows_) append_line(text, line_of([&](std::size_t c) { return row[c]; }));
  return text;
}

std::string facts_text(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::size_t width = 0;
  for (const auto& [key, value] : facts) width = std::max(width, key.size());
  std::string text;
  for (const auto& [key, value] : facts)
    append_line(text, fmt::format("{:<{}}  {}", key, width, value));
  return text;
}

}  // namespace crossmesh::cli
