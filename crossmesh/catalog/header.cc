// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/detail/text.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {
namespace {

using catalog_detail::find_invalid_utf8;
using catalog_detail::joined;
using catalog_detail::json_quoted;
using catalog_detail::printable;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::string_view kMetadataName = "__metadata__";

enum class Field { dtype, shape, data_offsets };
constexpr std::array<std::string_view, 3> kFieldNames = {"dtype", "shape", "data_offsets"};
constexpr std::array<std::string_view, 3> kFieldTypes = {"a string", "an array", "an array"};

std::string_view name_of(Field field) { return kFieldNames[static_cast<std::size_t>(field)]; }

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", joined(shape));
}

// Offsets count from the end of the header.
struct Entry {
  TensorInfo info;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Receives the header's JSON piece by piece, and refuses what the format does not allow where
// it stands; so nothing nests deeper than root, tensor, array.
class HeaderReader {
 public:
  struct File {
    std::string_view name;
    std::int64_t data_bytes;
  };
  explicit HeaderReader(File file) : file_(file) {}

  std::vector<Entry> entries;
  Metadata metadata;

  bool null() { refuse("null"); }
  bool boolean(bool) { refuse("a boolean"); }
  bool number_integer(std::int64_t value) {
    return take_number(std::nullopt, fmt::to_string(value));
  }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(kElementsMax)) {
      return take_number(std::nullopt, fmt::to_string(value));
    }
    return take_number(static_cast<std::int64_t>(value), {});
  }
  bool number_float(double, const std::string& text) { return take_number(std::nullopt, text); }
  bool binary(std::vector<std::uint8_t>&) { refuse("binary"); }

  bool string(const std::string& text) {
    if (scope_ == Scope::metadata) {
      if (!metadata.emplace(key_, text).second) {
        throw corrupt("a key of __metadata__ occurs twice")
            .with("key", printable(key_))
            .with("file", file_.name);
      }
      return true;
    }
    if (scope_ != Scope::entry || field_ != Field::dtype) refuse("a string");
    const auto dtype = dtype_from_name(text);
    // Only the format's own names: torch's are for command lines.
    if (!dtype || crossmesh::name_of(*dtype) != text) {
      throw at_tensor("a tensor has an unknown dtype")
          .with("dtype", printable(text))
          .with("file", file_.name);
    }
    entry_.info.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) {
    switch (scope_) {
      case Scope::file:
        scope_ = Scope::root;
        return true;
      case Scope::root:
        if (is_metadata_) {
          scope_ = Scope::metadata;
        } else {
          scope_ = Scope::entry;
          entry_ = {};
          entry_.info.name = key_;
          is_given_ = {};
        }
        return true;
      default:
        refuse("an object");
    }
  }

  bool key(const std::string& text) {
    if (scope_ != Scope::entry) {
      key_ = text;
      if (scope_ == Scope::root) begin_root_key();
      return true;
    }
    const auto at = std::find(kFieldNames.begin(), kFieldNames.end(), text);
    if (at == kFieldNames.end()) {
      throw at_tensor("a tensor has an unknown field")
          .with("field", printable(text))
          .with("file", file_.name);
    }
    const auto index = static_cast<std::size_t>(at - kFieldNames.begin());
    field_ = static_cast<Field>(index);
    if (std::exchange(is_given_[index], true)) {
      throw at_tensor("a tensor has a field twice").with("field", text).with("file", file_.name);
    }
    return true;
  }

  bool end_object() {
    if (scope_ == Scope::entry) {
      check_entry();
      entries.push_back(std::move(entry_));
    }
    scope_ = scope_ == Scope::root ? Scope::file : Scope::root;
    return true;
  }

  bool start_array(std::size_t) {
    if (scope_ != Scope::entry || field_ == Field::dtype) refuse("an array");
    scope_ = Scope::numbers;
    numbers_.clear();
    return true;
  }

  bool end_array() {
    scope_ = Scope::entry;
    if (field_ == Field::shape) {
      entry_.info.shape.assign(numbers_.begin(), numbers_.end());
      return true;
    }
    if (numbers_.size() != 2) refuse_offset_count(fmt::to_string(numbers_.size()));
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  // Requires of the parser: `position` is one past the byte that is wrong.
  template <typename ParseError>
  bool parse_error(std::size_t position, const std::string& token, const ParseError& error) {
    // Legal JSON: a number that no double holds.
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange) return take_number(std::nullopt, token);
    throw corrupt("the header is not valid JSON")
        .with("header_offset", position - 1)
        .with("file", file_.name);
  }

 private:
  enum class Scope { file, root, metadata, entry, numbers };

  static Error corrupt(std::string_view what) {
    return Error(ErrorCode::corrupt_file, fmt::format("read: {}", what));
  }
  Error at_tensor(std::string_view what) const {
    return corrupt(what).with("tensor", printable(key_));
  }

  void begin_root_key() {
    is_metadata_ = key_ == kMetadataName;
    if (is_metadata_ && std::exchange(has_metadata_, true)) {
      throw corrupt("the header has __metadata__ twice").with("file", file_.name);
    }
  }

  [[noreturn]] void refuse(std::string_view found) const {
    switch (scope_) {
      case Scope::metadata:
        throw corrupt("a value of __metadata__ is not a string")
            .with("key", printable(key_))
            .with("found", found)
            .with("file", file_.name);
      case Scope::entry:
        throw at_tensor("a field of a tensor has the wrong type")
            .with("field", name_of(field_))
            .with("expected", kFieldTypes[static_cast<std::size_t>(field_)])
            .with("found", found)
            .with("file", file_.name);
      case Scope::numbers:
        refuse_number(found);
      default:
        break;
    }
    throw(is_metadata_ ? corrupt("__metadata__ is not an object")
                       : at_tensor("what stands for a tensor is not an object"))
        .with("found", found)
        .with("file", file_.name);
  }

  [[noreturn]] void refuse_number(std::string_view found) const {
    throw at_tensor(fmt::format("an entry of {} is not a whole number in range", name_of(field_)))
        .with("found", printable(found))
        .with("range", fmt::format("0 to {}", kElementsMax))
        .with("file", file_.name);
  }

  [[noreturn]] void refuse_offset_count(std::string_view count) const {
    throw at_tensor("data_offsets are not two numbers")
        .with("count", count)
        .with("file", file_.name);
  }

  bool take_number(std::optional<std::int64_t> value, std::string_view text) {
    if (scope_ != Scope::numbers) refuse("a number");
    if (!value) refuse_number(text);
    // Both limits stop a long array while it is being read.
    if (field_ == Field::data_offsets && numbers_.size() == 2) refuse_offset_count("more than 2");
    if (field_ == Field::shape && numbers_.size() == kDimsMax) {
      throw Error(ErrorCode::unsupported, "read: a tensor has too many dimensions")
          .with("tensor", printable(key_))
          .with("dimensions_max", kDimsMax)
          .with("file", file_.name);
    }
    numbers_.push_back(*value);
    return true;
  }

  // Checks one tensor by itself.
  void check_entry() const {
    for (std::size_t i = 0; i < is_given_.size(); ++i) {
      if (is_given_[i]) continue;
      throw at_tensor("a tensor lacks a field")
          .with("field", kFieldNames[i])
          .with("file", file_.name);
    }
    const auto with_range = [this](Error error) {
      return error.with("begin", entry_.begin).with("end", entry_.end);
    };
    if (entry_.begin > entry_.end) {
      throw with_range(at_tensor("data_offsets end before they begin")).with("file", file_.name);
    }
    if (entry_.end > file_.data_bytes) {
      throw with_range(at_tensor("data_offsets pass the end of the file"))
          .with("data_bytes", file_.data_bytes)
          .with("file", file_.name);
    }
    const auto with_type = [this](Error error) {
      return error.with("dtype", crossmesh::name_of(entry_.info.dtype))
          .with("shape", shape_text(entry_.info.shape));
    };
    const auto elements = count_elements(entry_.info.shape);
    if (!elements) {
      throw with_type(at_tensor("a tensor has too many elements"))
          .with("elements_max", kElementsMax)
          .with("file", file_.name);
    }
    const auto bytes = bytes_of(entry_.info.dtype, *elements);
    if (!bytes) {
      throw with_type(at_tensor("a tensor does not end on a byte")).with("file", file_.name);
    }
    if (*bytes == entry_.end - entry_.begin) return;
    throw with_type(at_tensor("a tensor's shape and dtype are not its bytes"))
        .with("bytes_by_shape", *bytes)
        .with("bytes_by_offsets", entry_.end - entry_.begin)
        .with("file", file_.name);
  }

  File file_;
  Scope scope_ = Scope::file;
  bool is_metadata_ = false;
  bool has_metadata_ = false;
  std::string key_;  // the last key of the root or of __metadata__
  Field field_ = Field::dtype;
  std::array<bool, 3> is_given_{};
  Entry entry_;
  std::vector<std::int64_t> numbers_;
};

