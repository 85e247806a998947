// SPDX-License-Identifier: Apache-2.0
#include "cli/versions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cli/plain_cast.h"

namespace crossmesh::cli {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::string_view kTensor = "model.layers.3.mlp.up_proj.weight";

Bytes at_version(const Bytes& checkpoint, DType dtype, std::uint64_t version,
                 std::int64_t first_index = 0, std::string_view tensor = kTensor) {
  Bytes bytes = checkpoint;
  apply_version(tensor, dtype, first_index, bytes, version);
  return bytes;
}

Bytes cast(const Bytes& bytes, DType source, DType target) {
  Bytes result(bytes.size() / static_cast<std::size_t>(byte_size(source)) *
               static_cast<std::size_t>(byte_size(target)));
  cast_plainly(source, bytes, target, result);
  return result;
}

// Elements whose bits are equal.
std::int64_t count_equal(const Bytes& a, const Bytes& b, std::int64_t element_bytes) {
  EXPECT_EQ(a.size(), b.size());
  std::int64_t equal = 0;
  for (std::size_t at = 0; at < a.size(); at += static_cast<std::size_t>(element_bytes)) {
    equal += std::memcmp(&a[at], &b[at], static_cast<std::size_t>(element_bytes)) == 0;
  }
  return equal;
}

template <typename Word>
Bytes bytes_from(const std::vector<Word>& words) {
  Bytes bytes(words.size() * sizeof(Word));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

template <typename Word>
std::vector<Word> words_from(const Bytes& bytes) {
  std::vector<Word> words(bytes.size() / sizeof(Word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

Bytes every_16_bit_pattern() {
  std::vector<std::uint16_t> words(65536);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  return bytes_from(words);
}

// Every sign, exponent and top of the mantissa, with all the low bits clear, set, or at a half.
Bytes many_f32_patterns() {
  std::vector<std::uint32_t> words;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      words.push_back(high << 16 | low);
    }
  }
  return bytes_from(words);
}

Bytes patterns_of(DType dtype) {
  return dtype == DType::f32 ? many_f32_patterns() : every_16_bit_pattern();
}

bool is_finite(DType dtype, std::uint32_t bits) {
  const std::uint32_t exponent = dtype == DType::f32    ? 0x7f800000
                                 : dtype == DType::bf16 ? 0x7f80
                                                        : 0x7c00;
  return (bits & exponent) != exponent;
}

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

TEST(Versions, version_0_is_the_checkpoint) {
  EXPECT_EQ(at_version(every_16_bit_pattern(), DType::bf16, 0), every_16_bit_pattern());
}

TEST(Versions, every_element_changes_between_consecutive_versions_whatever_it_is_cast_to) {
  for (const DType source : kFloats) {
    for (std::uint64_t version = 0; version < 9; ++version) {
      const Bytes old_bytes = at_version(patterns_of(source), source, version);
      const Bytes new_bytes = at_version(patterns_of(source), source, version + 1);
      for (const DType target : kFloats) {
        EXPECT_EQ(count_equal(cast(old_bytes, source, target), cast(new_bytes, source, target),
                              byte_size(target)),
                  0)
            << name_of(source) << " to " << name_of(target) << " after version " << version;
      }
    }
  }
}

TEST(Versions, finite_values_stay_finite_and_the_others_only_change_their_sign) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (std::uint64_t version = 1; version < 9; ++version) {
      const auto words = words_from<std::uint16_t>(at_version(patterns_of(dtype), dtype, version));
      for (std::uint32_t was = 0; was < 65536; ++was) {
        if (is_finite(dtype, was)) {
          ASSERT_TRUE(is_finite(dtype, words[was])) << name_of(dtype) << " " << was;
        } else {
          ASSERT_EQ(words[was], was ^ (version % 2 << 15)) << name_of(dtype);
        }
      }
    }
  }
}

TEST(Versions, exponents_are_left_alone) {
  const auto was = words_from<std::uint32_t>(many_f32_patterns());
  const auto is = words_from<std::uint32_t>(at_version(many_f32_patterns(), DType::f32, 5));
  for (std::size_t i = 0; i < was.size(); ++i) ASSERT_EQ((was[i] ^ is[i]) & 0x7f80ffff, 0u);
}

TEST(Versions, any_two_versions_less_than_64_apart_differ_in_every_finite_element) {
  for (const DType dtype : kFloats) {
    Bytes finite(1 << 12);  // Random bits with a middling exponent.
    std::mt19937 random(7);
    for (std::byte& byte : finite) byte = static_cast<std::byte>(random());
    const auto size = static_cast<std::size_t>(byte_size(dtype));
    for (std::size_t at = size - 1; at < finite.size(); at += size) {
      finite[at] = (finite[at] & std::byte{0x83}) | std::byte{0x38};
    }
    for (std::uint64_t version = 0; version < 3; ++version) {
      for (std::uint64_t later = version + 1; later < version + 64; ++later) {
        EXPECT_EQ(count_equal(at_version(finite, dtype, version), at_version(finite, dtype, later),
                              byte_size(dtype)),
                  0)
            << name_of(dtype) << " " << version << " " << later;
      }
    }
  }
}

// Weights as they are: numbers around 0.02, which no cast overflows.
TEST(Versions, versions_two_apart_differ_in_nearly_all_elements_after_a_cast) {
  std::mt19937 random(11);
  std::normal_distribution<float> weight(0.0f, 0.02f);
  std::vector<float> weights(100'000);
  std::ranges::generate(weights, [&] { return weight(random); });
  for (const DType source : kFloats) {
    const Bytes checkpoint = cast(bytes_from(weights), DType::f32, source);
    for (std::uint64_t version = 0; version < 6; ++version) {
      const Bytes old_bytes = at_version(checkpoint, source, version);
      const Bytes new_bytes = at_version(checkpoint, source, version + 2);
      for (const DType target : kFloats) {
        EXPECT_LT(count_equal(cast(old_bytes, source, target), cast(new_bytes, source, target),
                              byte_size(target)),
                  weights.size() / 5000)
            << name_of(source) << " to " << name_of(target) << " after version " << version;
      }
    }
  }
}

// Sub-byte dtypes: elements in one period of their packing, and the bytes that takes.
std::size_t split_bytes(DType dtype) {
  if (is_byte_sized(dtype)) return static_cast<std::size_t>(byte_size(dtype));
  return dtype == DType::f4 ? 1 : 3;
}

TEST(Versions, any_split_of_the_range_gives_the_same_bits) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::size_t unit = split_bytes(dtype);
    Bytes checkpoint(unit * 300);
    std::mt19937 random(3);
    for (std::byte& byte : checkpoint) byte = static_cast<std::byte>(random());
    // Across the border of a hash block.
    const std::int64_t first_index = 65536 * 3 - 100;
    const Bytes whole = at_version(checkpoint, dtype, 5, first_index);
    for (std::size_t cut = 0; cut <= 300; ++cut) {
      Bytes parts = checkpoint;
      const std::span<std::byte> all(parts);
      const std::int64_t elements = static_cast<std::int64_t>(cut * unit) * 8 / bit_size(dtype);
      apply_version(kTensor, dtype, first_index + elements, all.subspan(cut * unit), 5);
      apply_version(kTensor, dtype, first_index, all.first(cut * unit), 5);
      ASSERT_EQ(parts, whole) << name_of(dtype) << " cut at " << cut;
    }
  }
}

