// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/lower.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <array>
#include <map>
#include <random>
#include <sstream>

#include "crossmesh/target/testing.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

using testing::index_of;
using testing::json;
using testing::list_after;
using testing::list_parts;
using testing::ListTensor;
using testing::Numbers;
using testing::op_from_json;
using testing::product;

// -- Two executions of one copy ------------------------------------------------------------------

std::int64_t place_in(const StridedRegion& region, const Numbers& index) {
  std::int64_t place = region.view.offset;
  for (std::size_t d = 0; d < index.size(); ++d) {
    place += index[d] * region.view.strides[static_cast<int>(d)];
  }
  return place;
}

// The bytes of the storage after copy_, as numbers of the tensor's bytes, or -1 where nothing came.
// Element by element, both sides in row-major order.
Numbers copied(const ListTensor& list, const CopyTarget& target) {
  const std::int64_t item = list.item_bytes;
  Numbers storage(static_cast<std::size_t>(target.storage_size * item), -1);
  const Numbers sizes = testing::numbers(target.region.shape);
  for (std::int64_t i = 0; i < product(sizes); ++i) {
    const std::int64_t place = place_in(target.region, index_of(i, sizes));
    for (std::int64_t b = 0; b < item; ++b) {
      storage.at(static_cast<std::size_t>(place * item + b)) =
          list.bytes.at(static_cast<std::size_t>(i * item + b));
    }
  }
  return storage;
}

// The same by the pieces: box by box, digit by digit.
Numbers executed(const LoweredCopy& copy, std::int64_t storage_bytes) {
  const std::int64_t item = byte_size(copy.target_dtype);
  Numbers storage(static_cast<std::size_t>(storage_bytes), -1);
  const Numbers factors = testing::numbers(copy.space.factors);
  for (const Piece& piece : copy.pieces) {
    EXPECT_TRUE(contains(whole(copy.space.factors), piece.box)) << to_string(piece.box);
    const Numbers shape = testing::numbers(piece.box.shape);
    for (std::int64_t i = 0; i < product(shape); ++i) {
      Numbers index = index_of(i, shape);
      const std::int64_t place = place_in({piece.box.shape, piece.view}, index);
      for (std::size_t f = 0; f < index.size(); ++f) {
        index[f] += piece.box.origin[static_cast<int>(f)];
      }
      const std::int64_t element = testing::flat_of(index, factors);
      for (std::int64_t b = 0; b < item; ++b) {
        std::int64_t& byte = storage.at(static_cast<std::size_t>(place * item + b));
        EXPECT_EQ(byte, -1) << "written twice";
        byte = element * item + b;
      }
    }
  }
  return storage;
}

// Destinations of `sizes`: dense, with gaps, and with the dimensions stored the other way round.
std::vector<CopyTarget> targets_of(const Numbers& sizes, DType dtype) {
  const Shape shape{std::span(sizes)};
  Shape wide;
  Shape turned;
  for (int d = 0; d < shape.size(); ++d) {
    wide.push_back(shape[d] + 1);
    turned.push_back(shape[shape.size() - 1 - d]);
  }
  const Strides turned_strides = contiguous_strides(turned);
  Strides backwards;
  for (int d = shape.size() - 1; d >= 0; --d) backwards.push_back(turned_strides[d]);
  const std::int64_t count = product(sizes);
  return {
      {dtype, {shape, {0, contiguous_strides(shape)}}, count},
      {dtype, {shape, {3, contiguous_strides(wide)}}, 3 + volume(whole(wide))},
      {dtype, {shape, {1, backwards}}, 1 + count},
  };
}

struct Tally {
  int lowered = 0;
  int pieces_max = 0;
  std::map<std::string, int> opaque;

  std::string text() const {
    std::string result = fmt::format("{} copies, {} pieces at most", lowered, pieces_max);
    for (const auto& [reason, count] : opaque) result += fmt::format("; {}: {}", reason, count);
    return result;
  }
};

