// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/detail/sample_layout.h"

namespace crossmesh {
namespace {

using Json = nlohmann::json;
using Bytes = std::vector<std::uint8_t>;

std::string error_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    return error.text();
  }
  return "no error";
}

TEST(Wire, json_and_cbor_give_the_layout_back) {
  for (const Layout& layout : {Layout{}, sample_layout(), uniform_layout(20, 16)}) {
    EXPECT_EQ(layout_from_json(to_json(layout)), layout);
    EXPECT_EQ(layout_from_json(Json::parse(to_json(layout).dump())), layout);
    EXPECT_EQ(layout_from_cbor(to_cbor(layout)), layout);
  }
}

TEST(Wire, the_schema_is_stable) {
  Layout layout = uniform_layout(1, 8);
  layout.classes[0].pieces_of_role.resize(1);
  layout.bindings[0].role_of_rank = {-1, -1, 3, 4, 5, 0, 0, 0};
  layout.parameter_classes[0].shape_of_role.resize(1);
  layout.parameter_classes[0].strides_of_role.resize(1);
  layout.parameter_classes[0].reserves = sample_layout().parameter_classes[0].reserves;
  layout.reasons = {"because"};
  layout.unused = {{"x", "y"}};
  EXPECT_EQ(to_json(layout).dump(),
            R"({"bindings":[[[-1,2,0],[3,3,1],[0,3,0]]],"classes":[{"dtype":"BF16",)"
            R"("factor_count":[1,1],"factors":[8,16],)"
            R"("roles":[[[[0,0],[2,16],0,[16,1]]]]}],"instances":[[0,0,0,0,0,-1]],)"
            R"("model":"model","parameter_classes":[{"dtype":"BF16",)"
            R"("reserves":[["fill",1,[1,3],6,[3,1],16256,"vocabulary padding"]],)"
            R"("roles":[[[2,16],[16,1]]]}],"parameters":[["layers.0.weight",0,0,0]],)"
            R"("rank_count":8,"reasons":["because"],)"
            R"("replica_of_rank":[[0,4,0],[1,4,0]],"schema":"crossmesh.layout",)"
            R"("tensors":[["layers.0.weight","BF16",[8,16]]],"unused":[["x","y"]],)"
            R"("version":1})");
}

