// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/parameter_arrays.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"

namespace crossmesh {
namespace {

// One rank: `a` is [2, 3], `b` is [4], `c` is another name of `a`, `none` is on no rank.
Layout three_names() {
  Layout layout;
  layout.rank_count = 1;
  Interner interner(layout);
  const int matrix = interner.parameter_class({DType::bf16, {{2, 3}}, {}, {}});
  const int vector = interner.parameter_class({DType::bf16, {{4}}, {}, {}});
  const int here = interner.binding({{0}});
  const int nowhere = interner.binding({{-1}});
  layout.parameters = {{"a", matrix, here, 0},
                       {"b", vector, here, 1},
                       {"c", matrix, here, 0},
                       {"none", vector, nowhere, 3}};
  return layout;
}

struct Memory {
  std::array<std::byte, 64> bytes{};
  ParameterArrays arrays{{{"a", {bytes.data(), DType::bf16, {2, 3}, {3, 1}}},
                          {"b", {bytes.data() + 12, DType::u16, {4}, {1}}}},
                         {}};

  ParameterArray& array(const std::string& name) { return arrays.array_by_name.at(name); }
  std::string places(MemoryUse use = MemoryUse::take) {
    const ParameterMemory memory = memory_of_arrays(three_names(), 0, arrays, use);
    std::string text;
    for (const ParameterPlace& place : memory.places) {
      text += std::to_string(place.buffer) + "@" + std::to_string(place.offset_bytes) + " ";
    }
    for (const Buffer& buffer : memory.buffers) {
      text += "[" + std::to_string(buffer.data - bytes.data()) + "+" +
              std::to_string(buffer.size_bytes) + "]";
    }
    return text;
  }
  std::string refusal(MemoryUse use = MemoryUse::take) {
    try {
      return "accepted: " + places(use);
    } catch (const Error& error) {
      return error.text();
    }
  }
};

TEST(ParameterArrays, each_array_is_a_buffer_and_tied_names_share_it) {
  EXPECT_EQ(Memory().places(), "0@0 1@0 0@0 -1@0 [0+12][12+8]");
}

TEST(ParameterArrays, arrays_inside_an_enclosing_buffer_are_places_in_it) {
  Memory memory;
  memory.arrays.enclosing = {{memory.bytes.data() + 4, 60, -1, 0}};
  EXPECT_EQ(memory.places(), "1@0 0@8 1@0 -1@0 [4+60][0+12]");
}

TEST(ParameterArrays, strides_of_single_elements_do_not_matter) {
  Layout layout;
  layout.rank_count = 1;
  Interner interner(layout);
  const int flat = interner.parameter_class({DType::f32, {{1, 2}}, {}, {}});
  layout.parameters = {{"a", flat, interner.binding({{0}}), 0}};
  std::array<std::byte, 8> bytes{};
  const ParameterArrays arrays{{{"a", {bytes.data(), DType::f32, {1, 2}, {77, 1}}}}, {}};
  EXPECT_EQ(memory_of_arrays(layout, 0, arrays, MemoryUse::take).buffers.size(), 1U);
}

TEST(ParameterArrays, what_does_not_fit_the_layout_is_named) {
  Memory missing;
  missing.arrays.array_by_name.erase("b");
  EXPECT_EQ(missing.refusal(), "memory: a parameter has no array\n  parameter  b\n  rank  0");

  Memory unknown;
  unknown.arrays.array_by_name["none"] = unknown.array("b");
  EXPECT_EQ(unknown.refusal(),
            "memory: no parameter of this rank has this name\n  array  none\n  rank  0");

  Memory dtype;
  dtype.array("a").dtype = DType::f16;
  EXPECT_EQ(dtype.refusal(),
            "memory: an array has another dtype\n  parameter  a\n  rank  0\n  layout  BF16\n"
            "  array  F16");

  Memory shape;
  shape.array("a").shape = {3, 2};
  EXPECT_EQ(shape.refusal(),
            "memory: an array has another shape\n  parameter  a\n  rank  0\n  layout  [2, 3]\n"
            "  array  [3, 2]");

  Memory strides;
  strides.array("a").strides = {1, 2};
  EXPECT_EQ(strides.refusal(),
            "memory: an array has other strides\n  parameter  a\n  rank  0\n  shape  [2, 3]\n"
            "  layout  [3, 1]\n  array  [1, 2]\n"
            "  hint  give the parameter's own memory; a copy would not be seen by the engine");

  Memory null;
  null.array("b").data = nullptr;
  EXPECT_EQ(null.refusal(), "memory: an array has no address\n  parameter  b\n  rank  0");

  Memory apart;
  apart.arrays.array_by_name["c"] = apart.array("a");
  EXPECT_EQ(apart.refusal(), "accepted: 0@0 1@0 0@0 -1@0 [0+12][12+8]");
  apart.array("c").data += 32;
  EXPECT_EQ(apart.refusal(),
            "memory: tied parameters do not share an array\n  parameter  c\n  rank  0\n"
            "  tied to  a");
}

TEST(ParameterArrays, what_is_taken_into_is_writable_and_apart) {
  Memory read_only;
  read_only.array("b").is_writable = false;
  EXPECT_EQ(read_only.refusal(),
            "memory: an array to take into is read-only\n  parameter  b\n  rank  0");
  EXPECT_EQ(read_only.places(MemoryUse::give), "0@0 1@0 0@0 -1@0 [0+12][12+8]");

  Memory overlap;
  overlap.array("b").data = overlap.bytes.data() + 10;
  EXPECT_EQ(overlap.refusal(),
            "memory: arrays to take into overlap\n  parameter  b\n  rank  0\n  other  a");
  overlap.arrays.enclosing = {{overlap.bytes.data(), 64, -1, 0}};
  EXPECT_EQ(overlap.refusal(),
            "memory: arrays to take into overlap\n  parameter  b\n  rank  0\n  other  a");
  EXPECT_EQ(overlap.places(MemoryUse::give), "0@0 0@10 0@0 -1@0 [0+64]");
}

}  // namespace
}  // namespace crossmesh
