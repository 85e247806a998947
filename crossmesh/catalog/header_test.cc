// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/header.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/temporary_folder.h"

namespace crossmesh {
namespace {

using catalog_testing::file_with_header;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Header parse(std::string_view file) {
  return parse_header(bytes_of(file), std::ssize(file), "x.safetensors");
}

// `code: text`, without the last line, which names the file.
std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    std::string text = fmt::format("{}: {}", name_of(error.code()), error.text());
    constexpr std::string_view kFile = "\n  file  x.safetensors";
    EXPECT_TRUE(text.ends_with(kFile)) << text;
    text.resize(text.size() - std::min(text.size(), kFile.size()));
    return text;
  }
  return "no error";
}

TEST(Header, a_file_of_three_tensors_is_read_in_the_order_of_its_bytes) {
  const std::string json = R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                           R"("__metadata__":{"format":"pt","":"x"},)"
                           R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
                           R"("c":{"dtype":"F4","shape":[4],"data_offsets":[16,18]}} )";
  const std::int64_t data = 8 + std::ssize(json);
  const Header expected{
      {{{"a", DType::f32, {}}, {"b", DType::bf16, {2, 3}}, {"c", DType::f4, {4}}}},
      {data, data + 4, data + 16},
      {{"", "x"}, {"format", "pt"}},
      data};
  EXPECT_EQ(parse(file_with_header(json, 18)), expected);
}

TEST(Header, files_without_bytes_open) {
  EXPECT_EQ(parse(file_with_header("{}", 0)), (Header{{}, {}, {}, 10}));
  EXPECT_EQ(parse(file_with_header(R"({"__metadata__":{"k":"v"}})", 0)),
            (Header{{}, {}, {{"k", "v"}}, 34}));
  const Header empty =
      parse(file_with_header(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", 0));
  EXPECT_EQ(empty.catalog, (Catalog{{{"e", DType::f32, {0, 5}}}}));
}

TEST(Header, empty_tensors_lie_between_others) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                           R"("z":{"dtype":"F64","shape":[0],"data_offsets":[2,2]},)"
                           R"("y":{"dtype":"F64","shape":[3,0],"data_offsets":[2,2]},)"
                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  const Header header = parse(file_with_header(json, 3));
  EXPECT_EQ(header.catalog, (Catalog{{{"a", DType::u8, {2}},
                                      {"z", DType::f64, {0}},
                                      {"y", DType::f64, {3, 0}},
                                      {"b", DType::u8, {1}}}}));
}

TEST(Header, every_dtype_of_the_format_is_read_by_its_own_name_only) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto json = fmt::format(R"({{"a":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})",
                                  name_of(dtype), bit_size(dtype));
    const Header header = parse(file_with_header(json, static_cast<std::size_t>(bit_size(dtype))));
    EXPECT_EQ(header.catalog, (Catalog{{{"a", dtype, {8}}}}));
  }
  EXPECT_EQ(error_of([] {
              parse(file_with_header(
                  R"({"a":{"dtype":"bfloat16","shape":[1],"data_offsets":[0,2]}})", 2));
            }),
            "corrupt_file: read: a tensor has an unknown dtype\n  tensor  a\n  dtype  bfloat16");
}

struct HostileFile {
  std::string name;
  std::string file;
  std::string expected;
};

void PrintTo(const HostileFile& row, std::ostream* stream) { *stream << row.name; }

// A file with one tensor `a` whose entry is `fields`.
std::string one(std::string_view fields, std::size_t data_bytes) {
  return file_with_header(fmt::format(R"({{"a":{{{}}}}})", fields), data_bytes);
}

// A file of u8 tensors, each `name begin end`.
struct Range {
  std::string name;
  int begin;
  int end;
};
std::string ranges(const std::vector<Range>& tensors, std::size_t data_bytes) {
  std::string json = "{";
  for (const Range& t : tensors) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                        json.size() > 1 ? "," : "", t.name, t.end - t.begin, t.begin, t.end);
  }
  return file_with_header(json + "}", data_bytes);
}

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return file.append(rest);
}