[[noreturn]] void refuse_text(std::string_view what, std::size_t offset, std::string_view file) {
  throw Error(ErrorCode::corrupt_file, fmt::format("read: {}", what))
      .with("header_offset", offset)
      .with("file", file);
}

// The JSON text of the header, padding included.
std::string_view header_text(std::span<const std::byte> prefix, std::int64_t file_bytes,
                             std::string_view file) {
  const auto corrupt = [](std::string_view what) {
    return Error(ErrorCode::corrupt_file, fmt::format("read: {}", what));
  };
  const auto prefix_bytes = static_cast<std::int64_t>(prefix.size());
  if (file_bytes < kLengthBytes) {
    throw corrupt("the file is too short for a header")
        .with("file_bytes", file_bytes)
        .with("bytes_min", kLengthBytes)
        .with("file", file);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes && i < prefix.size(); ++i) {
    length |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kHeaderBytesMax)) {
    throw corrupt("the header is longer than the format allows")
        .with("header_bytes", length)
        .with("header_bytes_max", kHeaderBytesMax)
        .with("file", file);
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > file_bytes - kLengthBytes) {
    throw corrupt("the header passes the end of the file")
        .with("header_bytes", header_bytes)
        .with("file_bytes", file_bytes)
        .with("file", file);
  }
  if (prefix_bytes < kLengthBytes + header_bytes) {
    throw Error(ErrorCode::invalid_argument, "parse header: the prefix is shorter than the header")
        .with("prefix_bytes", prefix_bytes)
        .with("bytes_min", kLengthBytes + header_bytes)
        .with("file", file);
  }
  const auto* text = reinterpret_cast<const char*>(prefix.data()) + kLengthBytes;
  return {text, static_cast<std::size_t>(header_bytes)};
}

