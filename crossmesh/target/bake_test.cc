// SPDX-License-Identifier: Apache-2.0
// Bakes against an oracle that runs the loader: every element of every memory holds a number, each
// event writes numbers, and what the layout says must put the same numbers there.
#include "crossmesh/target/bake.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "crossmesh/base/error.h"
#include "crossmesh/target/merge.h"
#include "crossmesh/target/testing.h"
#include "tests/golden.h"

namespace crossmesh {
namespace {

using testing::Numbers;
using Kind = BakeEvent::Kind;

// A record that grows as a loader would make it. Sizes count bytes: every dtype is u8 unless told.
class Loader {
 public:
  int tensor(const std::string& name, const Numbers& shape, DType dtype = DType::u8) {
    record.tensors.push_back({name, dtype, shape});
    chains.push_back(book.start(dtype, shape));
    return current = static_cast<int>(record.tensors.size()) - 1;
  }

  void parameter(const std::string& name, const Shape& shape, int storage, std::int64_t offset = 0,
                 DType dtype = DType::u8) {
    record.parameters.push_back(
        {name, dtype, shape, contiguous_strides(shape), storage, offset, false});
  }

  void copy(int source, int chain, int storage, const StridedRegion& region,
            DType dtype = DType::u8) {
    BakeEvent event{Kind::copy, current, storage, dtype, region};
    event.source = source;
    event.chain = chain;
    record.events.push_back(event);
  }

  void copy_whole(int source, int storage, const StridedRegion& region) {
    copy(source, chains.at(static_cast<std::size_t>(source)), storage, region);
  }

  void fill(int storage, const StridedRegion& region, std::uint64_t value) {
    BakeEvent event{Kind::fill, current, storage, DType::u8, region};
    event.value_bits = value;
    record.events.push_back(event);
  }

  void write(int storage, const StridedRegion& region, std::vector<int> tensors = {}) {
    BakeEvent event{Kind::write, current, storage, DType::u8, region};
    event.tensors = std::move(tensors);
    event.reason = "arithmetic";
    record.events.push_back(event);
  }

  BakeResult bake() const { return crossmesh::bake(record, book); }

  BakeRecord record;
  ChainBook book;
  std::vector<int> chains;  // of whole tensors
  int current = -1;
};

StridedRegion row(std::int64_t first, std::int64_t count) { return {{count}, {first, {1}}}; }

std::string fates(const BakeResult& result) {
  std::string text;
  for (const BakedTensor& tensor : result.tensors) {
    text += std::string(name_of(tensor.fate)) + (tensor.reason.empty() ? "" : ": ") +
            tensor.reason + "\n";
  }
  return text;
}

std::string text_of(const BakeResult& result) { return fates(result) + explain(result.layout); }

// -- The oracle ----------------------------------------------------------------------------------

// Who wrote an element last: which byte of which tensor, a constant, an unknown value, or nobody.
struct Mark {
  int tensor = -1;
  std::int64_t byte = -1;
  std::int64_t constant = -1;
  int unknown = -1;  // the event