std::vector<HostileFile> hostile_lengths() {
  return {
      {"an empty file", "",
       "read: the file is too short for a header\n  file_bytes  0\n  bytes_min  8"},
      {"seven bytes", std::string(7, 'x'),
       "read: the file is too short for a header\n  file_bytes  7\n  bytes_min  8"},
      {"a length past the file", with_length(3, "{}"),
       "read: the header passes the end of the file\n  header_bytes  3\n  file_bytes  10"},
      {"a length past the limit", with_length(100'000'001, "{}"),
       "read: the header is longer than the format allows\n  header_bytes  100000001\n"
       "  header_bytes_max  100000000"},
      {"a length of all ones", with_length(~std::uint64_t{0}, "{}"),
       "read: the header is longer than the format allows\n  header_bytes  18446744073709551615\n"
       "  header_bytes_max  100000000"},
      {"no header", with_length(0, ""),
       "read: the header does not begin with {\n  header_offset  0"},
  };
}

std::vector<HostileFile> hostile_texts() {
  return {
      {"an array", file_with_header("[]", 0),
       "read: the header does not begin with {\n  header_offset  0"},
      {"a space first", file_with_header(" {}", 0),
       "read: the header does not begin with {\n  header_offset  0"},
      {"NUL padding", file_with_header(std::string_view("{}\0\0", 4), 0),
       "read: there is a NUL byte in the header\n  header_offset  2"},
      {"text after the object", file_with_header("{}{}", 0),
       "read: the header is not valid JSON\n  header_offset  2"},
      {"an object that does not end", file_with_header("{\"a\":{", 0),
       "read: the header is not valid JSON\n  header_offset  6"},
      {"a comma too many", file_with_header("{\"__metadata__\":{},}", 0),
       "read: the header is not valid JSON\n  header_offset  19"},
      {"a comment", file_with_header("{/**/}", 0),
       "read: the header is not valid JSON\n  header_offset  1"},
      {"a lone surrogate", file_with_header("{\"\\ud800\":{}}", 0),
       "read: the header is not valid JSON\n  header_offset  8"},
      {"a byte that is not UTF-8", file_with_header("{\"a\xFF\":{}}", 0),
       "read: the header is not UTF-8\n  header_offset  3"},
      {"an overlong character", file_with_header("{\"\xC0\xAF\":{}}", 0),
       "read: the header is not UTF-8\n  header_offset  2"},
      {"a surrogate in UTF-8", file_with_header("{\"\xED\xA0\x80\":{}}", 0),
       "read: the header is not UTF-8\n  header_offset  2"},
      {"a character cut short", file_with_header("{\"\xF0\x9F\x98", 0),
       "read: the header is not UTF-8\n  header_offset  2"},
      {"a hundred thousand arrays",
       file_with_header("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0),
       "read: what stands for a tensor is not an object\n  tensor  a\n  found  an array"},
      {"a hundred thousand arrays in a shape", one(R"("shape":)" + std::string(100'000, '['), 0),
       "read: an entry of shape is not a whole number in range\n  tensor  a\n"
       "  found  an array\n  range  0 to 9007199254740991"},
  };
}

std::vector<HostileFile> hostile_metadata() {
  return {
      {"metadata that is a string", file_with_header(R"({"__metadata__":"x"})", 0),
       "read: __metadata__ is not an object\n  found  a string"},
      {"metadata that is null", file_with_header(R"({"__metadata__":null})", 0),
       "read: __metadata__ is not an object\n  found  null"},
      {"a number in metadata", file_with_header(R"({"__metadata__":{"k":1}})", 0),
       "read: a value of __metadata__ is not a string\n  key  k\n  found  a number"},
      {"an object in metadata", file_with_header(R"({"__metadata__":{"k":{}}})", 0),
       "read: a value of __metadata__ is not a string\n  key  k\n  found  an object"},
      {"metadata that looks like a tensor",
       file_with_header(R"({"__metadata__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "read: a value of __metadata__ is not a string\n  key  shape\n  found  an array"},
      {"metadata twice", file_with_header(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "read: the header has __metadata__ twice"},
      {"a key of metadata twice", file_with_header(R"({"__metadata__":{"k":"1","k":"1"}})", 0),
       "read: a key of __metadata__ occurs twice\n  key  k"},
  };
}

std::vector<HostileFile> hostile_fields() {
  return {
      {"a tensor that is a number", file_with_header(R"({"a":1})", 0),
       "read: what stands for a tensor is not an object\n  tensor  a\n  found  a number"},
      {"a tensor without fields", one("", 0),
       "read: a tensor lacks a field\n  tensor  a\n  field  dtype"},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,0])", 0),
       "read: a tensor lacks a field\n  tensor  a\n  field  shape"},
      {"no offsets", one(R"("dtype":"U8","shape":[0])", 0),
       "read: a tensor lacks a field\n  tensor  a\n  field  data_offsets"},
      {"a field of its own",
       one(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1])", 0),
       "read: a tensor has an unknown field\n  tensor  a\n  field  strides"},
      {"a field twice", one(R"("dtype":"U8","dtype":"U8")", 0),
       "read: a tensor has a field twice\n  tensor  a\n  field  dtype"},
      {"an unknown dtype", one(R"("dtype":"F7")", 0),
       "read: a tensor has an unknown dtype\n  tensor  a\n  dtype  F7"},
      {"a dtype that breaks the line", one(R"("dtype":"F7\n  tensor  b")", 0),
       "read: a tensor has an unknown dtype\n  tensor  a\n  dtype  F7\\x0a  tensor  b"},
      {"a dtype that is a number", one(R"("dtype":8)", 0),
       "read: a field of a tensor has the wrong type\n  tensor  a\n  field  dtype\n"
       "  expected  a string\n  found  a number"},
      {"a dtype that is an array", one(R"("dtype":["U8"])", 0),
       "read: a field of a tensor has the wrong type\n  tensor  a\n  field  dtype\n"
       "  expected  a string\n  found  an array"},
      {"a shape that is a number", one(R"("shape":4)", 0),
       "read: a field of a tensor has the wrong type\n  tensor  a\n  field  shape\n"
       "  expected  an array\n  found  a number"},
      {"a shape that is a string", one(R"("shape":"4")", 0),
       "read: a field of a tensor has the wrong type\n  tensor  a\n  field  shape\n"
       "  expected  an array\n  found  a string"},
      {"offsets that are an object", one(R"("data_offsets":{"0":0})", 0),
       "read: a field of a tensor has the wrong type\n  tensor  a\n  field  data_offsets\n"
       "  expected  an array\n  found  an object"},
      {"one offset", one(R"("data_offsets":[0])", 0),
       "read: data_offsets are not two numbers\n  tensor  a\n  count  1"},
      {"three offsets", one(R"("data_offsets":[0,0,0])", 0),
       "read: data_offsets are not two numbers\n  tensor  a\n  count  more than 2"},
  };
}

std::string not_whole(std::string_view field, std::string_view found) {
  return fmt::format(
      "read: an entry of {} is not a whole number in range\n  tensor  a\n  found  {}\n"
      "  range  0 to 9007199254740991",
      field, found);
}

std::vector<HostileFile> hostile_numbers() {
  return {
      {"a negative extent", one(R"("shape":[-1])", 0), not_whole("shape", "-1")},
      {"a fraction", one(R"("shape":[1.5])", 0), not_whole("shape", "1.5")},
      {"an exponent", one(R"("shape":[1e3])", 0), not_whole("shape", "1e3")},
      {"a whole fraction", one(R"("shape":[2.0])", 0), not_whole("shape", "2.0")},
      {"an extent of 2^53", one(R"("shape":[9007199254740992])", 0),
       not_whole("shape", "9007199254740992")},
      {"an extent of 2^64", one(R"("shape":[18446744073709551616])", 0),
       not_whole("shape", "18446744073709551616")},
      {"a string in a shape", one(R"("shape":["1"])", 0), not_whole("shape", "a string")},
      {"null in a shape", one(R"("shape":[null])", 0), not_whole("shape", "null")},
      {"a negative offset", one(R"("data_offsets":[-4,4])", 8), not_whole("data_offsets", "-4")},
      {"an offset of 2^63", one(R"("data_offsets":[0,9223372036854775808])", 8),
       not_whole("data_offsets", "9223372036854775808")},
      {"a number past every double", one(R"("shape":[1e999])", 0), not_whole("shape", "1e999")},
      {"a number of a thousand digits", one("\"shape\":[" + std::string(1000, '1') + "]", 0),
       not_whole("shape", std::string(200, '1') + "... (1000 bytes)")},
  };
}

std::vector<HostileFile> hostile_sizes() {
  return {
      {"a shape of more bytes than the offsets",
       one(R"("dtype":"F32","shape":[1000,1000],"data_offsets":[0,4])", 4),
       "read: a tensor's shape and dtype are not its bytes\n  tensor  a\n  dtype  F32\n"
       "  shape  [1000, 1000]\n  bytes_by_shape  4000000\n  bytes_by_offsets  4"},
      {"rank 0 with no bytes", one(R"("dtype":"F32","shape":[],"data_offsets":[0,0])", 0),
       "read: a tensor's shape and dtype are not its bytes\n  tensor  a\n  dtype  F32\n"
       "  shape  []\n  bytes_by_shape  4\n  bytes_by_offsets  0"},
      {"half a byte", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2),
       "read: a tensor does not end on a byte\n  tensor  a\n  dtype  F4\n  shape  [3]"},
      {"six bits", one(R"("dtype":"F6_E3M2","shape":[2,3],"data_offsets":[0,4])", 4),
       "read: a tensor does not end on a byte\n  tensor  a\n  dtype  F6_E3M2\n  shape  [2, 3]"},
      {"a product past 64 bits",
       one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
       "read: a tensor has too many elements\n  tensor  a\n  dtype  U8\n"
       "  shape  [4294967296, 4294967296]\n  elements_max  9007199254740991"},
      {"an empty tensor whose strides pass 64 bits",
       one(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0),
       "read: a tensor has too many elements\n  tensor  a\n  dtype  U8\n"
       "  shape  [0, 4294967296, 4294967296]\n  elements_max  9007199254740991"},
      {"a product whose bytes pass 64 bits",
       one(R"("dtype":"F64","shape":[9007199254740991],"data_offsets":[0,8])", 8),
       "read: a tensor's shape and dtype are not its bytes\n  tensor  a\n  dtype  F64\n"
       "  shape  [9007199254740991]\n  bytes_by_shape  72057594037927928\n  bytes_by_offsets  8"},
      {"offsets in reverse", one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])", 4),
       "read: data_offsets end before they begin\n  tensor  a\n  begin  4\n  end  0"},
      {"offsets past the file", one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", 3),
       "read: data_offsets pass the end of the file\n  tensor  a\n  begin  0\n  end  4\n"
       "  data_bytes  3"},
  };
}

