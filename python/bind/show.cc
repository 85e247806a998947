// SPDX-License-Identifier: Apache-2.0
#include "python/bind/show.h"

namespace crossmesh::python {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace

std::string line_of(std::string_view noun, const Facts& facts) {
  std::string line = fmt::format("{}(", noun);
  std::string_view gap;
  for (const auto& [key, value] : facts) {
    line += fmt::format("{}{}={}", gap, key, value);
    gap = ", ";
  }
  return line + ")";
}

std::string table_of(std::string_view noun, const Facts& facts) {
  std::string table = fmt::format("<table><caption>{}</caption>", escaped(noun));
  for (const auto& [key, value] : facts) {
    table += fmt::format("<tr><th>{}</th><td>{}</td></tr>", escaped(key), escaped(value));
  }
  return table + "</table>";
}

}  // namespace crossmesh::python
