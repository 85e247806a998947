// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/chain.h"

#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "crossmesh/base/counting_new.h"
#include "crossmesh/target/testing.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

using testing::json;
using testing::Numbers;
using testing::op_from_json;

std::vector<json> lines_of(const std::string& name) {
  std::vector<json> lines;
  std::istringstream text(test_data(name));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

DType dtype_of(const json& name) { return dtype_from_name(name.get<std::string>()).value(); }

bool is_recordable(const json& ops) {
  return std::all_of(ops.begin(), ops.end(),
                     [](const json& call) { return testing::kind_from_name(call[0]).has_value(); });
}

std::string fact_of(const Error& error, const std::string& key) {
  std::istringstream text(error.text());
  for (std::string line; std::getline(text, line);) {
    const std::size_t at = line.find(key + "  ");
    if (at != std::string::npos) return line.substr(line.find_last_of(' ') + 1);
  }
  return "";
}

// What a chain of calls came to: the chain, the tuple that it ended with, or the error of a call.
struct Walk {
  int chain = -1;
  std::optional<std::vector<int>> parts;
  std::optional<Error> error;
  int error_at = -1;
};

// Makes the calls on `book`. An index after chunk, unbind or split picks from the tuple.
Walk walk(ChainBook& book, const json& shape, DType dtype, const json& ops) {
  Walk result;
  const Numbers sizes = shape.get<Numbers>();
  result.chain = book.start(dtype, sizes);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    try {
      const Op op = op_from_json(ops[i]);
      if (result.parts) {
        const std::vector<int> parts = *result.parts;
        result.parts.reset();
        result.chain = parts.at(ops[i][1][0].get<std::size_t>());
      } else if (yields_several(op.kind())) {
        const std::span<const int> parts = book.apply_several(result.chain, op);
        result.parts.emplace(parts.begin(), parts.end());
      } else {
        result.chain = book.apply(result.chain, op);
      }
    } catch (const Error& error) {
      result.error = error;
      result.error_at = static_cast<int>(i);
      return result;
    }
  }
  return result;
}

void expect_tensor(const ChainBook& book, int chain, const json& expected) {
  const StridedTensor& tensor = book.geometry(chain);
  EXPECT_EQ(json(testing::numbers(tensor.sizes)), expected["shape"]);
  EXPECT_EQ(tensor.dtype, dtype_of(expected["dtype"]));
  EXPECT_EQ(json(testing::numbers(tensor.strides)), expected["strides"]);
  EXPECT_EQ(json(tensor.offset), expected["offset"]);
  EXPECT_EQ(json::parse(book.calls(chain)), expected["chain"]);
  EXPECT_EQ(book.calls(chain), expected["chain"].dump());
  if (expected.contains("source_elements")) {
    const ElementMap map = book.element_map(chain);
    Numbers bytes;
    const std::int64_t item_bytes = byte_size(tensor.dtype);
    for (const json& element : expected["source_elements"]) {
      for (std::int64_t b = 0; b < item_bytes; ++b) {
        bytes.push_back(element.get<std::int64_t>() * item_bytes + b);
      }
    }
    EXPECT_EQ(testing::bytes_of_map(map), bytes);
  }
}

// -- Recorded cases ------------------------------------------------------------------------------

