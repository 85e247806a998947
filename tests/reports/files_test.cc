// SPDX-License-Identifier: Apache-2.0
// Faults that others have met in safetensors files. The header's own tests have every rule of the
// format; here are the reported files.
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/header.h"

namespace crossmesh::reports {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) {
    file += static_cast<char>((header.size() >> shift) & 255);
  }
  return file + header + data;
}

Header parse(const std::string& file) {
  return parse_header(std::as_bytes(std::span(file)), std::ssize(file), "model.safetensors");
}

std::string error_of(const std::string& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(Files, offsets_are_checked_against_shape_and_file) {
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})",
                             "1234")),
            "read: a tensor's shape and dtype are not its bytes\n  tensor  a\n  dtype  F32\n"
            "  shape  [1000, 1000]\n  bytes_by_shape  4000000\n  bytes_by_offsets  4\n"
            "  file  model.safetensors");
}

TEST(Files, padding_is_spaces_and_no_nul) {
  const TensorInfo tensors[] = {{"a", DType::u8, {3}}};
  const std::string written = encode_header(tensors, {});
  EXPECT_EQ(written.size() % 8, 0u);
  EXPECT_EQ(written.find('\0', 8), std::string::npos);
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(error_of(file_of(header + "   ", "123")), "");
  EXPECT_EQ(
      error_of(file_of(header + std::string(3, '\0'), "123")),
      "read: there is a NUL byte in the header\n  header_offset  53\n  file  model.safetensors");
}

TEST(Files, metadata_alone_opens) {
  const Header header = parse(file_of(R"({"__metadata__":{"format":"pt"}})", ""));
  EXPECT_EQ(header.catalog, Catalog{});
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}}));
}

TEST(Files, one_byte_after_the_last_tensor_is_refused) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(error_of(file_of(header, "123")), "");
  EXPECT_EQ(error_of(file_of(header, "1234")),
            "read: there are bytes after the last tensor\n  tensors_end  3\n  data_bytes  4\n"
            "  file  model.safetensors");
}

TEST(Files, two_names_on_one_range_are_refused) {
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                             "123")),
            "read: two tensors overlap\n  tensor  b\n  begin  0\n  before  a\n  before_end  3\n"
            "  file  model.safetensors");
}

}  // namespace
}  // namespace crossmesh::reports