  auto operator<=>(const Mark&) const = default;
};

using Memory = std::map<int, std::vector<Mark>>;

Numbers places(const StridedRegion& region) {
  return testing::places({DType::u8, region.shape, region.view.strides, region.view.offset});
}

// What the loader leaves in each memory. Requires: all elements are bytes.
Memory run(const Loader& loader, const std::map<int, std::int64_t>& sizes) {
  Memory memory;
  for (const auto& [storage, size] : sizes) {
    memory[storage].resize(static_cast<std::size_t>(size));
  }
  for (std::size_t e = 0; e < loader.record.events.size(); ++e) {
    const BakeEvent& event = loader.record.events[e];
    const Numbers targets = places(event.region);
    Numbers bytes;
    if (event.kind == Kind::copy) {
      bytes = testing::bytes_of_map(loader.book.element_map(event.chain));
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      Mark mark;
      if (event.kind == Kind::copy) {
        mark = {event.source, bytes.at(i), -1, -1};
      } else if (event.kind == Kind::fill) {
        mark.constant = static_cast<std::int64_t>(event.value_bits);
      } else {
        mark.unknown = static_cast<int>(e);
      }
      memory[event.storage].at(static_cast<std::size_t>(targets[i])) = mark;
    }
  }
  return memory;
}

// What each byte of a parameter's memory is, by the layout; every byte once.
struct Said {
  std::optional<Mark> mark;  // of a piece or a fill
  std::string opaque;        // the tensor
  bool is_kept = false;
  bool is_derived = false;
  int count = 0;
};

void say(std::vector<Said>& memory, std::int64_t place, const Said& said, bool is_opaque) {
  Said& known = memory.at(static_cast<std::size_t>(place));
  const bool joins = is_opaque && !known.opaque.empty();
  if (!joins) {
    const int count = known.count;
    known = said;
    known.count = count + 1;
  }
}

// Of the parameter with this index in the layout. Requires: all elements are bytes.
std::vector<Said> said_by(const BakeResult& result, const Loader& loader, int parameter,
                          std::int64_t size) {
  const Layout& layout = result.layout;
  std::vector<Said> memory(static_cast<std::size_t>(size));
  std::map<std::string, int> tensor_of_name;
  for (std::size_t t = 0; t < loader.record.tensors.size(); ++t) {
    tensor_of_name[loader.record.tensors[t].name] = static_cast<int>(t);
  }
  for (const Instance& instance : layout.instances) {
    if (instance.parameter != parameter) continue;
    const std::string& name = layout.tensors.at(static_cast<std::size_t>(instance.tensor)).name;
    const LayoutClass& c = layout.classes.at(static_cast<std::size_t>(instance.layout_class));
    const Numbers factors = testing::numbers(c.space.factors);
    for (const Piece& piece : c.pieces_of_role.at(0)) {
      const Numbers shape = testing::numbers(piece.box.shape);
      for (std::int64_t i = 0; i < testing::product(shape); ++i) {
        const Numbers index = testing::index_of(i, shape);
        Numbers from(index.size());
        std::int64_t place = instance.offset + piece.view.offset;
        for (std::size_t d = 0; d < index.size(); ++d) {
          from[d] = piece.box.origin[static_cast<int>(d)] + index[d];
          place += index[d] * piece.view.strides[static_cast<int>(d)];
        }
        Said said;
        if (instance.opaque_reason >= 0) {
          said.opaque = name;
        } else {
          said.mark = Mark{tensor_of_name.at(name), testing::flat_of(from, factors), -1, -1};
        }
        say(memory, place, said, instance.opaque_reason >= 0);
      }
    }
  }
  const auto c = static_cast<std::size_t>(
      layout.parameters.at(static_cast<std::size_t>(parameter)).parameter_class);
  for (const Reserve& reserve : layout.parameter_classes.at(c).reserves) {
    for (const std::int64_t place : places(reserve.region)) {
      Said said;
      said.is_kept = reserve.kind == Reserve::Kind::kept;
      said.is_derived = reserve.kind == Reserve::Kind::derived;
      if (reserve.kind == Reserve::Kind::fill) {
        said.mark = Mark{-1, -1, static_cast<std::int64_t>(reserve.value_bits), -1};
      }
      say(memory, place, said, false);
    }
  }
  return memory;
}

// Each byte is said once; and is what the loader leaves there, where pieces or fills say it.
void expect_said(const Loader& loader, const std::map<int, std::int64_t>& sizes) {
  const BakeResult result = loader.bake();
  const Memory memory = run(loader, sizes);
  for (std::size_t p = 0; p < result.layout.parameters.size(); ++p) {
    const Parameter& parameter = result.layout.parameters[p];
    if (parameter.storage != static_cast<int>(p)) continue;
    const auto of_record =
        std::find_if(loader.record.parameters.begin(), loader.record.parameters.end(),
                     [&](const BakeParameter& q) { return q.name == parameter.name; });
    const std::int64_t size = testing::product(testing::numbers(of_record->shape));
    const std::vector<Said> said = said_by(result, loader, static_cast<int>(p), size);
    for (std::int64_t i = 0; i < size; ++i) {
      const Said& byte = said[static_cast<std::size_t>(i)];
      const Mark& mark =
          memory.at(of_record->storage).at(static_cast<std::size_t>(of_record->offset + i));
      const auto where = [&] {
        return parameter.name + " byte " + std::to_string(i) + "\n" + text_of(result);
      };
      ASSERT_EQ(byte.count, 1) << where();
      if (byte.mark) {
        ASSERT_EQ(*byte.mark, mark) << where();
      }
      if (byte.is_kept) {
        ASSERT_EQ(mark, Mark()) << where();
      }
      if (byte.is_derived) {
        ASSERT_GE(mark.unknown, 0) << where();
      }
      if (mark.unknown >= 0) {
        ASSERT_TRUE(byte.is_derived || !byte.opaque.empty()) << where();
      }
    }
  }
}

// -- Single cases --------------------------------------------------------------------------------

TEST(Bake, copies_that_tile_a_parameter_are_pieces) {
  Loader loader;
  loader.parameter("qkv", {6, 4}, 0);
  const int q = loader.tensor("q", {4, 4});
  loader.copy(q, loader.chains[0], 0, {{4, 4}, {0, {4, 1}}});
  const int k = loader.tensor("k", {4, 4});
  loader.copy(k, loader.book.apply(loader.chains[1], Op::narrow(0, 2, 2)), 0,
              {{2, 4}, {16, {4, 1}}});
  EXPECT_EQ(text_of(loader.bake()),
            "baked\n"
            "baked\n"
            "layout of model: 1 rank, 2 tensors, 1 parameter\n"
            "  replica 0  rank 0\n"
            "binding 0\n"
            "  role 0  rank 0\n"
            "parameter class 0\n"
            "  U8\n"
            "  role 0  [6, 4]:[4, 1]\n"
            "class 0\n"
            "  U8 [4, 4]\n"
            "  role 0  [0:4, 0:4] at [4, 1]+0\n"
            "instances of class 0\n"
            "  q -> qkv +0, binding 0, parameter class 0\n"
            "class 1\n"
            "  U8 [4, 4]\n"
            "  role 0  [2:4, 0:4] at [4, 1]+0\n"
            "instances of class 1\n"
            "  k -> qkv +16, binding 0, parameter class 0\n");
  expect_said(loader, {{0, 24}});
}

TEST(Bake, equal_copies_into_other_places_have_one_class) {
  Loader loader;
  loader.parameter("experts", {5, 4}, 0);
  for (int e = 0; e < 5; ++e) {
    const int tensor = loader.tensor("e" + std::to_string(e), {4});
    loader.copy(tensor, loader.chains.back(), 0, row(4 * e, 4));
  }
  EXPECT_EQ(loader.bake().layout.classes.size(), 1U);
  expect_said(loader, {{0, 20}});
}

TEST(Bake, fills_and_holes_are_what_copies_leave) {
  Loader loader;
  loader.parameter("p", {4, 4}, 0);
  const int t = loader.tensor("t", {2, 4});
  loader.fill(0, {{3, 4}, {0, {4, 1}}}, 9);
  loader.copy(t, loader.chains[0], 0, {{2, 4}, {0, {4, 1}}});
  const BakeResult result = loader.bake();
  const ParameterClass& c = result.layout.parameter_classes.at(0);
  ASSERT_EQ(c.reserves.size(), 2U);
  EXPECT_EQ(c.reserves[0], (Reserve{Reserve::Kind::fill, 0, row(8, 4), 9, "the loader fills it"}));
  EXPECT_EQ(c.reserves[1], (Reserve{Reserve::Kind::kept, 0, row(12, 4), 0, "no tensor feeds it"}));
  expect_said(loader, {{0, 16}});
}

TEST(Bake, a_copy_that_a_later_one_hides_is_unused) {
  Loader loader;
  loader.parameter("p", {4}, 0);
  loader.copy_whole(loader.tensor("first", {4}), 0, row(0, 4));
  loader.copy_whole(loader.tensor("last", {4}), 0, row(0, 4));
  const BakeResult result = loader.bake();
  EXPECT_EQ(fates(result), "overwritten: later copies hide it in p\nbaked\n");
  EXPECT_EQ(result.layout.unused, (std::vector<Unused>{{"first", "later copies hide it in p"}}));
  expect_said(loader, {{0, 4}});
}

TEST(Bake, copies_that_overlap_in_part_go_to_the_loader_with_their_parameter) {
  Loader loader;
  loader.parameter("p", {6}, 0);
  loader.parameter("q", {2}, 1);
  loader.copy_whole(loader.tensor("a", {3}), 0, row(0, 3));
  loader.copy_whole(loader.tensor("b", {3}), 0, row(2, 3));
  loader.copy_whole(loader.tensor("c", {1}), 0, row(5, 1));
  loader.copy_whole(loader.tensor("d", {2}), 1, row(0, 2));
  EXPECT_EQ(fates(loader.bake()),
            "opaque: later writes hide a part of the copy\n"
            "opaque: shares elements of p: later writes hide a part of the copy\n"
            "opaque: the loader's regions of p overlap\n"
            "baked\n");
  expect_said(loader, {{0, 6}, {1, 2}});
}

TEST(Bake, a_write_of_unknown_values_takes_what_it_touches) {
  Loader loader;
  loader.parameter("p", {6}, 0);
  loader.copy_whole(loader.tensor("a", {3}), 0, row(0, 3));
  loader.copy_whole(loader.tensor("b", {3}), 0, row(3, 3));
  loader.write(0, row(3, 3));
  EXPECT_EQ(fates(loader.bake()), "baked\nopaque: arithmetic\n");
  expect_said(loader, {{0, 6}});
}

TEST(Bake, a_hidden_write_of_unknown_values_is_nothing) {
  Loader loader;
  loader.parameter("p", {3}, 0);
  loader.tensor("a", {3});
  loader.write(0, row(0, 2));
  loader.copy(0, loader.chains[0], 0, row(0, 3));
  EXPECT_EQ(fates(loader.bake()), "baked\n");
  expect_said(loader, {{0, 3}});
}

TEST(Bake, what_is_written_with_no_tensor_in_hand_is_derived) {
  Loader loader;
  loader.parameter("p", {3}, 0);
  loader.parameter("q", {3}, 1);
  loader.copy_whole(loader.tensor("a", {3}), 0, row(0, 3));
  loader.current = -1;
  loader.write(1, row(0, 3));
  const BakeResult result = loader.bake();
  EXPECT_TRUE(result.needs_loader);
  EXPECT_EQ(fates(result), "baked\n");
  expect_said(loader, {{0, 3}, {1, 3}});
}

TEST(Bake, tensors_that_act_together_are_opaque_together) {
  Loader loader;
  loader.parameter("p", {2}, 0);
  loader.parameter("q", {2}, 1);
  loader.tensor("scale", {2});
  loader.tensor("weight", {2});
  loader.copy(1, loader.chains[1], 0, row(0, 2));
  loader.write(1, row(0, 2), {0});
  EXPECT_EQ(fates(loader.bake()), "opaque: arithmetic\nopaque: arithmetic\n");
}

TEST(Bake, a_refused_tensor_takes_its_own_regions_and_no_other) {
  Loader loader;
  loader.parameter("p", {6}, 0);
  loader.copy_whole(loader.tensor("a", {3}), 0, row(0, 3));
  loader.copy_whole(loader.tensor("b", {3}), 0, row(3, 3));
  loader.record.refusals.push_back({0, "float: no chain records this call"});
  EXPECT_EQ(fates(loader.bake()), "opaque: float: no chain records this call\nbaked\n");
  expect_said(loader, {{0, 6}});
}

TEST(Bake, one_tensor_in_two_dtypes_is_opaque) {
  Loader loader;
  loader.parameter("p", {2}, 0, 0, DType::f32);
  loader.parameter("q", {2}, 1, 0, DType::f16);
  loader.tensor("t", {2}, DType::f32);
  loader.copy(0, loader.chains[0], 0, row(0, 2), DType::f32);
  loader.copy(0, loader.chains[0], 1, row(0, 2), DType::f16);
  EXPECT_EQ(fates(loader.bake()), "opaque: it is copied as F32 and as F16\n");
}

TEST(Bake, names_of_one_memory_are_tied_and_the_storage_decides) {
  Loader loader;
  loader.parameter("embed", {4}, 0);
  loader.parameter("head", {4}, 0);
  loader.parameter("part", {2}, 0, 1);
  loader.copy_whole(loader.tensor("t", {4}), 0, row(0, 4));
  const BakeResult result = loader.bake();
  ASSERT_EQ(result.layout.parameters.size(), 2U);
  EXPECT_EQ(result.layout.parameters[1].name, "head");
  EXPECT_EQ(result.layout.parameters[1].storage, 0);
  expect_said(loader, {{0, 4}});
}

TEST(Bake, parameters_of_one_buffer_are_told_apart) {
  Loader loader;
  loader.parameter("a", {4}, 0, 4);
  loader.parameter("b", {4}, 0, 0);
  loader.copy_whole(loader.tensor("t", {4}), 0, row(0, 4));
  loader.copy_whole(loader.tensor("u", {4}), 0, row(4, 4));
  const BakeResult result = loader.bake();
  EXPECT_EQ(fates(result), "baked\nbaked\n");
  EXPECT_EQ(result.layout.instances.at(0).parameter, 1);
  EXPECT_EQ(result.layout.instances.at(1).parameter, 0);
  expect_said(loader, {{0, 8}});
}

TEST(Bake, scalars_and_empty_parameters_are_like_others) {
  Loader loader;
  loader.parameter("scalar", {}, 0);
  loader.parameter("empty", {0, 4}, 1);
  loader.copy_whole(loader.tensor("s", {}), 0, {{}, {0, {}}});
  loader.copy_whole(loader.tensor("e", {0, 4}), 1, {{0, 4}, {0, {4, 1}}});
  EXPECT_EQ(fates(loader.bake()), "baked\nbaked\n");
  expect_said(loader, {{0, 1}, {1, 0}});
}

TEST(Bake, a_buffer_that_nothing_writes_is_left_out) {
  Loader loader;
  loader.parameter("p", {2}, 0);
  loader.parameter("table", {2}, 1);
  loader.record.parameters[1].is_buffer = true;
  loader.copy_whole(loader.tensor("t", {2}), 0, row(0, 2));
  EXPECT_EQ(loader.bake().layout.parameters.size(), 1U);
}

// -- Bad input -----------------------------------------------------------------------------------

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + " " + error.text();
  }
  return "accepted";
}