// Lowers into each destination and compares what the pieces do with what copy_ does.
void expect_copies(const ElementMap& map, const ListTensor& list, Tally& tally) {
  ASSERT_EQ(testing::bytes_of_map(map), list.bytes);
  for (const CopyTarget& target : targets_of(list.sizes, map.result.dtype)) {
    const auto answer = lower(map, target);
    if (!std::holds_alternative<LoweredCopy>(answer)) {
      ++tally.opaque[std::get<OpaqueCopy>(answer).reason];
      continue;
    }
    const LoweredCopy& copy = std::get<LoweredCopy>(answer);
    ++tally.lowered;
    tally.pieces_max = std::max(tally.pieces_max, static_cast<int>(copy.pieces.size()));
    ASSERT_EQ(tensor_shape(copy.space), map.tensor.sizes);
    ASSERT_EQ(executed(copy, target.storage_size * list.item_bytes), copied(list, target))
        << to_string(map.result) << " into " << to_string(target.region);
  }
}

// -- Calls ---------------------------------------------------------------------------------------

// Calls that are legal on a tensor of `sizes`, whatever its strides; views may be refused.
std::vector<json> calls_on(const Numbers& sizes) {
  std::vector<json> calls;
  const auto add = [&](const char* name, json args) {
    calls.push_back({name, std::move(args), json::object()});
  };
  const std::int64_t dims = static_cast<std::int64_t>(sizes.size());
  for (std::int64_t d = 0; d < dims; ++d) {
    const std::int64_t extent = sizes[static_cast<std::size_t>(d)];
    for (std::int64_t start = 0; start <= extent; ++start) {
      for (std::int64_t length = 0; start + length <= extent; ++length) {
        add("narrow", {d - dims, start, length});
      }
    }
    json item = json::array();
    for (std::int64_t i = 0; i < d; ++i) item.push_back({{"slice", {nullptr, nullptr, nullptr}}});
    const auto add_item = [&](json last) {
      json items = item;
      items.push_back(std::move(last));
      add("__getitem__", {{{"tuple", std::move(items)}}});
    };
    for (std::int64_t i = 0; i < extent; ++i) add_item(i - extent);
    add_item({{"slice", {nullptr, nullptr, 2}}});
    add_item({{"slice", {1, nullptr, 2}}});
    add_item({{"slice", {nullptr, -1, 3}}});
    add_item(nullptr);
    add("unsqueeze", {d});
    add("squeeze", {d});
    add("flatten", {d});
    for (std::int64_t e = 0; e < d; ++e) add("transpose", {d, e});
    if (extent > 0 && extent % 2 == 0) {
      json cut = json(sizes);
      cut[static_cast<std::size_t>(d)] = 2;
      cut.insert(cut.begin() + d + 1, extent / 2);
      add("view", {{{"tuple", cut}}});
    }
  }
  add("unsqueeze", {-1});
  add("squeeze", json::array());
  add("contiguous", json::array());
  add("__getitem__", {{{"ellipsis", true}}});
  if (product(sizes) > 0) {
    add("view", {{{"tuple", {-1}}}});
    add("reshape", {-1});
    if (product(sizes) % 2 == 0) add("reshape", {-1, 2});
    if (product(sizes) % 3 == 0) add("reshape", {3, -1});
  }
  if (dims <= 2) add("t", json::array());
  json order = json::array();
  for (std::int64_t d = 0; d < dims; ++d) order.push_back((d + 1) % dims);
  add("permute", {{{"tuple", order}}});
  return calls;
}

std::vector<Numbers> small_shapes(int dims_max, std::int64_t extent_max) {
  std::vector<Numbers> shapes{{}};
  std::size_t begin = 0;
  for (int dims = 1; dims <= dims_max; ++dims) {
    const std::size_t end = shapes.size();
    for (; begin < end; ++begin) {
      for (std::int64_t extent = 0; extent <= extent_max; ++extent) {
        Numbers shape = shapes[begin];
        shape.push_back(extent);
        shapes.push_back(std::move(shape));
      }
    }
  }
  return shapes;
}

// The chain after `call`, or nothing where it is refused.
std::optional<int> applied(ChainBook& book, int chain, const json& call) {
  try {
    return book.apply(chain, op_from_json(call));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.text();
    EXPECT_EQ(call[0], "view") << error.text();
    return std::nullopt;
  }
}

// -- Exhaustive and random -----------------------------------------------------------------------