TEST(ChainCases, recorded_chains_are_recorded_or_refused_as_torch_has_it) {
  int compared = 0;
  int refused = 0;
  int gathered = 0;
  int others = 0;
  for (const json& line : lines_of("golden_chains.jsonl")) {
    SCOPED_TRACE(line["id"].get<std::string>());
    const json& expected = line["expected"];
    const json& ops = line["input"]["ops"];
    const bool is_python_tuple = expected.value("torch_error", "") == "tuple index out of range" ||
                                 line.value("note", "") == "slice of the python tuple";
    if (!is_recordable(ops) || is_python_tuple) {
      // Attributes, functions, other methods, and tuples: the adapter's, not the chain's.
      ++others;
      continue;
    }
    ChainBook book;
    const Walk result = walk(book, line["input"]["shape"], dtype_of(line["input"]["dtype"]), ops);
    const std::string text = line.dump();
    const bool by_values = text.find("\"tensor\"") != std::string::npos;
    const bool by_list =
        ops[0][0] == "__getitem__" &&
        (ops[0][1][0].is_boolean() || ops[0][1][0].is_array() ||
         text.find("{\"tuple\":[[") != std::string::npos || text.find("]},[") != std::string::npos);
    if (by_values || by_list) {
      // Torch gathers; so did the old recorder, with keys that could not be compared.
      ASSERT_TRUE(result.error.has_value());
      EXPECT_EQ(result.error->code(), ErrorCode::unsupported);
      ++gathered;
    } else if (expected.contains("torch_error")) {
      // Torch is right where the old recorder accepted: it had no strides.
      ASSERT_TRUE(result.error.has_value()) << expected["torch_error"];
      EXPECT_EQ(result.error_at, expected.contains("torch_error_at") ? expected["torch_error_at"]
                                                                     : expected["error_at"]);
      if (expected.contains("error_type")) {
        EXPECT_EQ(fact_of(*result.error, "torch raises"), expected["error_type"])
            << result.error->text();
      }
      ++refused;
    } else if (expected.contains("error")) {
      // The old recorder refused `split` and `select`; torch has them.
      EXPECT_TRUE(expected.contains("torch_ok"));
      EXPECT_FALSE(result.error.has_value());
      ++compared;
    } else if (expected.contains("outputs")) {
      ASSERT_TRUE(result.parts.has_value());
      ASSERT_EQ(result.parts->size(), expected["outputs"].size());
      for (std::size_t i = 0; i < result.parts->size(); ++i) {
        expect_tensor(book, (*result.parts)[i], expected["outputs"][i]);
      }
      ++compared;
    } else if (expected.contains("value")) {
      ASSERT_TRUE(result.parts.has_value());
      EXPECT_TRUE(result.parts->empty());
      ++compared;
    } else {
      ASSERT_FALSE(result.error.has_value()) << result.error->text();
      expect_tensor(book, result.chain, expected);
      ++compared;
    }
  }
  EXPECT_EQ((std::array{compared, refused, gathered, others}), (std::array{363, 90, 11, 139}));
}

TEST(ChainCases, random_chains_are_what_torch_recorded) {
  int accepted = 0;
  int refused = 0;
  int copied = 0;
  int listed = 0;
  for (const json& line : lines_of("golden_torch_chains.jsonl")) {
    SCOPED_TRACE(line.dump());
    ChainBook book;
    const Walk result = walk(book, line["shape"], dtype_of(line["dtype"]), line["ops"]);
    if (line.contains("error_at")) {
      ++refused;
      ASSERT_TRUE(result.error.has_value());
      EXPECT_EQ(result.error_at, line["error_at"]) << result.error->text();
      EXPECT_EQ(fact_of(*result.error, "torch raises"), line["error_type"]) << result.error->text();
      continue;
    }
    ASSERT_FALSE(result.error.has_value()) << result.error->text();
    ++accepted;
    if (line.contains("parts") && line["parts"] == 0) {
      EXPECT_TRUE(result.parts.has_value() && result.parts->empty());
      continue;
    }
    const StridedTensor& tensor = book.geometry(result.chain);
    EXPECT_EQ(json(testing::numbers(tensor.sizes)), line["sizes"]);
    EXPECT_EQ(json(testing::numbers(tensor.strides)), line["strides"]);
    EXPECT_EQ(json(tensor.offset), line["offset"]);
    EXPECT_EQ(tensor.dtype, dtype_of(line["result"]));
    EXPECT_EQ(book.has_copied(result.chain), line.contains("copied"));
    copied += line.contains("copied") ? 1 : 0;
    if (!line.contains("elements")) continue;
    ++listed;
    Numbers elements;
    const Numbers bytes = testing::bytes_of_map(book.element_map(result.chain));
    const std::int64_t item_bytes = byte_size(tensor.dtype);
    for (std::size_t i = 0; i < bytes.size(); i += static_cast<std::size_t>(item_bytes)) {
      elements.push_back(bytes[i] / item_bytes);
    }
    EXPECT_EQ(json(elements), line["elements"]);
  }
  EXPECT_EQ((std::array{accepted, refused, copied, listed}), (std::array{1851, 649, 61, 51}));
}

// -- Refusals ------------------------------------------------------------------------------------

struct Refusal {
  Numbers shape;
  const char* ops;
};