TEST(BakeRefuses, a_write_outside_all_parameters) {
  Loader loader;
  loader.parameter("p", {4}, 0);
  loader.copy_whole(loader.tensor("t", {4}), 0, row(1, 4));
  EXPECT_EQ(refusal([&] { loader.bake(); }),
            "invalid_argument bake: a write lies outside all parameters\n"
            "  storage  0\n"
            "  region  U8[4]:[1]+1");
}

TEST(BakeRefuses, a_copy_that_torch_refuses) {
  Loader loader;
  loader.parameter("p", {4}, 0);
  loader.copy_whole(loader.tensor("t", {3}), 0, row(0, 4));
  EXPECT_EQ(refusal([&] { loader.bake(); }),
            "invalid_argument copy_: the sizes do not match\n"
            "  source  U8[3]:[1]+0\n"
            "  target  U8[4]:[1]+0\n"
            "  tensor  t\n"
            "  parameter  p\n"
            "  chain  []");
}

TEST(BakeRefuses, parameters_that_overlap_in_part) {
  Loader loader;
  loader.parameter("a", {4}, 0, 0);
  loader.parameter("b", {4}, 0, 2);
  EXPECT_EQ(refusal([&] { loader.bake(); }),
            "unsupported bake: parameters overlap in part\n"
            "  parameter  a\n"
            "  parameter  b");
}