TEST(LowerAll, one_call_on_small_shapes_copies_as_torch_does) {
  Tally tally;
  ChainBook book;
  for (const Numbers& shape : small_shapes(3, 4)) {
    const int start = book.start(DType::u8, shape);
    const ListTensor list = testing::whole_list(shape, 1);
    expect_copies(book.element_map(start), list, tally);
    for (const json& call : calls_on(shape)) {
      const std::optional<int> chain = applied(book, start, call);
      ASSERT_TRUE(chain.has_value()) << call;
      expect_copies(book.element_map(*chain), list_after(list, call), tally);
      if (HasFatalFailure()) FAIL() << json(shape) << call;
    }
  }
  EXPECT_EQ(tally.text(), "26112 copies, 24 pieces at most");
}

TEST(LowerAll, two_calls_on_small_shapes_copy_as_torch_does) {
  Tally tally;
  ChainBook book;
  for (const Numbers& shape : small_shapes(2, 4)) {
    const int start = book.start(DType::u8, shape);
    const ListTensor list = testing::whole_list(shape, 1);
    for (const json& call : calls_on(shape)) {
      const std::optional<int> first = applied(book, start, call);
      const ListTensor after = list_after(list, call);
      for (const json& next : calls_on(after.sizes)) {
        const std::optional<int> chain = applied(book, first.value(), next);
        if (!chain) continue;
        expect_copies(book.element_map(*chain), list_after(after, next), tally);
        if (HasFatalFailure()) FAIL() << json(shape) << call << next;
      }
    }
  }
  EXPECT_EQ(tally.text(), "133860 copies, 8 pieces at most");
}

TEST(LowerAll, random_chains_copy_as_torch_does) {
  Tally tally;
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr std::array kDTypes = {DType::u8, DType::bf16, DType::f32};
  constexpr std::array kNames = {"uint8", "bfloat16", "float32"};
  for (int round = 0; round < 3000; ++round) {
    ChainBook book;
    Numbers shape;
    for (std::size_t d = below(4); d > 0; --d)
      shape.push_back(1 + static_cast<std::int64_t>(below(8)));
    const DType dtype = kDTypes[below(3)];
    int chain = book.start(dtype, shape);
    ListTensor list = testing::whole_list(shape, byte_size(dtype));
    json trace = json::array();
    for (std::size_t length = 1 + below(5); length > 0; --length) {
      std::vector<json> calls = calls_on(list.sizes);
      json call = calls[below(calls.size())];
      if (below(6) == 0) call = {"view", {{{"dtype", kNames[below(3)]}}}, json::object()};
      const bool by_dtype = call.dump().find("dtype") != std::string::npos;
      try {
        chain = book.apply(chain, op_from_json(call));
      } catch (const Error& error) {
        ASSERT_EQ(call[0], "view") << error.text();
        continue;
      }
      list = list_after(list, call);
      trace.push_back(call);
      ASSERT_TRUE(!by_dtype || product(list.sizes) * list.item_bytes ==
                                   static_cast<std::int64_t>(list.bytes.size()));
    }
    expect_copies(book.element_map(chain), list, tally);
    if (HasFatalFailure()) FAIL() << json(shape) << name_of(dtype) << trace;
  }
  EXPECT_EQ(tally.text(), "8457 copies, 7 pieces at most; the copy moves parts of elements: 543");
}

// -- What loaders do -----------------------------------------------------------------------------

TEST(LowerScatters, every_copy_of_real_loaders_is_a_box) {
  std::istringstream text(test_data("golden_scatters.jsonl"));
  int boxes = 0;
  int empty = 0;
  ChainBook book;
  for (std::string line; std::getline(text, line);) {
    SCOPED_TRACE(line);
    const json scatter = json::parse(line);
    const DType dtype = dtype_from_name(scatter["dtype"].get<std::string>()).value();
    const Numbers shape = scatter["source_shape"].get<Numbers>();
    int chain = book.start(dtype, shape);
    ListTensor list = testing::whole_list(shape, 1);
    std::optional<json> parts_of;
    for (const json& call : scatter["chain"]) {
      if (parts_of) {
        const std::size_t at = call[1][0].get<std::size_t>();
        chain = book.apply_several(chain, op_from_json(*parts_of))[at];
        list = list_parts(list, *parts_of)[at];
        parts_of.reset();
      } else if (call[0] == "chunk" || call[0] == "unbind") {
        parts_of = call;
      } else {
        chain = book.apply(chain, op_from_json(call));
        list = list_after(list, call);
      }
    }
    const Numbers sizes = scatter["shape"].get<Numbers>();
    const Numbers strides = scatter["strides"].get<Numbers>();
    const CopyTarget target{dtype,
                            {Shape(std::span(sizes)),
                             {scatter["offset"].get<std::int64_t>(), Strides(std::span(strides))}},
                            product(scatter["parameter_shape"].get<Numbers>())};
    const auto answer = lower(book.element_map(chain), target);
    ASSERT_TRUE(std::holds_alternative<LoweredCopy>(answer));
    LoweredCopy copy = std::get<LoweredCopy>(answer);
    ASSERT_EQ(copy.pieces.size(), product(sizes) > 0 ? 1U : 0U);
    (copy.pieces.empty() ? empty : boxes) += 1;
    // The oracle numbers elements; one byte each keeps it small.
    copy.target_dtype = DType::u8;
    ASSERT_EQ(executed(copy, target.storage_size), copied(list, target));
  }
  EXPECT_EQ((std::array{boxes, empty}), (std::array{1925, 1}));
}

