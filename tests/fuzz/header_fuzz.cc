// SPDX-License-Identifier: Apache-2.0
// Fuzzes the parsers of safetensors headers and indexes. What is refused is refused by an
// Error; what is accepted keeps every promise of the header, and survives being written again.
//
// input := one byte of kind, then
//          0: a whole file
//          1: the count of data bytes (8 bytes, little-endian), then a header's JSON text;
//             so an input need not hold the data, nor a right length
//          2: the text of an index
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/header.h"
#include "crossmesh/catalog/shard_index.h"

namespace crossmesh {
namespace {

void require(bool is_true) {
  if (!is_true) std::abort();
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Errors are written to be read: few lines, no control characters, of bounded length.
void check_refusal(const Error& error) {
  require(error.code() == ErrorCode::corrupt_file || error.code() == ErrorCode::unsupported);
  require(error.text().size() < 2000);
  require(std::none_of(error.text().begin(), error.text().end(), [](char c) {
    return c != '\n' && (c == '\x7F' || (static_cast<unsigned char>(c) < 0x20));
  }));
}

void check_header(std::string_view file, std::int64_t file_bytes) {
  Header header;
  try {
    header = parse_header(bytes_of(file), file_bytes, "fuzz");
  } catch (const Error& error) {
    return check_refusal(error);
  }
  const auto& tensors = header.catalog.tensors;
  require(header.offsets.size() == tensors.size());
  std::int64_t reached = header.data_offset;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    require(header.offsets[i] == reached);
    reached += byte_count(tensors[i]);
  }
  require(reached == file_bytes);
  require(!find_duplicate(header.catalog));

  const std::string again = encode_header(tensors, header.metadata);
  const std::int64_t data_bytes = byte_count(header.catalog);
  const Header reread = parse_header(bytes_of(again), std::ssize(again) + data_bytes, "again");
  require(reread.catalog == header.catalog);
  require(reread.metadata == header.metadata);
}

void check_index(std::string_view text) {
  ShardIndex index;
  try {
    index = parse_index(text, "fuzz");
  } catch (const Error& error) {
    return check_refusal(error);
  }
  for (const auto& entry : index.entries) {
    require(entry.file.find('/') == entry.file.npos);
    require(entry.file != "..");
  }
  require(parse_index(encode_index(index, 0), "again") == index);
}

void check_json(std::string_view input) {
  if (input.size() < 8) return;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    count |= std::uint64_t{static_cast<unsigned char>(input[i])} << (8 * i);
  }
  const std::string_view json = input.substr(8);
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  file += json;
  const auto data_bytes = static_cast<std::int64_t>(count >> 2);
  check_header(file, std::ssize(file) + data_bytes);
}

}  // namespace
}  // namespace crossmesh

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      crossmesh::check_header(input, std::ssize(input));
      break;
    case 1:
      crossmesh::check_json(input);
      break;
    default:
      crossmesh::check_index(input);
      break;
  }
  return 0;
}