// Each rule once, with the calls that lead to it.
const std::vector<Refusal> kRefusals = {
    {{}, R"([["narrow",[0,0,1],{}]])"},
    {{4, 6}, R"([["narrow",[0,0,-1],{}]])"},
    {{4, 6}, R"([["narrow",[-3,0,1],{}]])"},
    {{4, 6}, R"([["narrow",[0,-5,2],{}]])"},
    {{4, 6}, R"([["narrow",[1,2,3],{}],["narrow",[],{"start":-2,"dim":0,"length":3}]])"},
    {{4, 6}, R"([["narrow",[0,1],{}]])"},
    {{4, 6}, R"([["narrow",[0,1,2,3],{}]])"},
    {{4, 6}, R"([["narrow",[0,1],{"start":1,"length":2}]])"},
    {{4, 6}, R"([["narrow",[0,1],{"size":2}]])"},
    {{4, 6}, R"([["narrow",[0,1],{"unknown":2}]])"},
    {{4, 6}, R"([["narrow",[0,1.5,2],{}]])"},
    {{4, 6}, R"([["narrow",[true,1,2],{}]])"},
    {{4, 6}, R"([["narrow",[0,{"tensor":1},2],{}]])"},
    {{4, 6}, R"([["view",[5,5],{}]])"},
    {{4, 6}, R"([["view",[-1,-1],{}]])"},
    {{4, 6}, R"([["reshape",[{"tuple":[-2,12]}],{}]])"},
    {{0, 6}, R"([["view",[0,-1],{}]])"},
    {{4, 6}, R"([["view",[],{}]])"},
    {{4, 6}, R"([["view",[],{"size":24}]])"},
    {{4, 6}, R"([["view",[4,[6]],{}]])"},
    {{4, 6}, R"([["view",[1,1,1,1,1,1,1,4,6],{}]])"},
    {{4, 6}, R"([["t",[],{}],["view",[-1],{}]])"},
    {{}, R"([["view",[{"dtype":"uint8"}],{}]])"},
    {{4, 7}, R"([["view",[{"dtype":"float32"}],{}]])"},
    {{4, 7}, R"([["narrow",[1,1,2],{}],["view",[{"dtype":"float32"}],{}]])"},
    {{4, 7}, R"([["narrow",[1,2,4],{}],["view",[{"dtype":"float32"}],{}]])"},
    {{4, 6}, R"([["t",[],{}],["view",[{"dtype":"float32"}],{}]])"},
    {{4, 6}, R"([["t",[],{}],["view",[],{"dtype":{"dtype":"uint8"}}]])"},
    {{4, 6}, R"([["view",[{"dtype":"float4_e2m1fn"}],{}]])"},
    {{4, 6}, R"([["__getitem__",[4],{}]])"},
    {{}, R"([["__getitem__",[0],{}]])"},
    {{}, R"([["__getitem__",[{"slice":[null,null,null]}],{}]])"},
    {{}, R"([["__getitem__",[{"slice":[null,null,0]}],{}]])"},
    {{}, R"([["__getitem__",["x"],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"tuple":[0,1,2]}],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"slice":[null,null,-1]}],{}]])"},
    {{4, 6}, R"([["__getitem__",["x"],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"tuple":[0,1.5]}],{}]])"},
    {{4, 6}, R"([["__getitem__",[true],{}]])"},
    {{4, 6}, R"([["__getitem__",[[0,1]],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"tuple":[{"tensor":[0,2]},0]}],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"slice":[{"tensor":1},null,null]}],{}]])"},
    {{4, 6}, R"([["__getitem__",[0,1],{}]])"},
    {{1, 1, 1, 1, 1, 1, 1, 1}, R"([["unsqueeze",[0],{}]])"},
    {{4, 6}, R"([["unsqueeze",[3],{}]])"},
    {{4, 1}, R"([["squeeze",[{"tuple":[1,-1]}],{}]])"},
    {{4, 6}, R"([["squeeze",[2],{}]])"},
    {{4, 6}, R"([["transpose",[0,2],{}]])"},
    {{4, 6, 2}, R"([["t",[],{}]])"},
    {{4, 6}, R"([["t",[0],{}]])"},
    {{4, 6}, R"([["permute",[0],{}]])"},
    {{4, 6}, R"([["permute",[1,1],{}]])"},
    {{4, 6}, R"([["permute",[0,{"tuple":[1]}],{}]])"},
    {{4, 6}, R"([["flatten",[1,0],{}]])"},
    {{4, 6}, R"([["contiguous",[{"memory_format":"channels_last"}],{}]])"},
    {{4, 6}, R"([["contiguous",[],{"memory_format":{"memory_format":"channels_last"}}]])"},
    {{4, 6}, R"([["contiguous",[],{"memory_format":null}]])"},
    {{4, 6},
     R"([["t",[],{}],["contiguous",[],{"memory_format":{"memory_format":"preserve_format"}}]])"},
    {{}, R"([["chunk",[2],{}]])"},
    {{4, 6}, R"([["chunk",[0],{}]])"},
    {{0, 6}, R"([["chunk",[1000000],{}]])"},
    {{}, R"([["unbind",[],{}]])"},
    {{}, R"([["split",[1],{}]])"},
    {{4, 6}, R"([["split",[0],{}]])"},
    {{4, 6}, R"([["split",[[1,2]],{}]])"},
    {{4, 6}, R"([["split",[{"tuple":[5,-1]}],{"dim":0}]])"},
    {{}, R"([["select",[0,0],{}]])"},
    {{4, 6}, R"([["select",[2,0],{}]])"},
    {{4, 6}, R"([["select",[1,6],{}]])"},
    {{4, 6}, R"([["__getitem__",[{"slice":[null,null,4611686018427387904]}],{}]])"},
};