// -- Rules ---------------------------------------------------------------------------------------

ElementMap map_of(const Numbers& shape, DType dtype, const std::string& calls) {
  ChainBook book;
  int chain = book.start(dtype, shape);
  std::optional<json> several;
  for (const json& call : json::parse(calls)) {
    if (several) {
      chain = book.apply_several(chain, op_from_json(*several))[call[1][0].get<std::size_t>()];
      several.reset();
    } else if (yields_several(op_from_json(call).kind())) {
      several = call;
    } else {
      chain = book.apply(chain, op_from_json(call));
    }
  }
  return book.element_map(chain);
}

CopyTarget dense_target(const Numbers& sizes, DType dtype) { return targets_of(sizes, dtype)[0]; }

std::string outcome_of(const ElementMap& map, const CopyTarget& target) {
  try {
    const auto answer = lower(map, target);
    if (const OpaqueCopy* opaque = std::get_if<OpaqueCopy>(&answer))
      return "opaque: " + opaque->reason;
    const LoweredCopy& copy = std::get<LoweredCopy>(answer);
    std::string text = fmt::format("{} {}>{}", to_string(copy.space), name_of(copy.source_dtype),
                                   name_of(copy.target_dtype));
    for (const Piece& piece : copy.pieces) {
      text += fmt::format("; {} at {}+{}", to_string(piece.box), to_string(piece.view.strides),
                          piece.view.offset);
    }
    return text;
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
}

TEST(Lower, boxes_are_as_few_as_the_cuts) {
  struct Case {
    const char* name;
    Numbers shape;
    const char* calls;
    Numbers sizes;
    Numbers strides;
    std::int64_t offset;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"whole", {4, 6}, "[]", {4, 6}, {6, 1}, 0, "[4, 6] U8>U8; [0:4, 0:6] at [6, 1]+0"},
      {"rows into a fused parameter",
       {8, 6},
       R"([["narrow",[0,4,2],{}]])",
       {2, 6},
       {6, 1},
       12,
       "[8, 6] U8>U8; [4:6, 0:6] at [6, 1]+12"},
      {"columns",
       {4, 6},
       R"([["narrow",[1,3,3],{}]])",
       {4, 3},
       {3, 1},
       0,
       "[4, 6] U8>U8; [0:4, 3:6] at [3, 1]+0"},
      {"one row of a wide parameter",
       {4, 3},
       R"([["narrow",[0,2,1],{}]])",
       {1, 3},
       {9, 1},
       18,
       "[4, 3] U8>U8; [2:3, 0:3] at [9, 1]+18"},
      {"transposed",
       {4, 6},
       R"([["t",[],{}]])",
       {6, 4},
       {4, 1},
       0,
       "[4, 6] U8>U8; [0:4, 0:6] at [1, 4]+0"},
      {"transposed by a copy",
       {4, 6},
       R"([["t",[],{}],["contiguous",[],{}]])",
       {6, 4},
       {4, 1},
       0,
       "[4, 6] U8>U8; [0:4, 0:6] at [1, 4]+0"},
      {"every second row",
       {8, 6},
       R"([["__getitem__",[{"slice":[1,null,2]}],{}]])",
       {4, 6},
       {6, 1},
       0,
       "[8=4*2, 6] U8>U8; [0:4, 1:2, 0:6] at [6, 6, 1]+0"},
      {"an expert of a stack",
       {8, 4, 6},
       R"([["unbind",[],{}],["__getitem__",[3],{}]])",
       {4, 6},
       {6, 1},
       24,
       "[8, 4, 6] U8>U8; [3:4, 0:4, 0:6] at [24, 6, 1]+24"},
      {"a group of heads",
       {12, 5},
       R"([["view",[2,6,5],{}],["narrow",[1,4,2],{}],["reshape",[4,5],{}]])",
       {4, 5},
       {5, 1},
       0,
       "[12=2*6, 5] U8>U8; [0:2, 4:6, 0:5] at [10, 5, 1]+0"},
      {"a scalar", {}, R"([["reshape",[1],{}]])", {1}, {1}, 2, "[] U8>U8; [] at []+2"},
      {"leading ones of the destination",
       {6},
       "[]",
       {1, 1, 6},
       {99, 6, 1},
       0,
       "[6] U8>U8; [0:6] at [1]+0"},
      {"no elements", {4, 6}, R"([["narrow",[0,2,0],{}]])", {0, 6}, {6, 1}, 0, "[4, 6] U8>U8"},
      {"a run that crosses rows",
       {4, 6},
       R"([["view",[-1],{}],["narrow",[0,4,15],{}]])",
       {15},
       {1},
       0,
       "[4, 6] U8>U8; [0:1, 4:6] at [2, 1]+0; [1:3, 0:6] at [6, 1]+2; [3:4, 0:1] at [1, 1]+14"},
  };
  for (const Case& c : cases) {
    const StridedRegion region{Shape(std::span(c.sizes)),
                               {c.offset, Strides(std::span(c.strides))}};
    EXPECT_EQ(outcome_of(map_of(c.shape, DType::u8, c.calls), {DType::u8, region, 100}), c.expected)
        << c.name;
  }
}

