// SPDX-License-Identifier: Apache-2.0
// Every conversion against arithmetic on exact integers, which knows a format only by the widths
// of its fields.
#include "crossmesh/memory/detail/cast.h"

#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <random>
#include <vector>

namespace crossmesh::detail {
namespace {

struct Format {
  int exponent_bits;
  int fraction_bits;
  int bytes;
};

Format format_of(DType dtype) {
  if (dtype == DType::f16) return {5, 10, 2};
  return dtype == DType::bf16 ? Format{8, 7, 2} : Format{8, 23, 4};
}

// (-1)^negative * significand * 2^exponent; or infinite, or not a number.
struct Value {
  enum class Kind { finite, infinite, nan } kind = Kind::finite;
  bool negative = false;
  std::uint64_t significand = 0;
  int exponent = 0;
};

int bias_of(const Format& f) { return (1 << (f.exponent_bits - 1)) - 1; }

Value decoded(std::uint32_t bits, const Format& f) {
  const std::uint32_t fraction = bits & ((1u << f.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  Value value;
  value.negative = (bits >> (f.fraction_bits + f.exponent_bits) & 1) != 0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    value.kind = fraction != 0 ? Value::Kind::nan : Value::Kind::infinite;
    return value;
  }
  const bool normal = exponent != 0;
  value.significand = fraction + (normal ? std::uint64_t{1} << f.fraction_bits : 0);
  value.exponent = (normal ? exponent : 1) - bias_of(f) - f.fraction_bits;
  return value;
}

// The nearest number of the format, ties to an even significand. Requires: not a NaN.
std::uint32_t encoded(const Value& value, const Format& f) {
  const std::uint32_t sign = (value.negative ? 1u : 0u) << (f.exponent_bits + f.fraction_bits);
  const std::uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
  if (value.kind == Value::Kind::infinite) return sign | infinity;
  // The weight of the last place: that of the subnormals, or more for larger values.
  int last = 1 - bias_of(f) - f.fraction_bits;
  int top = -1;
  for (int i = 0; i < 64; ++i) {
    if ((value.significand >> i & 1) != 0) top = i;
  }
  if (top < 0) return sign;
  last = std::max(last, value.exponent + top - f.fraction_bits);
  // 64 more bits below the point hold what is cut off; whatever is lower still only rounds down.
  const int shift = last - value.exponent;
  std::uint64_t whole = 0;
  int comparison = -1;  // of the rest to one half
  if (shift <= 0) {
    whole = value.significand << -shift;
  } else if (shift < 64) {
    whole = value.significand >> shift;
    const std::uint64_t rest = value.significand - (whole << shift);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    comparison = rest > half ? 1 : rest == half ? 0 : -1;
  }
  if (comparison > 0 || (comparison == 0 && whole % 2 == 1)) ++whole;
  if (whole == std::uint64_t{2} << f.fraction_bits) {
    whole /= 2;
    ++last;
  }
  const bool normal = whole >= std::uint64_t{1} << f.fraction_bits;
  const int exponent = normal ? last + bias_of(f) + f.fraction_bits : 0;
  if (exponent >= (1 << f.exponent_bits) - 1) return sign | infinity;
  return sign | static_cast<std::uint32_t>(exponent) << f.fraction_bits |
         static_cast<std::uint32_t>(whole & ((std::uint64_t{1} << f.fraction_bits) - 1));
}

std::vector<std::byte> stored(const std::vector<std::uint32_t>& inputs, const Format& f) {
  std::vector<std::byte> bytes(inputs.size() * static_cast<std::size_t>(f.bytes));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // Little endian: the low bytes come first.
    std::memcpy(&bytes[i * static_cast<std::size_t>(f.bytes)], &inputs[i],
                static_cast<std::size_t>(f.bytes));
  }
  return bytes;
}

std::uint32_t loaded(const std::vector<std::byte>& bytes, std::size_t i, const Format& f) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &bytes[i * static_cast<std::size_t>(f.bytes)],
              static_cast<std::size_t>(f.bytes));
  return bits;
}

// A NaN stays one, with its sign and leading payload. It becomes quiet, unless bf16 only widens.
std::uint32_t nan_of(std::uint32_t bits, const Format& s, const Format& t) {
  const int narrower = s.fraction_bits - t.fraction_bits;
  const std::uint32_t fraction = bits & ((1u << s.fraction_bits) - 1);
  const std::uint32_t kept = narrower > 0 ? fraction >> narrower : fraction << -narrower;
  const std::uint32_t sign = bits >> (s.fraction_bits + s.exponent_bits) & 1;
  const bool widens_only = s.exponent_bits == t.exponent_bits && narrower < 0;
  const std::uint32_t quiet = widens_only ? 0 : 1u << (t.fraction_bits - 1);
  return sign << (t.fraction_bits + t.exponent_bits) |
         ((1u << t.exponent_bits) - 1) << t.fraction_bits | kept | quiet;
}

