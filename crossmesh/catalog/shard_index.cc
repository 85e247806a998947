// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/shard_index.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/detail/text.h"

namespace crossmesh {
namespace {

using catalog_detail::find_invalid_utf8;
using catalog_detail::json_quoted;
using catalog_detail::printable;

constexpr std::string_view kMapName = "weight_map";
// Of what is skipped; a real index has 2 levels.
constexpr int kNestingMax = 16;

Error corrupt(std::string_view what) {
  return Error(ErrorCode::corrupt_file, fmt::format("read: {}", what));
}

bool is_bare_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

class IndexReader {
 public:
  explicit IndexReader(std::string_view file) : file_(file) {}

  ShardIndex index;
  bool has_map() const { return has_map_; }

  bool null() { return take_other("null"); }
  bool boolean(bool) { return take_other("a boolean"); }
  bool number_integer(std::int64_t) { return take_other("a number"); }
  bool number_unsigned(std::uint64_t) { return take_other("a number"); }
  bool number_float(double, const std::string&) { return take_other("a number"); }
  bool binary(std::vector<std::uint8_t>&) { return take_other("binary"); }

  bool string(const std::string& text) {
    if (!in_map()) return take_other("a string");
    if (!is_bare_name(text)) {
      throw corrupt("the index gives a file that is not a bare name")
          .with("tensor", printable(key_))
          .with("shard", printable(text))
          .with("file", file_);
    }
    index.entries.push_back({key_, text});
    return true;
  }

  bool start_object(std::size_t) {
    if (in_map()) refuse("an object");
    if (is_map_key_ && depth_ == 1) {
      has_map_ = true;
      in_map_ = true;
    }
    return descend();
  }
  bool key(const std::string& text) {
    if (depth_ == 1) {
      is_map_key_ = text == kMapName;
      if (is_map_key_ && has_map_) {
        throw corrupt("the index has weight_map twice").with("file", file_);
      }
    }
    if (in_map()) key_ = text;
    return true;
  }
  bool end_object() {
    if (in_map()) in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ == 0 || in_map() || is_map_key_) refuse("an array");
    return descend();
  }
  bool end_array() {
    --depth_;
    return true;
  }

  // Requires of the parser: `position` is one past the byte that is wrong.
  template <typename ParseError>
  bool parse_error(std::size_t position, const std::string&, const ParseError& error) {
    // Legal JSON, but the parser does not go on after it: a number that no double holds.
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange) {
      throw corrupt("the index has a number that is out of range")
          .with("offset", position - 1)
          .with("file", file_);
    }
    throw corrupt("the index is not valid JSON").with("offset", position - 1).with("file", file_);
  }

 private:
  bool in_map() const { return in_map_ && depth_ == 2; }

  bool descend() {
    if (++depth_ <= kNestingMax) return true;
    throw corrupt("the index nests too deeply")
        .with("nesting_max", kNestingMax)
        .with("file", file_);
  }

  // A value that is not a string of the map: skipped, unless the map needs another.
  bool take_other(std::string_view found) {
    if (depth_ == 0 || in_map() || (is_map_key_ && depth_ == 1)) refuse(found);
    return true;
  }

  [[noreturn]] void refuse(std::string_view found) const {
    if (depth_ == 0) {
      throw corrupt("the index is not an object").with("found", found).with("file", file_);
    }
    if (!in_map()) {
      throw corrupt("weight_map is not an object").with("found", found).with("file", file_);
    }
    throw corrupt("the index does not give a tensor's file as a string")
        .with("tensor", printable(key_))
        .with("found", found)
        .with("file", file_);
  }

  std::string_view file_;
  int depth_ = 0;
  bool is_map_key_ = false;  // the last key of the root was weight_map
  bool has_map_ = false;
  bool in_map_ = false;
  std::string key_;  // the last key of the map
};

}  // namespace

ShardIndex parse_index(std::string_view text, std::string_view file) {
  // The JSON parser would take a NUL for the end.
  if (const auto at = text.find('\0'); at != text.npos) {
    throw corrupt("there is a NUL byte in the index").with("offset", at).with("file", file);
  }
  if (const auto at = find_invalid_utf8(text)) {
    throw corrupt("the index is not UTF-8").with("offset", *at).with("file", file);
  }
  IndexReader reader(file);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &reader);
  if (!reader.has_map()) throw corrupt("the index has no weight_map").with("file", file);

  Catalog names;
  for (const auto& entry : reader.index.entries) {
    names.tensors.push_back({entry.tensor, DType::u8, {}});
  }
  if (const auto twice = find_duplicate(names)) {
    throw corrupt("the index names a tensor twice")
        .with("tensor", printable(names.tensors[*twice].name))
        .with("file", file);
  }
  return std::move(reader.index);
}

// index := {"metadata": {"total_size": bytes of all tensors}, "weight_map": {"tensor": "file",
// ...}}
std::string encode_index(const ShardIndex& index, std::int64_t total_bytes) {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  std::string_view separator;
  for (const auto& entry : index.entries) {
    fmt::format_to(std::back_inserter(text), "{}\n    {}: {}", separator, json_quoted(entry.tensor),
                   json_quoted(entry.file));
    separator = ",";
  }
  text += "\n  }\n}\n";
  return text;
}

}  // namespace crossmesh