std::vector<HostileFile> hostile_tilings() {
  return {
      {"two tensors on one range", ranges({{"a", 0, 4}, {"b", 0, 4}}, 4),
       "read: two tensors overlap\n  tensor  b\n  begin  0\n  before  a\n  before_end  4"},
      {"two tensors that share a byte", ranges({{"b", 3, 8}, {"a", 0, 4}}, 8),
       "read: two tensors overlap\n  tensor  b\n  begin  3\n  before  a\n  before_end  4"},
      {"an empty tensor inside another", ranges({{"a", 0, 4}, {"e", 2, 2}}, 4),
       "read: two tensors overlap\n  tensor  e\n  begin  2\n  before  a\n  before_end  4"},
      {"a hole", ranges({{"a", 0, 4}, {"b", 5, 8}}, 8),
       "read: there is a hole before a tensor\n  tensor  b\n  begin  5\n  before  a\n"
       "  before_end  4"},
      {"a hole at the start", ranges({{"a", 1, 4}}, 4),
       "read: there is a hole before a tensor\n  tensor  a\n  begin  1\n  before  the header\n"
       "  before_end  0"},
      {"a trailing byte", ranges({{"a", 0, 4}}, 5),
       "read: there are bytes after the last tensor\n  tensors_end  4\n  data_bytes  5"},
      {"a byte and no tensor", file_with_header("{}", 1),
       "read: there are bytes after the last tensor\n  tensors_end  0\n  data_bytes  1"},
      {"a name twice", ranges({{"a", 0, 4}, {"b", 4, 8}, {"a", 8, 9}}, 9),
       "read: the header names a tensor twice\n  tensor  a"},
      {"a name twice on one range", ranges({{"a", 0, 4}, {"a", 0, 4}}, 4),
       "read: the header names a tensor twice\n  tensor  a"},
      {"a name twice, once escaped",
       file_with_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        2),
       "read: the header names a tensor twice\n  tensor  a"},
  };
}