TEST(BakeRefuses, a_region_that_is_malformed) {
  Loader loader;
  loader.parameter("p", {4}, 0);
  loader.tensor("t", {4});
  loader.fill(0, {{4}, {-1, {1}}}, 0);
  EXPECT_EQ(refusal([&] { loader.bake(); }),
            "invalid_argument bake: the region of a write is malformed\n"
            "  dtype  U8\n"
            "  region  [4]:[1]+-1");
}

// -- Random loaders ------------------------------------------------------------------------------

// A part of a parameter of 4 x 6: rows, columns, every second of either, or all.
StridedRegion random_region(std::mt19937& random) {
  const auto draw = [&](int count) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(count));
  };
  const std::int64_t row_step = 1 + draw(2);
  const std::int64_t column_step = draw(4) == 0 ? 2 : 1;
  const std::int64_t first_row = draw(4);
  const std::int64_t first_column = draw(3) == 0 ? draw(6) : 0;
  const std::int64_t rows = 1 + draw(static_cast<int>((3 - first_row) / row_step + 1));
  const std::int64_t columns = 1 + draw(static_cast<int>((5 - first_column) / column_step + 1));
  StridedRegion region{{rows, columns},
                       {first_row * 6 + first_column, {6 * row_step, column_step}}};
  if (draw(4) == 0) {
    std::swap(region.shape[0], region.shape[1]);
    std::swap(region.view.strides[0], region.view.strides[1]);
  }
  return region;
}

