// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

template <typename Target, typename Source>
Target cast_one(DType source_dtype, Source source, DType target_dtype) {
  Target target;
  cast_plainly(source_dtype, std::as_bytes(std::span(&source, 1)), target_dtype,
               std::as_writable_bytes(std::span(&target, 1)));
  return target;
}

// The value of a 16-bit pattern, from the definition of the format.
double value_of(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(CastPlainly, widens_every_16_bit_pattern_to_its_value) {
  for (const auto& [dtype, mantissa_bits] :
       {std::pair(DType::f16, 10), std::pair(DType::bf16, 7)}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      const auto value = cast_one<float>(dtype, pattern, DType::f32);
      const double expected = value_of(pattern, mantissa_bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << bits;
      } else {
        ASSERT_EQ(value, expected) << bits;
      }
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      // Back again: every pattern but a NaN's payload.
      const auto back = cast_one<std::uint16_t>(DType::f32, value, dtype);
      ASSERT_TRUE(std::isnan(expected) || back == pattern) << bits;
    }
  }
}

// For each pair of neighbours: what lies below, at and above the middle between them.
TEST(CastPlainly, narrows_to_the_nearest_and_to_even_in_the_middle) {
  for (const auto& [dtype, mantissa_bits, infinity] :
       {std::tuple(DType::f16, 10, 0x7c00), std::tuple(DType::bf16, 7, 0x7f80)}) {
    for (int bits = 0; bits < infinity; ++bits) {
      const auto low = static_cast<std::uint16_t>(bits);
      const auto high = static_cast<std::uint16_t>(bits + 1);
      // The middle past the greatest finite number is where infinity begins.
      const double step = bits + 1 == infinity
                              ? value_of(low, mantissa_bits) -
                                    value_of(static_cast<std::uint16_t>(bits - 1), mantissa_bits)
                              : value_of(high, mantissa_bits) - value_of(low, mantissa_bits);
      const auto middle = static_cast<float>(value_of(low, mantissa_bits) + step / 2);
      const float below = std::nextafter(middle, 0.0f);
      const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
      const std::uint16_t even = bits % 2 == 0 ? low : high;
      ASSERT_EQ(cast_one<std::uint16_t>(DType::f32, below, dtype), low) << bits;
      ASSERT_EQ(cast_one<std::uint16_t>(DType::f32, middle, dtype), even) << bits;
      ASSERT_EQ(cast_one<std::uint16_t>(DType::f32, above, dtype), high) << bits;
      ASSERT_EQ(cast_one<std::uint16_t>(DType::f32, -above, dtype), high | 0x8000) << bits;
    }
  }
}

TEST(CastPlainly, goes_between_the_16_bit_types_by_way_of_f32) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    for (const auto& [source, target] :
         {std::pair(DType::f16, DType::bf16), std::pair(DType::bf16, DType::f16)}) {
      const auto wide = cast_one<std::uint32_t>(source, pattern, DType::f32);
      ASSERT_EQ(cast_one<std::uint16_t>(source, pattern, target),
                cast_one<std::uint16_t>(DType::f32, wide, target));
    }
  }
}

TEST(CastPlainly, refuses_what_does_not_convert) {
  try {
    cast_plainly(DType::f64, {}, DType::f32, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(name_of(error.code())) + ": " + error.text(),
              "unsupported: cast plainly: these dtypes do not convert\n"
              "  source  F64\n"
              "  target  F32");
  }
}

}  // namespace
}  // namespace crossmesh::cli