class Hostile : public testing::TestWithParam<HostileFile> {};

TEST_P(Hostile, is_refused_with_the_numbers) {
  const HostileFile& row = GetParam();
  EXPECT_EQ(error_of([&] { parse(row.file); }), "corrupt_file: " + row.expected) << row.name;
}

INSTANTIATE_TEST_SUITE_P(Lengths, Hostile, testing::ValuesIn(hostile_lengths()));
INSTANTIATE_TEST_SUITE_P(Texts, Hostile, testing::ValuesIn(hostile_texts()));
INSTANTIATE_TEST_SUITE_P(Metadata, Hostile, testing::ValuesIn(hostile_metadata()));
INSTANTIATE_TEST_SUITE_P(Fields, Hostile, testing::ValuesIn(hostile_fields()));
INSTANTIATE_TEST_SUITE_P(Numbers, Hostile, testing::ValuesIn(hostile_numbers()));
INSTANTIATE_TEST_SUITE_P(Sizes, Hostile, testing::ValuesIn(hostile_sizes()));
INSTANTIATE_TEST_SUITE_P(Tilings, Hostile, testing::ValuesIn(hostile_tilings()));

TEST(Header, a_tensor_of_nine_dimensions_is_legal_and_not_served) {
  EXPECT_EQ(error_of([] {
              parse(one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])", 1));
            }),
            "unsupported: read: a tensor has too many dimensions\n  tensor  a\n"
            "  dimensions_max  8");
}