TEST(BakeRandom, every_byte_is_said_once_and_is_what_the_loader_leaves) {
  std::mt19937 random(11);
  int baked = 0;
  int opaque = 0;
  int hidden = 0;
  for (int i = 0; i < 20'000; ++i) {
    Loader loader;
    loader.parameter("p", {4, 6}, 0);
    loader.parameter("q", {4, 6}, 1);
    const unsigned events = 1 + random() % 6;
    for (unsigned e = 0; e < events; ++e) {
      const StridedRegion region = random_region(random);
      const int storage = random() % 4 == 0 ? 1 : 0;
      const unsigned kind = random() % 12;
      if (loader.record.tensors.empty() || random() % 3 != 0) {
        const Numbers shape = testing::numbers(region.shape);
        loader.tensor("t" + std::to_string(e), {shape[1], shape[0]});
      }
      const TensorInfo& tensor = loader.record.tensors.back();
      const bool fits = tensor.shape == Numbers{region.shape[1], region.shape[0]};
      if (kind < 2 || !fits) {
        loader.fill(storage, region, random() % 3);
      } else if (kind < 4) {
        loader.write(storage, region);
      } else {
        loader.copy(loader.current, loader.book.apply(loader.chains.back(), Op::t()), storage,
                    region);
      }
    }
    expect_said(loader, {{0, 24}, {1, 24}});
    if (HasFatalFailure()) return;
    for (const BakedTensor& tensor : loader.bake().tensors) {
      baked += tensor.fate == Fate::baked ? 1 : 0;
      opaque += tensor.fate == Fate::opaque ? 1 : 0;
      hidden += tensor.fate == Fate::overwritten ? 1 : 0;
    }
  }
  EXPECT_GT(baked, 10'000);
  EXPECT_GT(opaque, 5'000);
  EXPECT_GT(hidden, 300);
}

// -- Merging -------------------------------------------------------------------------------------

Layout layout_of_rank(int rank, std::int64_t rows) {
  Loader loader;
  loader.parameter("a", {rows, 3}, 0);
  loader.parameter("norm", {3}, 1);
  const int w = loader.tensor("w", {4, 3});
  loader.copy(w, loader.book.apply(loader.chains[0], Op::narrow(0, rank * 2, rows)), 0,
              {{rows, 3}, {0, {3, 1}}});
  loader.copy_whole(loader.tensor("n", {3}), 1, row(0, 3));
  loader.tensor("other", {3});
  return loader.bake().layout;
}

TEST(Merge, equal_geometry_of_ranks_is_told_once) {
  const std::vector<Layout> ranks{layout_of_rank(0, 2), layout_of_rank(1, 2)};
  EXPECT_EQ(explain(merge(ranks)),
            "layout of model: 2 ranks, 2 tensors, 2 parameters\n"
            "  replica 0  ranks 0-1\n"
            "binding 0\n"
            "  role 0  ranks 0-1\n"
            "binding 1\n"
            "  roles 0-1  ranks 0-1\n"
            "parameter class 0\n"
            "  U8\n"
            "  role 0  [2, 3]:[3, 1]\n"
            "parameter class 1\n"
            "  U8\n"
            "  role 0  [3]:[1]\n"
            "class 0\n"
            "  U8 [4, 3]\n"
            "  role 0  [0:2, 0:3] at [3, 1]+0\n"
            "  role 1  [2:4, 0:3] at [3, 1]+0\n"
            "instances of class 0\n"
            "  w -> a +0, binding 1, parameter class 0\n"
            "class 1\n"
            "  U8 [3]\n"
            "  role 0  [0:3] at [1]+0\n"
            "instances of class 1\n"
            "  n -> norm +0, binding 0, parameter class 1\n"
            "unused\n"
            "  other  the loader copies it nowhere\n");
}

TEST(Merge, each_rank_keeps_its_pieces) {
  const std::vector<Layout> ranks{layout_of_rank(0, 2), layout_of_rank(1, 1), layout_of_rank(0, 3)};
  const Layout merged = merge(ranks);
  for (int rank = 0; rank < 3; ++rank) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::vector<PlacedPiece> one = pieces(ranks[static_cast<std::size_t>(rank)], 0, tensor);
      const std::vector<PlacedPiece> all = pieces(merged, rank, tensor);
      ASSERT_EQ(one.size(), all.size());
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].piece, all[i].piece);
    }
    EXPECT_EQ(local_shape(merged, rank, 0),
              local_shape(ranks[static_cast<std::size_t>(rank)], 0, 0));
  }
}

TEST(Merge, ranks_that_disagree_on_a_tensor_are_refused) {
  std::vector<Layout> ranks{layout_of_rank(0, 2), layout_of_rank(1, 2)};
  ranks[1].tensors[1].shape = {4};
  EXPECT_EQ(refusal([&] { merge(ranks); }),
            "mismatch merge: ranks tell a tensor differently\n"
            "  name  n\n"
            "  rank  1\n"
            "  dtype there  U8\n"
            "  dtype before  U8\n"
            "  shape there  [4]\n"
            "  shape before  [3]");
}

}  // namespace
}  // namespace crossmesh
