// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/dtype.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

TEST(DType, every_name_reads_back) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype) << name_of(dtype);
  }
  EXPECT_EQ(dtype_from_name("torch.bfloat16"), DType::bf16);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
}

TEST(DType, sub_byte_sizes_must_end_on_a_byte) {
  EXPECT_EQ(bytes_of(DType::f4, 2), 1);
  EXPECT_EQ(bytes_of(DType::f4, 3), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f6_e2m3, 4), 3);
  EXPECT_EQ(bytes_of(DType::f6_e2m3, 2), std::nullopt);
  EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
}

TEST(DType, casts_are_between_distinct_floats_of_the_table) {
  EXPECT_TRUE(is_castable(DType::f32, DType::bf16));
  EXPECT_TRUE(is_castable(DType::bf16, DType::f16));
  EXPECT_FALSE(is_castable(DType::bf16, DType::bf16));
  EXPECT_FALSE(is_castable(DType::f64, DType::f32));
  EXPECT_FALSE(is_castable(DType::f8_e4m3, DType::bf16));
}

}  // namespace
}  // namespace crossmesh