TEST(Header, a_prefix_that_stops_inside_the_header_is_the_callers_fault) {
  const std::string file = file_with_header("{}      ", 0);
  EXPECT_EQ(error_of([&] { parse_header(bytes_of(file).first(12), 16, "x.safetensors"); }),
            "invalid_argument: parse header: the prefix is shorter than the header\n"
            "  prefix_bytes  12\n  bytes_min  16");
  EXPECT_EQ(error_of([&] { parse_header(bytes_of(file).first(5), 16, "x.safetensors"); }),
            "invalid_argument: parse header: the prefix is shorter than the header\n"
            "  prefix_bytes  5\n  bytes_min  16");
}

// A small file with most of what the format has.
std::string small_file() {
  const std::vector<TensorInfo> tensors = {{"w", DType::bf16, {2, 3}},
                                           {"s", DType::f32, {}},
                                           {"q\u00e9\"", DType::f4, {2, 2}},
                                           {"e", DType::u8, {0}}};
  return encode_header(tensors, {{"format", "pt"}}) + std::string(18, 'x');
}

std::optional<Header> parse_or_nothing(std::string_view file) {
  try {
    return parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(ErrorCode::corrupt_file)) << error.text();
    return std::nullopt;
  }
}

// What every accepted header promises, checked from scratch.
void expect_consistent(const Header& header, std::int64_t file_bytes) {
  std::int64_t reached = header.data_offset;
  ASSERT_EQ(header.offsets.size(), header.catalog.tensors.size());
  for (std::size_t i = 0; i < header.offsets.size(); ++i) {
    ASSERT_EQ(header.offsets[i], reached);
    reached += byte_count(header.catalog.tensors[i]);
  }
  ASSERT_EQ(reached, file_bytes);
  ASSERT_EQ(find_duplicate(header.catalog), std::nullopt);
}

TEST(Header, a_file_cut_anywhere_is_refused) {
  const std::string file = small_file();
  ASSERT_TRUE(parse_or_nothing(file));
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    // A copy of exactly so many bytes, so that a sanitizer sees a read past them.
    const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(parse_or_nothing({cut.data(), cut.size()}), std::nullopt) << bytes;
  }
}

TEST(Header, a_header_with_any_byte_changed_is_refused_or_consistent) {
  const std::string file = small_file();
  const auto header_bytes = static_cast<std::size_t>(parse(file).data_offset);
  int accepted = 0;
  for (std::size_t at = 0; at < header_bytes; ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = file;
      if (changed[at] == static_cast<char>(byte)) continue;
      changed[at] = static_cast<char>(byte);
      const auto header = parse_or_nothing(changed);
      if (!header) continue;
      ++accepted;
      expect_consistent(*header, std::ssize(changed));
    }
  }
  // Other names, other metadata, other spaces, another order, another dtype of the same size.
  EXPECT_GT(accepted, 1000);
}