// Checks that the tensors, in the order of their bytes, tile the data.
void check_tiling(const std::vector<Entry>& entries, const Catalog& catalog,
                  const HeaderReader::File& file) {
  std::int64_t reached = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::int64_t begin = entries[i].begin;
    if (begin != reached) {
      const auto name = [&](std::size_t tensor) { return printable(catalog.tensors[tensor].name); };
      throw Error(ErrorCode::corrupt_file, begin > reached ? "read: there is a hole before a tensor"
                                                           : "read: two tensors overlap")
          .with("tensor", name(i))
          .with("begin", begin)
          .with("before", i == 0 ? "the header" : name(i - 1))
          .with("before_end", reached)
          .with("file", file.name);
    }
    reached = entries[i].end;
  }
  if (reached == file.data_bytes) return;
  throw Error(ErrorCode::corrupt_file, "read: there are bytes after the last tensor")
      .with("tensors_end", reached)
      .with("data_bytes", file.data_bytes)
      .with("file", file.name);
}

}  // namespace

Header parse_header(std::span<const std::byte> prefix, std::int64_t file_bytes,
                    std::string_view file) {
  const std::string_view text = header_text(prefix, file_bytes, file);
  if (text.empty() || text.front() != '{') refuse_text("the header does not begin with {", 0, file);
  // The JSON parser would take a NUL for the end.
  if (const auto at = text.find('\0'); at != text.npos) {
    refuse_text("there is a NUL byte in the header", at, file);
  }
  if (const auto at = find_invalid_utf8(text)) refuse_text("the header is not UTF-8", *at, file);

  Header header;
  header.data_offset = kLengthBytes + static_cast<std::int64_t>(text.size());
  const HeaderReader::File named{file, file_bytes - header.data_offset};
  HeaderReader reader(named);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &reader);
  auto& entries = reader.entries;

  const auto lies_before = [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), lies_before)) {
    std::stable_sort(entries.begin(), entries.end(), lies_before);
  }
  header.catalog.tensors.reserve(entries.size());
  header.offsets.reserve(entries.size());
  for (Entry& entry : entries) {
    header.catalog.tensors.push_back(std::move(entry.info));
    header.offsets.push_back(header.data_offset + entry.begin);
  }
  if (const auto twice = find_duplicate(header.catalog)) {
    throw Error(ErrorCode::corrupt_file, "read: the header names a tensor twice")
        .with("tensor", printable(header.catalog.tensors[*twice].name))
        .with("file", file);
  }
  check_tiling(entries, header.catalog, named);
  header.metadata = std::move(reader.metadata);
  return header;
}