TEST(Chain, a_refusal_names_the_call_and_what_it_met) {
  std::string text;
  for (const Refusal& refusal : kRefusals) {
    ChainBook book;
    const Walk result = walk(book, refusal.shape, DType::bf16, json::parse(refusal.ops));
    ASSERT_TRUE(result.error.has_value()) << refusal.ops;
    text += std::string(name_of(result.error->code())) + ": " + result.error->text() + "\n\n";
  }
  expect_golden("chain_refusals.txt", text);
}

std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "accepted";
}

TEST(Chain, a_tensor_that_cannot_be_recorded_is_refused) {
  ChainBook book;
  EXPECT_EQ(refusal_of([&] { book.start(DType::f4, Numbers{4}); }),
            "unsupported: record: elements do not fill whole bytes\n  dtype  F4");
  EXPECT_EQ(refusal_of([&] { book.start(DType::u8, Numbers(9, 1)); }),
            "unsupported: record: a tensor has too many dimensions\n  dimensions  9\n  limit  8");
  EXPECT_EQ(book.chain_count(), 0);
}

TEST(Chain, one_and_several_are_told_apart) {
  ChainBook book;
  const int start = book.start(DType::u8, Numbers{4});
  EXPECT_EQ(refusal_of([&] { book.apply(start, Op::chunk(2, 0)); }),
            "invalid_argument: chunk: it yields several tensors\n  call  [\"chunk\",[2,0],{}]\n"
            "  geometry  U8[4]:[1]+0\n  chain  []");
  EXPECT_EQ(refusal_of([&] { book.apply_several(start, Op::t()); }),
            "invalid_argument: t: it yields one tensor\n  call  [\"t\",[],{}]\n"
            "  geometry  U8[4]:[1]+0\n  chain  []");
}

TEST(Chain, a_call_with_too_many_arguments_is_refused) {
  Op op(OpKind::permute);
  EXPECT_EQ(refusal_of([&] { op.add_integers(Numbers(49, 0)); }),
            "unsupported: record: a call has too many arguments\n  operation  permute\n"
            "  limit  48");
}

// -- The book ------------------------------------------------------------------------------------

TEST(Chain, equal_calls_are_one_chain) {
  ChainBook book;
  const int start = book.start(DType::bf16, Numbers{4, 6});
  EXPECT_EQ(book.start(DType::bf16, Numbers{4, 6}), start);
  EXPECT_NE(book.start(DType::f16, Numbers{4, 6}), start);
  EXPECT_NE(book.start(DType::bf16, Numbers{6, 4}), start);
  const int narrowed = book.apply(start, Op::narrow(0, 1, 2));
  EXPECT_EQ(book.apply(start, Op::narrow(0, 1, 2)), narrowed);
  EXPECT_NE(book.apply(start, Op::narrow(-2, 1, 2)), narrowed);
  EXPECT_EQ(book.geometry_index(book.apply(start, Op::narrow(-2, 1, 2))),
            book.geometry_index(narrowed));
  const std::span<const int> first = book.apply_several(start, Op::chunk(2, 0));
  const std::vector<int> chunks(first.begin(), first.end());
  const std::span<const int> again = book.apply_several(start, Op::chunk(2, 0));
  EXPECT_EQ(std::vector<int>(again.begin(), again.end()), chunks);
  EXPECT_EQ(book.apply(start, Op::select(1, 2)), book.apply(start, Op::select(-1, 2)));
}