TEST(Header, encode_pads_with_spaces_to_eight_bytes) {
  const std::vector<TensorInfo> tensors = {{"b", DType::bf16, {2}}, {"a", DType::u8, {}}};
  EXPECT_EQ(encode_header(tensors, {{"format", "pt"}}),
            std::string("\x90\0\0\0\0\0\0\0", 8) +
                R"({"__metadata__":{"format":"pt"},)"
                R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                R"("a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}       )");
  EXPECT_EQ(encode_header({}, {}), std::string("\x8\0\0\0\0\0\0\0{}      ", 16));
}

std::string write_error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(ErrorCode::invalid_argument));
    return error.text();
  }
  return "no error";
}

TEST(Header, tensors_that_cannot_be_written_are_refused) {
  const auto error = [](std::vector<TensorInfo> tensors) {
    return write_error_of([&] { encode_header(tensors, {}); });
  };
  EXPECT_EQ(error({{"a", DType::u8, {}}, {"a", DType::u8, {}}}),
            "write: two tensors have one name\n  tensor  a");
  EXPECT_EQ(error({{"__metadata__", DType::u8, {}}}),
            "write: a tensor has a reserved name\n  tensor  __metadata__");
  EXPECT_EQ(error({{"ab\xFF", DType::u8, {}}}),
            "write: a tensor's name is not UTF-8\n  name_offset  2");
  EXPECT_EQ(error({{"a", DType::u8, {2, -1}}}),
            "write: a tensor has a negative extent\n  tensor  a\n  shape  [2, -1]");
  EXPECT_EQ(error({{"a", DType::u8, std::vector<std::int64_t>(9, 1)}}),
            "write: a tensor has too many dimensions\n  tensor  a\n  dimensions  9\n"
            "  dimensions_max  8");
  EXPECT_EQ(error({{"a", DType::f4, {1}}}),
            "count bytes: a tensor does not end on a byte\n  tensor  a\n  dtype  F4\n  shape  [1]");
  EXPECT_EQ(write_error_of([] {
              encode_header({}, {{"k", "\xFF"}});
            }),
            "write: __metadata__ is not UTF-8\n  key  k");
  EXPECT_EQ(write_error_of([] {
              encode_header({}, {{"k", std::string(100'000'000, ' ')}});
            }),
            "write: the header is longer than the format allows\n  header_bytes  100000032\n"
            "  header_bytes_max  100000000");
}

TEST(Header, what_is_encoded_is_read_back) {
  // Characters of one to four bytes, controls and quotes included.
  const std::vector<std::string> characters = {
      "a", "\"", "\\", "\n", "\x7F", "\u00e9", "\u20ac", "\U0001F600", std::string(1, '\0')};
  std::mt19937 random(1);
  const auto below = [&](std::size_t count) { return random() % count; };
  for (int round = 0; round < 2000; ++round) {
    Catalog catalog;
    for (std::size_t i = 0; i < static_cast<std::size_t>(round) % 6; ++i) {
      TensorInfo tensor{std::to_string(i), static_cast<DType>(below(kDTypeCount)), {}};
      for (std::size_t k = below(8); k > 0; --k) tensor.name += characters[below(9)];
      for (std::size_t k = below(8); k > 0; --k) {
        tensor.shape.push_back(static_cast<std::int64_t>(below(5)));
      }
      if (!is_byte_sized(tensor.dtype)) tensor.shape.push_back(8);
      catalog.tensors.push_back(tensor);
    }
    const Metadata metadata = {{"k\n", characters[below(9)]}};
    const std::string header = encode_header(catalog.tensors, metadata);
    const auto data_bytes = byte_count(catalog);
    const Header parsed = parse_header(bytes_of(header), std::ssize(header) + data_bytes, "x");
    ASSERT_EQ(parsed.catalog, catalog) << explain(catalog);
    ASSERT_EQ(parsed.metadata, metadata);
    ASSERT_EQ(parsed.data_offset, std::ssize(header));
    ASSERT_EQ(parsed.data_offset % 8, 0);
  }
}

}  // namespace
}  // namespace crossmesh
