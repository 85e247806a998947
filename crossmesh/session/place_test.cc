// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/place.h"

#include <gtest/gtest.h>

#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"

namespace crossmesh {
namespace {

// Two ranks: `a` has 40 elements on rank 0 and 3 on rank 1, `b` is on rank 1 alone, and `c` is
// another name of `a`.
Layout three_names(DType dtype) {
  Layout layout;
  layout.rank_count = 2;
  Interner interner(layout);
  const int uneven = interner.parameter_class({dtype, {{40}, {3}}, {}, {}});
  const int small = interner.parameter_class({dtype, {{5}}, {}, {}});
  const int both = interner.binding({{0, 1}});
  const int last = interner.binding({{-1, 0}});
  layout.parameters = {{"a", uneven, both, 0}, {"b", small, last, 1}, {"c", uneven, both, 0}};
  return layout;
}

std::string text_of(const Placement& placement) {
  std::string text;
  for (const ParameterPlace& place : placement.places) {
    text += std::to_string(place.buffer) + "@" + std::to_string(place.offset_bytes) + " ";
  }
  return text + std::to_string(placement.bytes_held) + " of " + std::to_string(placement.bytes);
}

TEST(Place, parameters_lie_side_by_side_on_cache_lines_and_tied_names_share) {
  const Layout layout = three_names(DType::bf16);
  EXPECT_EQ(text_of(place_parameters(layout, 0)), "0@0 -1@0 0@0 80 of 128");
  EXPECT_EQ(text_of(place_parameters(layout, 1)), "0@0 0@64 0@0 16 of 128");
}

TEST(Place, a_parameter_that_ends_inside_a_byte_is_refused) {
  try {
    place_parameters(three_names(DType::f4), 1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              "place: a parameter does not end on a byte\n"
              "  parameter  a\n"
              "  rank  1\n"
              "  dtype  F4\n"
              "  shape  [3]");
  }
}

}  // namespace
}  // namespace crossmesh