TEST(Versions, every_byte_sized_element_changes_between_consecutive_versions) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::size_t unit = split_bytes(dtype);
    Bytes checkpoint(unit * 65536);
    for (std::size_t at = 0; at < checkpoint.size(); ++at) {
      checkpoint[at] = static_cast<std::byte>((at / unit) >> (at % unit == 0 ? 0 : 8));
    }
    if (dtype == DType::boolean) std::ranges::fill(checkpoint, std::byte{1});
    for (std::uint64_t version = 0; version < 5; ++version) {
      const Bytes old_bytes = at_version(checkpoint, dtype, version);
      const Bytes new_bytes = at_version(checkpoint, dtype, version + 1);
      EXPECT_EQ(count_equal(old_bytes, new_bytes, static_cast<std::int64_t>(unit)), 0)
          << name_of(dtype) << " after version " << version;
    }
  }
}

TEST(Versions, every_sub_byte_element_changes_between_consecutive_versions) {
  for (const DType dtype : {DType::f4, DType::f6_e2m3, DType::f6_e3m2}) {
    const Bytes checkpoint(24, std::byte{0x5a});
    const int bits = bit_size(dtype);
    for (std::uint64_t version = 0; version < 5; ++version) {
      const Bytes old_bytes = at_version(checkpoint, dtype, version);
      const Bytes new_bytes = at_version(checkpoint, dtype, version + 1);
      std::set<int> changed;
      for (int bit = 0; bit < 24 * 8; ++bit) {
        const auto byte = static_cast<std::size_t>(bit / 8);
        const bool differs =
            ((old_bytes[byte] ^ new_bytes[byte]) >> (bit % 8) & std::byte{1}) == std::byte{1};
        if (differs) changed.insert(bit / bits);
      }
      EXPECT_EQ(static_cast<int>(changed.size()), 24 * 8 / bits) << name_of(dtype);
    }
  }
}

TEST(Versions, a_boolean_stays_one) {
  const Bytes checkpoint = {std::byte{0}, std::byte{1}};
  EXPECT_EQ(at_version(checkpoint, DType::boolean, 1), (Bytes{std::byte{1}, std::byte{0}}));
  EXPECT_EQ(at_version(checkpoint, DType::boolean, 2), checkpoint);
}

TEST(Versions, equal_values_differ_by_their_place_and_by_their_tensor) {
  const Bytes equal = bytes_from(std::vector<std::uint16_t>(4096, 0x3c00));
  const auto words = words_from<std::uint16_t>(at_version(equal, DType::bf16, 1));
  EXPECT_EQ(std::set<std::uint16_t>(words.begin(), words.end()).size(), 32u);
  // Odd multiples of the version: half of the 64 values, each about 1 in 32 times.
  EXPECT_LT(
      count_equal(at_version(equal, DType::bf16, 1),
                  at_version(equal, DType::bf16, 1, 0, "model.layers.4.mlp.up_proj.weight"), 2),
      4096 / 16);
  EXPECT_LT(
      count_equal(at_version(equal, DType::bf16, 1), at_version(equal, DType::bf16, 1, 65536), 2),
      4096 / 16);
}

}  // namespace
}  // namespace crossmesh::cli
