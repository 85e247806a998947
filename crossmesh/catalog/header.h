// SPDX-License-Identifier: Apache-2.0
// The header of one safetensors file, checked: which tensors the file holds and where.
// Every rule of the format is enforced here, for input from anyone. It opens no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/catalog/catalog.h"

namespace crossmesh {

// The format's limit on the JSON text.
inline constexpr std::int64_t kHeaderBytesMax = 100'000'000;

// The free-form `__metadata__` of a file.
using Metadata = std::map<std::string, std::string>;

struct Header {
  Catalog catalog;                    // in the order of the bytes in the file
  std::vector<std::int64_t> offsets;  // of each tensor's first byte, from the start of the file
  Metadata metadata;
  std::int64_t data_offset = 0;  // of the first byte after the header
  bool operator==(const Header&) const = default;
};

// Parses the header of a file of `file_bytes` bytes that begins with `prefix`; `file` is its
// name, for errors.
//
// Requires: `prefix` reaches to the end of the header, or of the file if that comes first.
// Ensures: the tensors tile the bytes after the header without a hole, an overlap or a
// remainder; names are unique; each tensor's shape times its dtype is its bytes, and its
// offset lies in the file (empty tensors: in it, or at its end).
// Throws: corrupt_file, with the tensor and the numbers, where the file breaks a rule;
// unsupported when a tensor has more than kDimsMax dimensions.
// Source: the safetensors format.
Header parse_header(std::span<const std::byte> prefix, std::int64_t file_bytes,
                    std::string_view file);

// The bytes that begin a file of these tensors, whose data follow in the same order. The data
// begin at a multiple of 8.
// Ensures: parse_header gives the tensors back, in this order.
// Throws: invalid_argument when the tensors cannot be written (check_writable), or the header
// passes kHeaderBytesMax.
std::string encode_header(std::span<const TensorInfo> tensors, const Metadata& metadata);

// Throws: invalid_argument when a name occurs twice, is not UTF-8 or is reserved; when a shape
// is negative or too large; when a tensor does not end on a byte.
void check_writable(std::span<const TensorInfo> tensors);

}  // namespace crossmesh