TEST(Wire, many_ranks_cost_few_bytes) {
  EXPECT_LT(to_cbor(uniform_layout(1, 4096)).size(), to_cbor(uniform_layout(1, 64)).size() + 25000);
  Layout layout;
  layout.rank_count = 100'000;
  layout.replica_of_rank.assign(100'000, 0);
  layout.bindings.resize(1);
  for (int rank = 0; rank < 100'000; ++rank) layout.bindings[0].role_of_rank.push_back(rank);
  EXPECT_LT(to_cbor(layout).size(), 300u);
  EXPECT_EQ(layout_from_cbor(to_cbor(layout)), layout);
}

struct Row {
  const char* name;
  std::function<void(Json&)> apply;
  ErrorCode code;
  const char* expected;
};

TEST(Wire, what_a_reader_refuses_it_names) {
  const ErrorCode corrupt = ErrorCode::corrupt_file;
  const Row rows[] = {
      {"no object", [](Json& j) { j = Json::array(); }, corrupt,
       "read layout: a field is not an object\n  field  "},
      {"schema", [](Json& j) { j["schema"] = "crossmesh.plan"; }, ErrorCode::mismatch,
       "read layout: this is another kind of document\n  schema  crossmesh.plan\n"
       "  expected  crossmesh.layout"},
      {"version", [](Json& j) { j["version"] = 2; }, ErrorCode::mismatch,
       "read layout: the schema has another version\n  version  2\n  expected  1"},
      {"missing", [](Json& j) { j["classes"][1].erase("dtype"); }, corrupt,
       "read layout: a field is missing\n  field  classes[1].dtype"},
      {"text", [](Json& j) { j["tensors"][1][0] = 7; }, corrupt,
       "read layout: a field is not a text\n  field  tensors[1][0]"},
      {"integer", [](Json& j) { j["instances"][1][4] = 0.5; }, corrupt,
       "read layout: a field is not an integer\n  field  instances[1][4]"},
      {"64 bits", [](Json& j) { j["instances"][1][4] = UINT64_MAX; }, corrupt,
       "read layout: a number is out of range\n  field  instances[1][4]\n"
       "  value  18446744073709551615"},
      {"32 bits", [](Json& j) { j["instances"][1][0] = std::int64_t{1} << 31; }, corrupt,
       "read layout: a number is out of range\n  field  instances[1][0]\n  value  2147483648"},
      {"array", [](Json& j) { j["classes"][1]["roles"][0] = Json::object(); }, corrupt,
       "read layout: a field is not an array\n  field  classes[1].roles[0]"},
      {"length", [](Json& j) { j["classes"][1]["roles"][0][0].push_back(1); }, corrupt,
       "read layout: an array has another length\n  field  classes[1].roles[0][0]\n  length  5\n"
       "  expected  4"},
      {"dimensions", [](Json& j) { j["classes"][1]["factors"] = std::vector<int>(9, 1); }, corrupt,
       "read layout: a field has too many dimensions\n  field  classes[1].factors\n"
       "  dimensions  9\n  limit  8"},
      {"dtype", [](Json& j) { j["tensors"][1][1] = "F31"; }, corrupt,
       "read layout: a dtype is unknown\n  field  tensors[1][1]\n  dtype  F31"},
      {"kind", [](Json& j) { j["parameter_classes"][0]["reserves"][0][0] = "x"; }, corrupt,
       "read layout: the kind of a reserve is unknown\n"
       "  field  parameter_classes[0].reserves[0]\n  kind  x"},
      {"bits", [](Json& j) { j["parameter_classes"][0]["reserves"][0][5] = -1; }, corrupt,
       "read layout: a field is not a natural number\n"
       "  field  parameter_classes[0].reserves[0][5]"},
      {"a run too long", [](Json& j) { j["bindings"][1] = Json::parse("[[0,3,0],[0,2,1]]"); },
       corrupt,
       "read layout: a run is out of range\n  field  bindings[1][1]\n  first  0\n  count  2\n"
       "  step  1\n  ranks left  1"},
      {"ranks", [](Json& j) { j["rank_count"] = 1'048'577; }, ErrorCode::limit_exceeded,
       "read layout: there are too many ranks\n  ranks  1048577\n  limit  1048576"},
      {"negative ranks", [](Json& j) { j["rank_count"] = -1; }, corrupt,
       "read layout: a number is out of range\n  field  rank_count\n  value  -1"},
      {"bindings",
       [](Json& j) {
         j["rank_count"] = 1'048'576;
         j["bindings"] = std::vector<Json>(65, Json::array());
       },
       ErrorCode::limit_exceeded,
       "read layout: the bindings are too large\n  bindings times ranks  68157440\n"
       "  limit  67108864"},
      {"an invariant", [](Json& j) { j["instances"][2][4] = 7; }, corrupt,
       "check layout: a view is outside its parameter\n  tensor  layers.0.k.weight\n"
       "  parameter  layers.0.qk.weight\n  class  1\n  rank  0\n  offset  7\n  least  0\n"
       "  most  6"},
  };
  for (const Row& row : rows) {
    Json json = to_json(sample_layout());
    row.apply(json);
    EXPECT_EQ(error_of([&] { layout_from_json(json); }, row.code), row.expected) << row.name;
  }
}

TEST(Wire, cbor_that_lies_is_refused) {
  struct CborRow {
    const char* name;
    Bytes bytes;
    const char* expected;
  };
  const CborRow rows[] = {
      {"empty", {}, "read cbor: it ends early\n  offset  0\n  bytes  0"},
      {"a long text",
       {0x7b, 255, 255, 255, 255, 255, 255, 255, 255, 'a'},
       "read cbor: it ends early\n  offset  9\n  bytes  10"},
      {"a long array", {0x9a, 0, 1, 0, 0, 1}, "read cbor: it ends early\n  offset  5\n  bytes  6"},
      {"a long map",
       {0xbb, 255, 255, 255, 255, 255, 255, 255, 255},
       "read cbor: it ends early\n  offset  9\n  bytes  9"},
      {"a cut head", {0x19, 1}, "read cbor: it ends early\n  offset  1\n  bytes  2"},
      {"bytes after the end",
       {0x01, 0x02},
       "read cbor: there are bytes past the end\n  offset  1\n  bytes  2"},
      {"no length", {0x9f, 0xff}, "read cbor: an item has no length\n  offset  1\n  bytes  2"},
      {"a tag",
       {0xc1, 0x01},
       "read cbor: an item is of a kind that JSON lacks\n  offset  1\n  bytes  2"},
      {"bytes",
       {0x41, 0x01},
       "read cbor: an item is of a kind that JSON lacks\n  offset  1\n  bytes  2"},
      {"undefined",
       {0xf7},
       "read cbor: an item is of a kind that JSON lacks\n  offset  1\n  bytes  1"},
      {"too deep", Bytes(20, 0x81),
       "read cbor: an item lies too deep\n  offset  17\n  bytes  20\n"
       "  limit  16"},
  };
  for (const CborRow& row : rows) {
    const auto read = [&] { json_from_cbor(row.bytes, kWireDepthMax); };
    EXPECT_EQ(error_of(read, ErrorCode::corrupt_file), row.expected) << row.name;
  }
  EXPECT_NE(error_of(
                [] {
                  json_from_cbor(Bytes{0xa1, 0x01, 0x01}, 16);
                },
                ErrorCode::corrupt_file),
            "no error");
  EXPECT_EQ(json_from_cbor(Bytes{0x83, 0xf9, 0x3c, 0x00, 0xf6, 0x20}, 1),
            Json::parse("[1.0,null,-1]"));
}

// Any outcome but a crash is right: an Error, or a layout that passes its check.
void expect_survives(const Bytes& bytes) {
  try {
    check(layout_from_cbor(bytes));
  } catch (const Error& error) {
    ASSERT_NE(error.code(), ErrorCode::internal) << error.text();
  }
}

TEST(Wire, mutated_bytes_never_crash) {
  const Bytes good = to_cbor(sample_layout());
  std::mt19937 random(5);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x02, 0x10, 0x20, 0x80, 0xff}) {
      Bytes bad = good;
      bad[at] = static_cast<std::uint8_t>(bad[at] ^ change);
      expect_survives(bad);
    }
    expect_survives(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)));
    Bytes shorter = good;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
    expect_survives(shorter);
  }
  for (int round = 0; round < 2000; ++round) {
    Bytes bad = good;
    for (unsigned n = 1 + random() % 6; n > 0; --n) {
      bad[random() % bad.size()] = static_cast<std::uint8_t>(random());
    }
    expect_survives(bad);
  }
}

// Numbers replaced by hostile ones, where the shape of the document stays right.
TEST(Wire, hostile_numbers_never_crash) {
  const Json good = to_json(sample_layout()).flatten();
  const Json values[] = {-1, 0, 1, 2, 3, 9, INT32_MAX, INT64_MAX, INT64_MIN, UINT64_MAX, 1.5, ""};
  for (const auto& [path, old] : good.items()) {
    for (const Json& value : values) {
      Json bad = good;
      bad[path] = value;
      try {
        check(layout_from_json(bad.unflatten()));
      } catch (const Error& error) {
        ASSERT_NE(error.code(), ErrorCode::internal) << error.text();
      }
    }
  }
}

}  // namespace
}  // namespace crossmesh
