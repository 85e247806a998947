// SPDX-License-Identifier: Apache-2.0
// Against the formula of docs/ARCHITECTURE.md, written out byte by byte.
#include "crossmesh/memory/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "crossmesh/geometry/view.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/detail/digest_run.h"

namespace crossmesh {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::int64_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// One byte of a tensor.
Digest digest_of_byte(std::byte value, std::int64_t offset_bytes) {
  const std::int64_t word = offset_bytes / 4;
  const std::int64_t in_block = word % 1024;
  const detail::DigestFactors factors = detail::digest_factors(word / 1024);
  const std::uint64_t in_word = static_cast<std::uint64_t>(value) << (offset_bytes % 4 * 8);
  const std::uint64_t in_pair = static_cast<std::uint64_t>(value) << (offset_bytes % 8 * 8);
  const std::uint64_t key = detail::digest_keys()[static_cast<std::size_t>(in_block)];
  return {{in_word * key * factors.keyed, in_pair * factors.plain}, 1};
}

Digest plain_digest(const std::byte* data, std::int64_t offset_bytes, std::int64_t bytes) {
  Digest sum;
  for (std::int64_t i = 0; i < bytes; ++i) sum += digest_of_byte(data[i], offset_bytes + i);
  return sum;
}

Digest digest_on(CpuPath path, const std::byte* data, std::int64_t offset_bytes,
                 std::int64_t bytes) {
  detail::RunDigester digester(path);
  digester.add(data, offset_bytes, bytes);
  return digester.finish();
}

Digest digest_of(const Bytes& bytes) {
  return digest(bytes.data(), 0, static_cast<std::int64_t>(bytes.size()));
}

TEST(Digest, keys_are_odd_and_no_two_are_equal) {
  const auto keys = detail::digest_keys();
  ASSERT_EQ(keys.size(), 1024u);
  EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_TRUE(std::all_of(keys.begin(), keys.end(), [](auto key) { return key % 2 == 1; }));
  for (std::int64_t block = 0; block < 1000; ++block) {
    EXPECT_EQ(detail::digest_factors(block).keyed % 2, 1u);
    EXPECT_EQ(detail::digest_factors(block).plain % 2, 1u);
  }
}

TEST(Digest, is_the_same_number_in_every_build) {
  Bytes bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  EXPECT_EQ(to_string(digest_of(bytes)), "2f792ce86edd58184c33e449d14108c6 of 10000 bytes");
  EXPECT_EQ(to_string(digest_of({})), "00000000000000000000000000000000 of 0 bytes");
}

TEST(Digest, of_every_short_run_is_the_formula_on_every_path) {
  const Bytes bytes = random_bytes(400);
  for (const CpuPath path : kCpuPaths) {
    if (!runs_here(path)) continue;
    for (const std::int64_t offset : {0, 4096 - 70, 3 * 4096 - 5}) {
      for (std::int64_t at = 0; at < 40; ++at) {
        for (std::int64_t count = 0; count <= 160; ++count) {
          // The start in memory has nothing to do with the place in the tensor.
          const std::byte* data = bytes.data() + at * 5 % 32;
          ASSERT_EQ(digest_on(path, data, offset + at, count),
                    plain_digest(data, offset + at, count))
              << name_of(path) << " at " << offset + at << ", " << count << " bytes";
        }
      }
    }
  }
}

TEST(Digest, of_long_runs_is_the_formula_on_every_path) {
  const Bytes bytes = random_bytes(100'000);
  for (const CpuPath path : kCpuPaths) {
    if (!runs_here(path)) continue;
    for (const std::int64_t offset :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{4090}, std::int64_t{1} << 40}) {
      EXPECT_EQ(digest_on(path, bytes.data() + 3, offset, 99'991),
                plain_digest(bytes.data() + 3, offset, 99'991));
    }
  }
}

// A box of a [3, 4, 5] tensor of `width` bytes an element.
struct Case {
  Box box;
  std::int32_t width;
  bool gaps;  // between the rows of the memory that holds the box
};

template <typename Visit>
void for_each_box(const Shape& shape, const Visit& visit) {
  Box box{Index::filled(3, 0), Shape::filled(3, 1)};
  const auto fill = [&](auto&& self, int d) -> void {
    if (d == 3) return visit(box);
    for (box.origin[d] = 0; box.origin[d] < shape[d]; ++box.origin[d]) {
      for (box.shape[d] = 1; box.origin[d] + box.shape[d] <= shape[d]; ++box.shape[d]) {
        self(self, d + 1);
      }
    }
  };
  fill(fill, 0);
}

const Shape kShape = {3, 4, 5};

// The box's elements, each where it lies in the tensor.
Digest elements_of(const Case& c, const Bytes& tensor) {
  Digest sum;
  const Strides strides = contiguous_strides(kShape);
  for (std::int64_t i = 0; i < c.box.shape[0]; ++i) {
    for (std::int64_t j = 0; j < c.box.shape[1]; ++j) {
      for (std::int64_t k = 0; k < c.box.shape[2]; ++k) {
        const std::int64_t at = (c.box.origin[0] + i) * strides[0] +
                                (c.box.origin[1] + j) * strides[1] + c.box.origin[2] + k;
        sum += plain_digest(tensor.data() + at * c.width, at * c.width, c.width);
      }
    }
  }
  return sum;
}

// The strides of a memory that holds the box; the order of dimensions is that of `order`, outermost
// first.
Strides strides_of(const Case& c, const std::array<int, 3>& order) {
  Strides strides = Strides::filled(3, 0);
  std::int64_t step = 1;
  for (int n = 2; n >= 0; --n) {
    const int d = order[static_cast<std::size_t>(n)];
    strides[d] = step;
    step = step * c.box.shape[d] + (c.gaps ? 3 : 0);
  }
  return strides;
}

// Every box of the tensor, however it lies in memory, adds what its elements add one by one; so
// every cut of the tensor adds up to the same.
TEST(Digest, of_every_box_in_every_memory_is_the_sum_of_its_elements) {
  std::array<int, 3> order = {0, 1, 2};
  do {
    for (const std::int32_t width : {1, 2, 4, 8}) {
      const Bytes tensor = random_bytes(volume(Box{{0, 0, 0}, kShape}) * width);
      const Strides strides = contiguous_strides(kShape);
      for_each_box(kShape, [&](const Box& box) {
        for (const bool gaps : {false, true}) {
          const Case c{box, width, gaps};
          const Strides places = strides_of(c, order);
          std::int64_t first = 0;
          for (int d = 0; d < 3; ++d) first += box.origin[d] * strides[d];
          const auto numbering = number({box.shape, places, strides, width, width}, first * width);
          ASSERT_TRUE(numbering);
          // From the tensor into the memory, which is then read again.
          const LoopNest nest = coalesce({box.shape, strides, places, width, width});
          Bytes memory(4000);
          copy(tensor.data() + first * width, memory.data(), nest);
          const Digest expected = elements_of(c, tensor);
          const NumberedPlace place{&*numbering, 0};
          ASSERT_EQ(digest(tensor.data() + first * width, place, nest, DType::u8, DType::u8),
                    expected);
          ASSERT_EQ(digest_written(memory.data(), place, nest), expected);
        }
      });
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Digest, of_a_part_of_a_numbered_memory_counts_from_its_place) {
  // Rows of 6 elements of a tensor whose rows have 10, from column 3 of row 2 on.
  const auto numbering = number({{4, 6}, {6, 1}, {10, 1}, 2, 2}, (2 * 10 + 3) * 2);
  ASSERT_TRUE(numbering);
  EXPECT_EQ(*numbering, (Numbering{{4}, {12}, {20}, 12, 46}));
  for (std::int64_t place = -1; place < 50; ++place) {
    EXPECT_EQ(is_place(*numbering, place), place >= 0 && place < 48) << place;
  }
  const Bytes memory = random_bytes(48);
  Digest expected;
  for (std::int64_t row = 0; row < 4; ++row) {
    expected += plain_digest(memory.data() + row * 12, 46 + row * 20, 12);
  }
  for (std::int64_t begin = 0; begin <= 24; ++begin) {
    // In two parts, cut anywhere.
    Digest sum;
    for (const auto& [from, count] : {std::pair{std::int64_t{0}, begin}, {begin, 24 - begin}}) {
      const LoopNest run{{}, {}, {}, count, 2, 2};
      sum += digest_written(memory.data() + from * 2, {&*numbering, from * 2}, run);
    }
    ASSERT_EQ(sum, expected) << begin;
  }
}

TEST(Digest, of_short_rows_is_the_sum_of_the_rows) {
  // Half of each row of a tensor, which is read where rows are far apart, and numbered as it lies
  // without gaps. Some rows cross the blocks of the digest.
  constexpr std::int64_t kRows = 150;
  for (const std::int64_t run : {2, 8, 12, 40, 48, 56, 64, 72, 100}) {
    for (const std::int64_t first : {0, 4, 8, 4090, 4096}) {
      const std::int64_t apart = run + 56;
      const auto numbering = number({{kRows, run}, {run, 1}, {2 * run, 1}, 1, 1}, first);
      ASSERT_TRUE(numbering);
      const Bytes source = random_bytes(kRows * apart);
      Digest expected;
      for (std::int64_t row = 0; row < kRows; ++row) {
        expected += plain_digest(source.data() + row * apart, first + row * 2 * run, run);
      }
      const LoopNest nest{{kRows}, {apart}, {run}, run, 1, 1};
      ASSERT_EQ(digest(source.data(), {&*numbering, 0}, nest, DType::u8, DType::u8), expected)
          << run << " from " << first;
      // The same in runs of half a row, which the numbering does not have.
      if (run % 2 != 0) continue;
      const LoopNest halves{{kRows, 2}, {apart, run / 2}, {run, run / 2}, run / 2, 1, 1};
      ASSERT_EQ(digest(source.data(), {&*numbering, 0}, halves, DType::u8, DType::u8), expected)
          << run << " from " << first;
    }
  }
}

TEST(Digest, numbers_no_memory_in_which_places_are_shared_or_do_not_nest) {
  // Rows of 3 with a gap of 2 behind each.
  const auto gaps = number({{2, 3}, {5, 1}, {3, 1}, 1, 1}, 0);
  for (std::int64_t place = -1; place < 12; ++place) {
    EXPECT_EQ(is_place(*gaps, place), (place >= 0 && place < 3) || (place >= 5 && place < 8));
  }
  EXPECT_FALSE(number({{3, 4}, {0, 1}, {4, 1}, 2, 2}, 0));  // every row at one place
  EXPECT_FALSE(number({{3, 2}, {2, 3}, {2, 1}, 2, 2}, 0));  // 0 3 2 5 4 7
  EXPECT_FALSE(number({{3, 4}, {-4, 1}, {4, 1}, 2, 2}, 0));
  EXPECT_EQ(number({{3, 0}, {0, 1}, {0, 1}, 2, 2}, 8), (Numbering{{}, {}, {}, 0, 8}));
  EXPECT_EQ(number({{}, {}, {}, 4, 4}, 8), (Numbering{{}, {}, {}, 4, 8}));
}

TEST(Digest, of_what_is_cast_is_that_of_what_a_cast_writes) {
  constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
  constexpr std::int64_t kRows = 3, kColumns = 5001;
  const Bytes source = random_bytes(kRows * kColumns * 4);
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      const auto width = static_cast<std::int32_t>(byte_size(to));
      const LoopNest nest = coalesce({{kRows, kColumns - 1},
                                      {kColumns, 1},
                                      {kColumns + 2, 1},
                                      static_cast<std::int32_t>(byte_size(from)),
                                      width});
      Bytes target(kRows * (kColumns + 2) * 4);
      convert(source.data(), target.data(), nest, from, to);
      const auto numbering =
          number({{kRows, kColumns - 1}, {kColumns + 2, 1}, {kColumns - 1, 1}, width, width}, 40);
      const NumberedPlace place{&*numbering, 0};
      const Digest expected = digest_written(target.data(), place, nest);
      EXPECT_EQ(expected.bytes, kRows * (kColumns - 1) * width);
      EXPECT_EQ(digest(source.data(), place, nest, from, to), expected)
          << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST(Digest, sees_every_flip_of_a_bit_and_every_two) {
  Bytes bytes = random_bytes(40);
  const Digest right = digest_of(bytes);
  const auto flip = [&](std::size_t bit) { bytes[bit / 8] ^= std::byte(1 << bit % 8); };
  for (std::size_t a = 0; a < bytes.size() * 8; ++a) {
    flip(a);
    ASSERT_NE(digest_of(bytes).sums, right.sums) << a;
    for (std::size_t b = a + 1; b < bytes.size() * 8; ++b) {
      flip(b);
      ASSERT_NE(digest_of(bytes).sums, right.sums) << a << ' ' << b;
      flip(b);
    }
    flip(a);
  }
}

// Elements of two values only, zero among them: what cancels most easily.
TEST(Digest, sees_every_swap_and_every_shift) {
  for (const std::size_t width : {1, 2, 4, 8}) {
    const std::size_t count = 24;
    Bytes bytes(count * width);
    for (std::size_t i = 0; i < count; ++i) bytes[i * width] = std::byte(i % 3 == 0 ? 0 : 0x80);
    const Digest right = digest_of(bytes);
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = a + 1; b < count; ++b) {
        if (bytes[a * width] == bytes[b * width]) continue;
        Bytes other = bytes;
        std::swap_ranges(other.begin() + static_cast<std::ptrdiff_t>(a * width),
                         other.begin() + static_cast<std::ptrdiff_t>((a + 1) * width),
                         other.begin() + static_cast<std::ptrdiff_t>(b * width));
        ASSERT_NE(digest_of(other).sums, right.sums) << width << ": " << a << ' ' << b;
      }
    }
    for (std::size_t shift = 1; shift < count; ++shift) {
      Bytes other = bytes;
      std::rotate(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(shift * width),
                  other.end());
      if (other == bytes) continue;
      ASSERT_NE(digest_of(other).sums, right.sums) << width << ": by " << shift;
    }
  }
}

TEST(Digest, sees_blocks_that_changed_places_and_flips_of_one_bit_in_two_of_them) {
  Bytes bytes = random_bytes(8 * 4096);
  const Digest right = digest_of(bytes);
  std::set<std::array<std::uint64_t, 2>> seen = {right.sums};
  for (std::ptrdiff_t a = 0; a < 8; ++a) {
    for (std::ptrdiff_t b = a + 1; b < 8; ++b) {
      Bytes other = bytes;
      std::swap_ranges(other.begin() + a * 4096, other.begin() + (a + 1) * 4096,
                       other.begin() + b * 4096);
      EXPECT_TRUE(seen.insert(digest_of(other).sums).second);
      for (std::size_t byte = 0; byte < 8; ++byte) {
        other = bytes;
        for (const std::ptrdiff_t block : {a, b}) {
          other[static_cast<std::size_t>(block) * 4096 + byte] ^= std::byte{0x80};
        }
        EXPECT_TRUE(seen.insert(digest_of(other).sums).second);
      }
    }
  }
}

TEST(Digest, tells_nothing_from_zeros) {
  EXPECT_EQ(digest_of(Bytes(8)).sums, digest_of({}).sums);
  EXPECT_NE(digest_of(Bytes(8)), digest_of({}));
}

}  // namespace
}  // namespace crossmesh