TEST(Lower, pieces_do_not_grow_with_rows) {
  for (const std::int64_t rows : {4, 400, 40000}) {
    // Rows of 4 laid over rows of 6 repeat every 12 elements.
    const ElementMap map =
        map_of({rows, 6}, DType::u8, fmt::format(R"([["view",[{},4],{{}}]])", rows * 6 / 4));
    const StridedRegion region{{rows * 6 / 4, 4}, {0, {5, 1}}};
    const auto answer = lower(map, {DType::u8, region, rows * 10});
    ASSERT_TRUE(std::holds_alternative<LoweredCopy>(answer));
    EXPECT_EQ(std::get<LoweredCopy>(answer).pieces.size(), 4U);
  }
}

TEST(Lower, dtypes_move_bits_or_convert) {
  const auto outcome = [](const char* calls, DType tensor, DType parameter, Numbers sizes) {
    return outcome_of(map_of({2, 4}, tensor, calls), dense_target(sizes, parameter));
  };
  EXPECT_EQ(outcome("[]", DType::bf16, DType::f32, {2, 4}),
            "[2, 4] BF16>F32; [0:2, 0:4] at [4, 1]+0");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"float16"}],{}]])", DType::bf16, DType::f32, {2, 4}),
            "[2, 4] F16>F32; [0:2, 0:4] at [4, 1]+0");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"uint8"}],{}]])", DType::f8_e4m3, DType::u8, {2, 4}),
            "[2, 4] F8_E4M3>F8_E4M3; [0:2, 0:4] at [4, 1]+0");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"uint8"}],{}]])", DType::bf16, DType::u8, {2, 8}),
            "[2, 4] BF16>BF16; [0:2, 0:4] at [4, 1]+0");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"bfloat16"}],{}]])", DType::u8, DType::bf16, {2, 2}),
            "[2, 4] U8>U8; [0:2, 0:4] at [4, 1]+0");
  EXPECT_EQ(outcome("[]", DType::f8_e4m3, DType::bf16, {2, 4}),
            "opaque: no conversion from F8_E4M3 to BF16");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"bfloat16"}],{}]])", DType::u8, DType::f32, {2, 2}),
            "opaque: a conversion of U8 that was viewed as BF16");
  EXPECT_EQ(outcome(R"([["view",[{"dtype":"uint8"}],{}],["narrow",[1,1,4],{}]])", DType::bf16,
                    DType::u8, {2, 4}),
            "opaque: the copy moves parts of elements");
}