void check_writable(std::span<const TensorInfo> tensors) {
  const auto refusal = [](std::string_view what, const TensorInfo& tensor) {
    return Error(ErrorCode::invalid_argument, fmt::format("write: {}", what))
        .with("tensor", printable(tensor.name));
  };
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == kMetadataName) throw refusal("a tensor has a reserved name", tensor);
    if (const auto at = find_invalid_utf8(tensor.name)) {
      throw Error(ErrorCode::invalid_argument, "write: a tensor's name is not UTF-8")
          .with("name_offset", *at);
    }
    const auto is_negative = [](std::int64_t extent) { return extent < 0; };
    if (std::any_of(tensor.shape.begin(), tensor.shape.end(), is_negative)) {
      throw refusal("a tensor has a negative extent", tensor)
          .with("shape", shape_text(tensor.shape));
    }
    if (tensor.shape.size() > kDimsMax) {
      throw refusal("a tensor has too many dimensions", tensor)
          .with("dimensions", tensor.shape.size())
          .with("dimensions_max", kDimsMax);
    }
    static_cast<void>(byte_count(tensor));
  }
  const Catalog catalog{{tensors.begin(), tensors.end()}};
  if (const auto twice = find_duplicate(catalog)) {
    throw refusal("two tensors have one name", catalog.tensors[*twice]);
  }
}

// file    := length header data
// length  := bytes of the header, 64 bits, little-endian
// header  := JSON object, then spaces up to a multiple of 8 bytes:
//            {"__metadata__": {"key": "value", ...},          only where there is metadata
//             "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// data    := the tensors, packed, row-major, little-endian; offsets count from its start
std::string encode_header(std::span<const TensorInfo> tensors, const Metadata& metadata) {
  check_writable(tensors);
  std::string text(kLengthBytes, '\0');
  text += '{';
  std::string_view separator;
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (find_invalid_utf8(key) || find_invalid_utf8(value)) {
        throw Error(ErrorCode::invalid_argument, "write: __metadata__ is not UTF-8")
            .with("key", find_invalid_utf8(key) ? "" : printable(key));
      }
      text += fmt::format("{}{}:{}", separator, json_quoted(key), json_quoted(value));
      separator = ",";
    }
    text += '}';
  }
  std::int64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t end = begin + byte_count(tensor);
    fmt::format_to(std::back_inserter(text),
                   "{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", separator,
                   json_quoted(tensor.name), crossmesh::name_of(tensor.dtype), joined(tensor.shape),
                   begin, end);
    separator = ",";
    begin = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size() - kLengthBytes;
  if (length > static_cast<std::uint64_t>(kHeaderBytesMax)) {
    throw Error(ErrorCode::invalid_argument, "write: the header is longer than the format allows")
        .with("header_bytes", length)
        .with("header_bytes_max", kHeaderBytesMax);
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    text[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  }
  return text;
}

}  // namespace crossmesh
