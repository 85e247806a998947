// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/shard_index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

TEST(ShardIndex, gives_the_file_of_each_tensor_and_skips_the_rest) {
  const ShardIndex expected{{{"b", "m-2.safetensors"}, {"a", "m-1.safetensors"}}};
  EXPECT_EQ(parse_index(R"({"metadata":{"total_size":12.5,"x":[{"weight_map":{"c":1}},null,true]},
                            "weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"},
                            "version":-1})",
                        "i"),
            expected);
  EXPECT_EQ(parse_index(R"({"weight_map":{}})", "i"), ShardIndex{});
}

TEST(ShardIndex, what_is_encoded_is_read_back) {
  const ShardIndex index{{{"b\"\n", "m-2.safetensors"}, {"\u00e9", "m-1.safetensors"}}};
  const std::string text = encode_index(index, 12);
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"b\\\"\\u000a\": \"m-2.safetensors\",\n"
            "    \"\u00e9\": \"m-1.safetensors\"\n  }\n}\n");
  EXPECT_EQ(parse_index(text, "i"), index);
  EXPECT_EQ(parse_index(encode_index({}, 0), "i"), ShardIndex{});
}

struct HostileIndex {
  std::string name;
  std::string text;
  std::string expected;
};

void PrintTo(const HostileIndex& row, std::ostream* stream) { *stream << row.name; }

std::string not_bare(std::string_view shard) {
  return fmt::format("the index gives a file that is not a bare name\n  tensor  a\n  shard  {}",
                     shard);
}

const HostileIndex kRows[] = {
    {"an empty text", "", "the index is not valid JSON\n  offset  0"},
    {"an array", "[]", "the index is not an object\n  found  an array"},
    {"a number", "1", "the index is not an object\n  found  a number"},
    {"an object that does not end", R"({"weight_map":{)",
     "the index is not valid JSON\n  offset  15"},
    {"text after the object", "{} {}", "the index is not valid JSON\n  offset  3"},
    {"a NUL byte", std::string("{}\0", 3), "there is a NUL byte in the index\n  offset  2"},
    {"a byte that is not UTF-8", "{\"\xFF\":1}", "the index is not UTF-8\n  offset  2"},
    {"a number past every double", R"({"x":1e999})",
     "the index has a number that is out of range\n  offset  9"},
    {"no weight_map", R"({"metadata":{}})", "the index has no weight_map"},
    {"a weight_map inside metadata", R"({"metadata":{"weight_map":{"a":"f"}}})",
     "the index has no weight_map"},
    {"weight_map twice", R"({"weight_map":{},"weight_map":{}})", "the index has weight_map twice"},
    {"a weight_map that is an array", R"({"weight_map":[]})",
     "weight_map is not an object\n  found  an array"},
    {"a weight_map that is a string", R"({"weight_map":"f"})",
     "weight_map is not an object\n  found  a string"},
    {"a weight_map that is null", R"({"weight_map":null})",
     "weight_map is not an object\n  found  null"},
    {"a file that is a number", R"({"weight_map":{"a":1}})",
     "the index does not give a tensor's file as a string\n  tensor  a\n  found  a number"},
    {"a file that is an object", R"({"weight_map":{"a":{}}})",
     "the index does not give a tensor's file as a string\n  tensor  a\n  found  an object"},
    {"a file that is an array", R"({"weight_map":{"a":["f"]}})",
     "the index does not give a tensor's file as a string\n  tensor  a\n  found  an array"},
    {"a tensor twice", R"({"weight_map":{"a":"f","b":"f","a":"f"}})",
     "the index names a tensor twice\n  tensor  a"},
    {"an absolute path", R"({"weight_map":{"a":"/etc/passwd"}})", not_bare("/etc/passwd")},
    {"a path upwards", R"({"weight_map":{"a":"../m.safetensors"}})", not_bare("../m.safetensors")},
    {"the folder above", R"({"weight_map":{"a":".."}})", not_bare("..")},
    {"the folder", R"({"weight_map":{"a":"."}})", not_bare(".")},
    {"a backslash", R"({"weight_map":{"a":"x\\y"}})", not_bare("x\\y")},
    {"a NUL in a name", R"({"weight_map":{"a":"x\u0000y"}})", not_bare("x\\x00y")},
    {"no name", R"({"weight_map":{"a":""}})", not_bare("")},
    {"deep JSON", R"({"metadata":)" + std::string(100'000, '['),
     "the index nests too deeply\n  nesting_max  16"},
    {"deep objects",
     [] {
       std::string text;
       for (int i = 0; i < 100'000; ++i) text += R"({"metadata":)";
       return text;
     }(),
     "the index nests too deeply\n  nesting_max  16"},
};

class HostileIndexes : public testing::TestWithParam<HostileIndex> {};

TEST_P(HostileIndexes, are_refused) {
  const HostileIndex& row = GetParam();
  std::string text = "no error";
  try {
    parse_index(row.text, "i.json");
  } catch (const Error& error) {
    text = fmt::format("{}: {}", name_of(error.code()), error.text());
  }
  EXPECT_EQ(text, fmt::format("corrupt_file: read: {}\n  file  i.json", row.expected)) << row.name;
}

INSTANTIATE_TEST_SUITE_P(All, HostileIndexes, testing::ValuesIn(kRows));

TEST(ShardIndex, an_index_cut_or_changed_anywhere_is_refused_or_has_bare_names) {
  const std::string text = R"({"metadata":{"total_size":3},"weight_map":{"a":"f1","b":"f2"}})";
  int accepted = 0;
  const auto try_text = [&](const std::string& changed) {
    try {
      const ShardIndex index = parse_index(changed, "i");
      for (const auto& entry : index.entries) {
        EXPECT_EQ(entry.file.find('/'), entry.file.npos) << changed;
        EXPECT_NE(entry.file, "..");
      }
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(name_of(error.code()), name_of(ErrorCode::corrupt_file));
    }
  };
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) try_text(text.substr(0, bytes));
  EXPECT_EQ(accepted, 0);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[at] = static_cast<char>(byte);
      try_text(changed);
    }
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace crossmesh