TEST(Lower, what_no_piece_says_is_opaque) {
  const ElementMap row = map_of({1, 6}, DType::u8, "[]");
  EXPECT_EQ(outcome_of(row, dense_target({4, 6}, DType::u8)), "opaque: the copy repeats elements");
  EXPECT_EQ(outcome_of(map_of({3, 3}, DType::u8, "[]"), {DType::u8, {{3, 3}, {0, {1, 1}}}, 9}),
            "opaque: the destination may overlap itself");
  // A prime number of rows has no factors, so that every second one is a box of its own.
  const ElementMap odd =
      map_of({521, 2}, DType::u8, R"([["__getitem__",[{"slice":[null,null,2]}],{}]])");
  EXPECT_EQ(outcome_of(odd, dense_target({261, 2}, DType::u8)),
            "opaque: the copy moves more than 256 boxes");
  const ElementMap tangled = map_of({509, 128}, DType::u8,
                                    R"([["t",[],{}],["reshape",[509,128],{}],["t",[],{}],)"
                                    R"(["flatten",[],{}]])");
  EXPECT_EQ(outcome_of(tangled, dense_target({509 * 128}, DType::u8)),
            "opaque: the copy moves more than 256 boxes");
}

TEST(Lower, what_torch_refuses_is_refused) {
  const ElementMap map = map_of({4, 6}, DType::u8, "[]");
  const std::string facts = "\n  source  U8[4, 6]:[6, 1]+0\n  target  U8";
  const auto outcome = [&](const Shape& shape, const View& view, std::int64_t storage) {
    return outcome_of(map, {DType::u8, {shape, view}, storage});
  };
  EXPECT_EQ(outcome({24}, {0, {1}}, 24),
            "invalid_argument: copy_: the sizes do not match" + facts + "[24]:[1]+0");
  EXPECT_EQ(outcome({2, 12}, {0, {12, 1}}, 24),
            "invalid_argument: copy_: the sizes do not match" + facts + "[2, 12]:[12, 1]+0");
  EXPECT_EQ(outcome({4, 6}, {1, {6, 1}}, 24),
            "invalid_argument: copy_: the destination passes the end of its storage" + facts +
                "[4, 6]:[6, 1]+1\n  last element  24\n  storage  24");
  EXPECT_EQ(outcome({4, 6}, {0, {0, 1}}, 24),
            "invalid_argument: copy_: the destination shows one element more than once" + facts +
                "[4, 6]:[0, 1]+0");
  EXPECT_EQ(outcome({4, 6}, {24, {-6, 1}}, 48),
            "invalid_argument: copy_: the destination has a negative number" + facts +
                "[4, 6]:[-6, 1]+24");
  EXPECT_EQ(outcome({4, 6}, {0, {6}}, 24),
            "invalid_argument: copy_: the destination has not a stride for each size" + facts +
                "[4, 6]:[6]+0");
}

// Torch 2.13, tried: which sizes copy_ takes.
TEST(Lower, sizes_match_by_the_rule_of_torch) {
  struct Case {
    Numbers source;
    Numbers target;
    bool accepted;
  };
  const std::vector<Case> cases = {
      {{6}, {1, 6}, true},
      {{1, 6}, {6}, false},
      {{1, 1, 6}, {6}, false},
      {{6}, {2, 3}, false},
      {{1}, {}, false},
      {{}, {1}, true},
      {{1, 1}, {}, false},
      {{1, 6}, {4, 6}, true},
      {{0}, {1}, false},
      {{1}, {0}, true},
      {{1, 1}, {2, 3}, true},
      {{3}, {0}, false},
      {{2, 1, 3}, {2, 4, 3}, true},
      {{0}, {0, 0}, true},
      {{2, 0}, {0}, false},
      {{0, 2}, {2}, false},
      {{0, 2}, {0, 1}, false},
      {{0, 1}, {0, 2}, true},
  };
  for (const Case& c : cases) {
    const std::string outcome =
        outcome_of(map_of(c.source, DType::u8, "[]"), dense_target(c.target, DType::u8));
    EXPECT_EQ(outcome.find("the sizes do not match") == std::string::npos, c.accepted)
        << json(c.source) << " into " << json(c.target) << ": " << outcome;
  }
}

// -- Canonical chains ----------------------------------------------------------------------------