TEST(Chain, split_and_select_are_recorded_as_what_they_mean) {
  ChainBook book;
  const int start = book.start(DType::bf16, Numbers{4, 6});
  const std::span<const int> parts = book.apply_several(start, Op::split(4, 1));
  ASSERT_EQ(parts.size(), 2U);
  const std::array<int, 2> both = {parts[0], parts[1]};
  EXPECT_EQ(book.calls(both[0]), R"([["narrow",[1,0,4],{}]])");
  EXPECT_EQ(book.calls(both[1]), R"([["narrow",[1,4,2],{}]])");
  EXPECT_EQ(book.apply(start, Op::narrow(1, 4, 2)), both[1]);
  EXPECT_EQ(book.calls(book.apply(start, Op::select(0, -1))), R"([["__getitem__",[-1],{}]])");
  EXPECT_EQ(book.calls(book.apply(start, Op::select(-1, 2))),
            R"([["__getitem__",[{"tuple":[{"slice":[null,null,null]},2]}],{}]])");
}

TEST(Chain, the_wire_key_tells_name_and_spelling) {
  ChainBook book;
  const int start = book.start(DType::bf16, Numbers{4, 6});
  EXPECT_EQ(book.wire_key("w", start), R"(["w",[]])");
  const json by_keyword = {"narrow", json::array(), {{"start", 1}, {"length", 2}, {"dim", 0}}};
  const int keyword = book.apply(start, op_from_json(by_keyword));
  EXPECT_EQ(book.wire_key("w", keyword), R"(["w",[["narrow",[],{"dim":0,"length":2,"start":1}]]])");
  const int position = book.apply(start, Op::narrow(0, 1, 2));
  EXPECT_EQ(book.wire_key("a\"b\n", position), R"(["a\"b\n",[["narrow",[0,1,2],{}]]])");
  const std::vector<int> parts = [&] {
    const std::span<const int> found = book.apply_several(position, Op::unbind(0));
    return std::vector<int>(found.begin(), found.end());
  }();
  EXPECT_EQ(book.wire_key("w", book.apply(parts[1], Op::view(DType::u8))),
            R"(["w",[["narrow",[0,1,2],{}],["unbind",[0],{}],["__getitem__",[1],{}],)"
            R"(["view",[{"dtype":"uint8"}],{}]]])");
}

TEST(Chain, a_call_that_was_made_before_allocates_nothing) {
  ChainBook book;
  const auto record = [&] {
    int chain = book.start(DType::bf16, Numbers{8, 4, 6});
    chain = book.apply(chain, Op::unsqueeze(0));
    chain = book.apply_several(chain, Op::unbind(0))[0];
    chain = book.apply(chain, Op::select(0, 3));
    return book.apply(chain, Op::narrow(0, 2, 2));
  };
  const Numbers shape{8, 4, 6};
  const int first = record();
  const std::int64_t before = testing::allocation_count;
  const int start = book.start(DType::bf16, shape);
  const int unbound = book.apply_several(book.apply(start, Op::unsqueeze(0)), Op::unbind(0))[0];
  const int last = book.apply(book.apply(unbound, Op::select(0, 3)), Op::narrow(0, 2, 2));
  EXPECT_EQ(testing::allocation_count, before);
  EXPECT_EQ(last, first);
}

TEST(Chain, geometries_are_as_many_as_distinct_ones) {
  ChainBook book;
  const int start = book.start(DType::bf16, Numbers{4096, 64});
  for (std::int64_t row = 0; row < 4096; ++row) {
    book.apply(book.apply(start, Op::narrow(0, row, 1)), Op::narrow(0, 0, 1));
  }
  EXPECT_EQ(book.chain_count(), 1 + 2 * 4096);
  EXPECT_EQ(book.geometry_count(), 1 + 4096);
}

}  // namespace
}  // namespace crossmesh