void check(DType source, DType target, const std::vector<std::uint32_t>& inputs) {
  const Format s = format_of(source);
  const Format t = format_of(target);
  const std::vector<std::byte> source_bytes = stored(inputs, s);
  std::vector<std::uint32_t> expected(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value value = decoded(inputs[i], s);
    expected[i] = value.kind == Value::Kind::nan ? nan_of(inputs[i], s, t) : encoded(value, t);
  }
  for (const CpuPath path : kCpuPaths) {
    if (!runs_here(path)) {
      std::cout << "[  SKIPPED ] " << name_of(path) << ": this processor lacks it\n";
      continue;
    }
    std::vector<std::byte> target_bytes(inputs.size() * static_cast<std::size_t>(t.bytes));
    cast_of(path, source, target)(source_bytes.data(), target_bytes.data(),
                                  static_cast<std::int64_t>(inputs.size()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(loaded(target_bytes, i, t), expected[i])
          << name_of(path) << ' ' << name_of(source) << " to " << name_of(target) << std::hex
          << " of 0x" << inputs[i];
    }
  }
}

std::vector<std::uint32_t> all_halves() {
  std::vector<std::uint32_t> inputs(1 << 16);
  for (std::uint32_t i = 0; i < inputs.size(); ++i) inputs[i] = i;
  return inputs;
}

TEST(Cast, every_f16_to_f32) { check(DType::f16, DType::f32, all_halves()); }
TEST(Cast, every_f16_to_bf16) { check(DType::f16, DType::bf16, all_halves()); }
TEST(Cast, every_bf16_to_f32) { check(DType::bf16, DType::f32, all_halves()); }
TEST(Cast, every_bf16_to_f16) { check(DType::bf16, DType::f16, all_halves()); }

// Each upper half with lower halves on, beside and away from every border of rounding.
std::vector<std::uint32_t> bordering_words() {
  constexpr std::uint32_t kLow[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff,
                                    0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t high = 0; high < 1 << 16; ++high) {
    for (const std::uint32_t low : kLow) inputs.push_back(high << 16 | low);
  }
  return inputs;
}

// The middle between each two neighbouring f16, where ties are, and the words beside it.
std::vector<std::uint32_t> middles_of_f16() {
  const Format half = format_of(DType::f16);
  const Format word = format_of(DType::f32);
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t i = 0; i < 0xfc00; ++i) {
    if ((i & 0x7fff) >= 0x7c00) continue;
    Value value = decoded(i, half);
    // Above the largest f16 lies what would be the next one, were there no infinity.
    value.significand = 2 * value.significand + 1;
    value.exponent -= 1;
    const std::uint32_t middle = encoded(value, word);
    for (const std::uint32_t input : {middle - 1, middle, middle + 1}) inputs.push_back(input);
  }
  return inputs;
}

std::vector<std::uint32_t> random_words(std::size_t count) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> inputs(count);
  for (std::uint32_t& input : inputs) input = static_cast<std::uint32_t>(random());
  return inputs;
}

TEST(Cast, f32_to_f16_at_the_borders_of_rounding) {
  check(DType::f32, DType::f16, bordering_words());
  check(DType::f32, DType::f16, middles_of_f16());
}
TEST(Cast, f32_to_bf16_at_the_borders_of_rounding) {
  check(DType::f32, DType::bf16, bordering_words());
}
TEST(Cast, f32_to_f16_of_random_words) { check(DType::f32, DType::f16, random_words(10'000'000)); }
TEST(Cast, f32_to_bf16_of_random_words) {
  check(DType::f32, DType::bf16, random_words(10'000'000));
}

TEST(Cast, of_every_short_count_writes_its_elements_only) {
  const std::vector<std::byte> source(4 * 40);
  for (const CpuPath path : kCpuPaths) {
    if (!runs_here(path)) continue;
    for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
        if (from == to) continue;
        for (std::int64_t count = 0; count < 36; ++count) {
          std::vector<std::byte> target(4 * 40, std::byte{0xa5});
          std::vector<std::byte> expected = target;
          std::memset(expected.data() + 1, 0, static_cast<std::size_t>(count * byte_size(to)));
          cast_of(path, from, to)(source.data() + 1, target.data() + 1, count);
          ASSERT_EQ(target, expected) << name_of(path) << ' ' << count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace crossmesh::detail
