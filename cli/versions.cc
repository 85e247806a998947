// SPDX-License-Identifier: Apache-2.0
#include "cli/versions.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace crossmesh::cli {
namespace {

// Indices are hashed in blocks, so that the inner loops need 16-bit arithmetic only.
constexpr std::int64_t kBlockSize = 65536;

std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The finaliser of SplitMix64.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct BlockSeed {
  std::uint16_t start = 0;
  std::uint16_t factor = 1;
};

BlockSeed seed_of(std::uint64_t tensor_hash, std::int64_t block) {
  const std::uint64_t bits =
      mix(tensor_hash + static_cast<std::uint64_t>(block) * 0x9e3779b97f4a7c15);
  return {static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>((bits >> 16) | 1)};
}

// What a type lets vary: `turned` flips with the version's lowest bit; `digit_mask` digits above
// `shift` take a value that depends on the element and the version, unless the bits of `exponent`
// are all set (an infinity or a NaN).
template <typename Word>
struct Bits {
  Word turned = 0;
  Word exponent = 0;
  std::uint16_t digit_mask = 0;
  int shift = 0;
};

// An odd factor makes `factor * version` differ between all versions modulo a power of two.
inline std::uint16_t digits_of(std::uint16_t position, BlockSeed seed, std::uint16_t version) {
  auto x = static_cast<std::uint16_t>((position ^ seed.start) * 0x9e3bu);
  x = static_cast<std::uint16_t>((x ^ (x >> 7)) * seed.factor);
  return static_cast<std::uint16_t>(((x >> 8) | 1) * version);
}

template <typename Word>
void change_run(std::byte* bytes, std::int64_t count, std::uint16_t position, BlockSeed seed,
                std::uint16_t version, Bits<Word> bits) {
  const Word turned = version % 2 != 0 ? bits.turned : Word{0};
  for (std::int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + i * static_cast<std::int64_t>(sizeof word), sizeof word);
    const auto at = static_cast<std::uint16_t>(position + static_cast<std::uint16_t>(i));
    const auto digits = static_cast<Word>(digits_of(at, seed, version) & bits.digit_mask);
    const bool fixed = bits.exponent != 0 && (word & bits.exponent) == bits.exponent;
    const auto varied = fixed ? Word{0} : static_cast<Word>(digits << bits.shift);
    word = static_cast<Word>(word ^ turned ^ varied);
    std::memcpy(bytes + i * static_cast<std::int64_t>(sizeof word), &word, sizeof word);
  }
}

template <typename Word>
void change(std::uint64_t tensor_hash, std::int64_t first_index, std::span<std::byte> elements,
            std::uint64_t version, Bits<Word> bits) {
  const auto count = static_cast<std::int64_t>(elements.size() / sizeof(Word));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t index = first_index + done;
    const std::int64_t run = std::min(count - done, kBlockSize - index % kBlockSize);
    change_run<Word>(elements.data() + done * static_cast<std::int64_t>(sizeof(Word)), run,
                     static_cast<std::uint16_t>(index % kBlockSize),
                     seed_of(tensor_hash, index / kBlockSize), static_cast<std::uint16_t>(version),
                     bits);
    done += run;
  }
}

// Sub-byte elements flip their top bit, and every second version their lowest: four different
// values per element, whatever its index.
void change_packed(std::span<std::byte> elements, std::uint64_t version, std::uint32_t top_bits,
                   std::size_t period_bytes) {
  const std::uint32_t low_bits = period_bytes == 1 ? top_bits >> 3 : top_bits >> 5;
  const std::uint32_t pattern =
      (version % 2 != 0 ? top_bits : 0u) ^ (version / 2 % 2 != 0 ? low_bits : 0u);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] ^= static_cast<std::byte>(pattern >> (8 * (i % period_bytes)));
  }
}

}  // namespace

void apply_version(std::string_view tensor, DType dtype, std::int64_t first_index,
                   std::span<std::byte> elements, std::uint64_t version) {
  if (version == 0 || elements.empty()) return;
  const std::uint64_t hash = hash_name(tensor);
  const auto with = [&](auto bits) { change(hash, first_index, elements, version, bits); };
  switch (dtype) {
    // Six digits from the top of the mantissa: the narrowest type that a cast may lead to has
    // seven.
    case DType::bf16:
      return with(Bits<std::uint16_t>{0x8000, 0x7f80, 63, 1});
    case DType::f16:
      return with(Bits<std::uint16_t>{0x8000, 0x7c00, 63, 4});
    case DType::f32:
      return with(Bits<std::uint32_t>{0x80000000, 0x7f800000, 63, 17});
    case DType::f64:
      return with(Bits<std::uint64_t>{std::uint64_t{1} << 63, std::uint64_t{0x7ff} << 52, 63, 46});
    case DType::c64:  // Two f32 per element.
      first_index *= 2;
      return with(Bits<std::uint32_t>{0x80000000, 0x7f800000, 63, 17});
    case DType::f8_e4m3:
      return with(Bits<std::uint8_t>{0x80, 0x78, 7, 0});
    case DType::f8_e5m2:
      return with(Bits<std::uint8_t>{0x80, 0x7c, 3, 0});
    case DType::boolean:
      return with(Bits<std::uint8_t>{1, 0, 0, 0});
    case DType::u8:
    case DType::i8:
    case DType::f8_e8m0:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return with(Bits<std::uint8_t>{0, 0, 255, 0});
    case DType::u16:
    case DType::i16:
      return with(Bits<std::uint16_t>{0, 0, 255, 0});
    case DType::u32:
    case DType::i32:
      return with(Bits<std::uint32_t>{0, 0, 255, 0});
    case DType::u64:
    case DType::i64:
      return with(Bits<std::uint64_t>{0, 0, 255, 0});
    case DType::f4:
      return change_packed(elements, version, 0x88, 1);
    case DType::f6_e2m3:
    case DType::f6_e3m2:
      return change_packed(elements, version, 0x820820, 3);
  }
  assert(false);
}

}  // namespace crossmesh::cli
