// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/catalog.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

std::string text_of_error(const std::function<void()>& run, ErrorCode code) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(code));
    return error.text();
  }
  return "no error";
}

TEST(Catalog, explain_has_a_line_per_tensor_and_the_totals) {
  const Catalog catalog{{{"model.norm.weight", DType::bf16, {8}},
                         {"scale", DType::f32, {}},
                         {"codes", DType::f4, {2, 3}},
                         {"none", DType::u8, {4, 0}},
                         {"line\nbreak", DType::boolean, {1}}}};
  EXPECT_EQ(explain(catalog),
            "model.norm.weight  BF16  [8]\n"
            "scale  F32  []\n"
            "codes  F4  [2, 3]\n"
            "none  U8  [4, 0]\n"
            "line\\x0abreak  BOOL  [1]\n"
            "5 tensors, 16 elements, 24 bytes\n");
  EXPECT_EQ(byte_count(catalog), 24);
  EXPECT_EQ(explain(Catalog{}), "0 tensors, 0 elements, 0 bytes\n");
}

TEST(Catalog, explain_cuts_a_name_that_fills_the_screen) {
  // The cut falls on the second byte of a two-byte character, which is left out whole.
  const std::string name = std::string(199, 'a') + "\u00e9" + std::string(800, 'b');
  EXPECT_EQ(explain(Catalog{{{name, DType::u8, {1}}}}),
            std::string(199, 'a') + "... (1001 bytes)  U8  [1]\n1 tensors, 1 elements, 1 bytes\n");
}

TEST(Catalog, counts_of_a_tensor) {
  EXPECT_EQ(element_count({"a", DType::f32, {}}), 1);
  EXPECT_EQ(element_count({"a", DType::f32, {3, 0}}), 0);
  EXPECT_EQ(byte_count(TensorInfo{"a", DType::f6_e2m3, {2, 4}}), 6);
  EXPECT_EQ(count_elements(std::vector<std::int64_t>{kElementsMax, 1}), kElementsMax);
  EXPECT_EQ(count_elements(std::vector<std::int64_t>{kElementsMax, 2}), std::nullopt);
  // Strides of an empty tensor must fit as well.
  EXPECT_EQ(count_elements(std::vector<std::int64_t>{0, kElementsMax, 2}), std::nullopt);
  EXPECT_EQ(count_elements(std::vector<std::int64_t>{kElementsMax, 0}), 0);
}

TEST(Catalog, counts_that_do_not_exist_are_errors) {
  const TensorInfo huge{"huge", DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40}};
  EXPECT_EQ(text_of_error([&] { element_count(huge); }, ErrorCode::limit_exceeded),
            "count elements: a tensor has too many elements\n  tensor  huge\n"
            "  shape  [1099511627776, 1099511627776]\n  elements_max  9007199254740991");
  const TensorInfo odd{"odd", DType::f4, {3}};
  EXPECT_EQ(
      text_of_error([&] { byte_count(odd); }, ErrorCode::invalid_argument),
      "count bytes: a tensor does not end on a byte\n  tensor  odd\n  dtype  F4\n  shape  [3]");
}

TEST(Catalog, every_name_is_found_and_no_other) {
  Catalog catalog;
  for (int i = 0; i < 1000; ++i) {
    catalog.tensors.push_back({fmt::format("layers.{}.weight", i * 7919 % 1000), DType::u8, {1}});
  }
  const CatalogIndex index(catalog);
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    EXPECT_EQ(index.find(catalog.tensors[i].name), i);
    EXPECT_EQ(find(catalog, catalog.tensors[i].name), i);
    EXPECT_EQ(index.find(catalog.tensors[i].name + "x"), std::nullopt);
  }
  EXPECT_EQ(find(catalog, "absent"), std::nullopt);
  EXPECT_EQ(find_duplicate(catalog), std::nullopt);
  EXPECT_EQ(CatalogIndex(Catalog{}).find(""), std::nullopt);
}

TEST(Catalog, the_first_repeated_name_is_found) {
  const Catalog catalog{{{"b", DType::u8, {}},
                         {"c", DType::u8, {}},
                         {"a", DType::u8, {}},
                         {"c", DType::u8, {}},
                         {"b", DType::u8, {}},
                         {"b", DType::u8, {}}}};
  EXPECT_EQ(find_duplicate(catalog), 3U);
  EXPECT_EQ(CatalogIndex(catalog).find("b"), 0U);
}

}  // namespace
}  // namespace crossmesh