TEST(Canonical, spellings_of_one_map_are_equal) {
  const auto equal = [](const Numbers& shape, const char* a, const char* b) {
    const CanonicalChain first = canonical(map_of(shape, DType::bf16, a));
    const CanonicalChain second = canonical(map_of(shape, DType::bf16, b));
    EXPECT_EQ(first == second, fingerprint(first) == fingerprint(second));
    return first == second;
  };
  constexpr const char* kNothing = "[]";
  EXPECT_TRUE(equal({8, 6}, R"([["narrow",[0,1,6],{}],["narrow",[0,2,3],{}]])",
                    R"([["narrow",[-2,3,3],{}]])"));
  EXPECT_TRUE(equal({4, 6}, R"([["t",[],{}],["t",[],{}]])", kNothing));
  EXPECT_TRUE(equal({4, 6}, R"([["narrow",[0,0,4],{}]])", kNothing));
  EXPECT_TRUE(equal({4, 6}, R"([["chunk",[2,1],{}],["__getitem__",[1],{}]])",
                    R"([["narrow",[],{"dim":1,"start":-3,"length":3}]])"));
  EXPECT_TRUE(
      equal({4, 6}, R"([["unsqueeze",[0],{}],["unbind",[],{}],["__getitem__",[0],{}]])", kNothing));
  EXPECT_TRUE(equal({4, 6}, R"([["permute",[1,0],{}]])", R"([["transpose",[-1,-2],{}]])"));
  EXPECT_TRUE(equal({4, 6}, R"([["t",[],{}],["contiguous",[],{}]])", R"([["t",[],{}]])"));
  EXPECT_TRUE(equal({4, 6}, R"([["view",[-1],{}],["view",[4,6],{}]])", kNothing));
  EXPECT_TRUE(equal(
      {4, 6}, R"([["view",[{"dtype":"uint8"}],{}],["view",[{"dtype":"bfloat16"}],{}]])", kNothing));
  EXPECT_TRUE(equal({4, 1}, R"([["t",[],{}]])", R"([["view",[1,4],{}]])"));
  EXPECT_FALSE(equal({4, 4}, R"([["t",[],{}]])", kNothing));
  EXPECT_FALSE(equal({4, 6}, R"([["narrow",[0,1,2],{}]])", R"([["narrow",[0,2,2],{}]])"));
  EXPECT_FALSE(equal({4, 6}, R"([["view",[{"dtype":"int16"}],{}]])", kNothing));
  EXPECT_FALSE(equal({4, 6}, R"([["view",[-1],{}]])", kNothing));
}

TEST(Canonical, equal_means_equal_elements_in_equal_order) {
  int chains = 0;
  int maps = 0;
  for (const Numbers& shape : small_shapes(2, 4)) {
    ChainBook book;
    std::map<std::string, Fingerprint> fingerprint_of_list;
    std::map<Fingerprint, std::string> list_of_fingerprint;
    const int start = book.start(DType::u8, shape);
    const ListTensor list = testing::whole_list(shape, 1);
    for (const json& call : calls_on(shape)) {
      const int first = applied(book, start, call).value();
      const ListTensor after = list_after(list, call);
      for (const json& next : calls_on(after.sizes)) {
        const std::optional<int> chain = applied(book, first, next);
        if (!chain) continue;
        ++chains;
        const ListTensor shown = list_after(after, next);
        const std::string text = json(shown.sizes).dump() + json(shown.bytes).dump();
        const Fingerprint print = fingerprint(canonical(book.element_map(*chain)));
        EXPECT_EQ(list_of_fingerprint.emplace(print, text).first->second, text);
        if (book.has_copied(*chain)) continue;
        EXPECT_EQ(fingerprint_of_list.emplace(text, print).first->second, print)
            << json(shape) << book.calls(*chain);
      }
    }
    maps += static_cast<int>(list_of_fingerprint.size());
  }
  EXPECT_EQ((std::array{chains, maps}), (std::array{44620, 2908}));
}

TEST(Canonical, a_tangled_chain_equals_itself_alone) {
  const char* calls = R"([["t",[],{}],["reshape",[509,128],{}],["t",[],{}],["flatten",[],{}]])";
  const CanonicalChain tangled = canonical(map_of({509, 128}, DType::u8, calls));
  EXPECT_TRUE(tangled.unresolved.has_value());
  EXPECT_EQ(tangled, canonical(map_of({509, 128}, DType::u8, calls)));
  EXPECT_NE(fingerprint(tangled), fingerprint(canonical(map_of({509, 128}, DType::u8, "[]"))));
}

}  // namespace
}  // namespace crossmesh
