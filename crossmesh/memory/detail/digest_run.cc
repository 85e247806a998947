// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/detail/digest_run.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossmesh::detail {
namespace {

constexpr std::int64_t kWordBytes = 4;
constexpr std::int64_t kBlockBytes = kDigestBlockWords * kWordBytes;
constexpr auto kBlockWords = static_cast<std::size_t>(kDigestBlockWords);
// Vectors of keys that start at the last words may be loaded whole.
constexpr std::size_t kPadding = 8;

// Scatters the bits of a counter: three rounds of shifting and multiplying by odd numbers.
constexpr std::uint64_t scattered(std::uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ value >> 30) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ value >> 27) * 0x94d0'49bb'1331'11eb;
  return value ^ value >> 31;
}

using Keys = std::array<std::uint32_t, kBlockWords + kPadding>;

// Keys from word `first` of a block on.
constexpr Keys keys_from(std::size_t first) {
  Keys keys{};
  for (std::size_t i = 0; i + first < kBlockWords; ++i) {
    keys[i] = static_cast<std::uint32_t>(scattered(i + first) >> 32) | 1;
  }
  return keys;
}

alignas(64) constexpr Keys kKeys = keys_from(0);
// One word further, so that the keys of odd words load from line borders as well.
alignas(64) constexpr Keys kNextKeys = keys_from(1);

void add_word(BlockSums& sums, std::int64_t word, std::uint32_t value) {
  sums.keyed += std::uint64_t{value} * kKeys[static_cast<std::size_t>(word)];
  sums.plain += std::uint64_t{value} << (word % 2 * 32);
}

// Bytes that lie in one word.
void add_part_of_word(BlockSums& sums, std::int64_t at, const std::byte* data, std::int64_t bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, data, static_cast<std::size_t>(bytes));
  add_word(sums, at / kWordBytes, value << (at % kWordBytes * 8));
}

inline void add_pairs_portable(BlockSums& sums, std::int64_t word, const std::byte* data,
                               std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    std::uint64_t pair;
    std::memcpy(&pair, data + i * 2 * kWordBytes, sizeof(pair));
    const auto at = static_cast<std::size_t>(word + 2 * i);
    sums.keyed += (pair & 0xffff'ffff) * kKeys[at] + (pair >> 32) * kNextKeys[at];
    sums.plain += pair;
  }
}

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2")

__m256i load(const void* data) { return _mm256_loadu_si256(static_cast<const __m256i*>(data)); }

std::uint64_t sum_of_lanes(__m256i lanes) {
  alignas(32) std::array<std::uint64_t, 4> values;
  _mm256_store_si256(reinterpret_cast<__m256i*>(values.data()), lanes);
  return values[0] + values[1] + values[2] + values[3];
}

// The products of the four pairs of words of a vector with their keys.
__m256i keyed(__m256i words, std::size_t at) {
  const __m256i even = _mm256_mul_epu32(words, load(&kKeys[at]));
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(words, 32), load(&kNextKeys[at]));
  return _mm256_add_epi64(even, odd);
}

void add_pairs_avx2(BlockSums& sums, std::int64_t word, const std::byte* data, std::int64_t pairs) {
  constexpr std::int64_t kVectorPairs = 4;
  __m256i keyed_low = _mm256_setzero_si256();
  __m256i keyed_high = keyed_low;
  __m256i plain = keyed_low;
  std::int64_t i = 0;
  for (; i + 2 * kVectorPairs <= pairs; i += 2 * kVectorPairs) {
    const __m256i low = load(data + i * 8);
    const __m256i high = load(data + i * 8 + 32);
    const auto at = static_cast<std::size_t>(word + 2 * i);
    plain = _mm256_add_epi64(plain, _mm256_add_epi64(low, high));
    keyed_low = _mm256_add_epi64(keyed_low, keyed(low, at));
    keyed_high = _mm256_add_epi64(keyed_high, keyed(high, at + 8));
  }
  for (; i + kVectorPairs <= pairs; i += kVectorPairs) {
    const __m256i words = load(data + i * 8);
    plain = _mm256_add_epi64(plain, words);
    keyed_low = _mm256_add_epi64(keyed_low, keyed(words, static_cast<std::size_t>(word + 2 * i)));
  }
  sums.keyed += sum_of_lanes(_mm256_add_epi64(keyed_low, keyed_high));
  sums.plain += sum_of_lanes(plain);
  add_pairs_portable(sums, word + 2 * i, data + i * 8, pairs - i);
}

#pragma GCC pop_options

#endif

void add_pairs(CpuPath path, BlockSums& sums, std::int64_t word, const std::byte* data,
               std::int64_t pairs) {
#if defined(__x86_64__)
  // Fewer would not pay for adding up the lanes.
  constexpr std::int64_t kPairsMin = 8;
  if (path == CpuPath::avx2 && pairs >= kPairsMin) return add_pairs_avx2(sums, word, data, pairs);
#endif
  static_cast<void>(path);
  add_pairs_portable(sums, word, data, pairs);
}

// Bytes that lie in one block, from byte `at` of it.
void add_bytes(CpuPath path, BlockSums& sums, const std::byte* data, std::int64_t at,
               std::int64_t bytes) {
  const std::byte* const end = data + bytes;
  const auto take = [&](std::int64_t count) {
    add_part_of_word(sums, at, data, count);
    at += count;
    data += count;
  };
  if (at % kWordBytes != 0) take(std::min(kWordBytes - at % kWordBytes, end - data));
  if (at % (2 * kWordBytes) != 0 && end - data >= kWordBytes) take(kWordBytes);
  const std::int64_t pairs = (end - data) / (2 * kWordBytes);
  if (pairs > 0 && at % (2 * kWordBytes) == 0) {
    add_pairs(path, sums, at / kWordBytes, data, pairs);
    at += pairs * 2 * kWordBytes;
    data += pairs * 2 * kWordBytes;
  }
  while (data < end) take(std::min<std::int64_t>(kWordBytes, end - data));
}

}  // namespace

std::span<const std::uint32_t> digest_keys() { return std::span(kKeys).first(kBlockWords); }

DigestFactors digest_factors(std::int64_t block) {
  // Counters that the keys do not use.
  const auto counter = (std::uint64_t{1} << 63) + 2 * static_cast<std::uint64_t>(block);
  return {scattered(counter) | 1, scattered(counter + 1) | 1};
}

void RunDigester::enter(std::int64_t block) {
  if (block_ >= 0) {
    const DigestFactors factors = digest_factors(block_);
    digest_.sums[0] += sums_.keyed * factors.keyed;
    digest_.sums[1] += sums_.plain * factors.plain;
  }
  block_ = block;
  sums_ = {};
}

void RunDigester::add(const std::byte* data, std::int64_t offset_bytes, std::int64_t bytes) {
  digest_.bytes += bytes;
  while (bytes > 0) {
    const std::int64_t block = offset_bytes / kBlockBytes;
    const std::int64_t at = offset_bytes % kBlockBytes;
    const std::int64_t part = std::min(kBlockBytes - at, bytes);
    if (block != block_) enter(block);
    add_bytes(path_, sums_, data, at, part);
    data += part;
    offset_bytes += part;
    bytes -= part;
  }
}

void RunDigester::add_rows(const std::byte* data, const DigestRows& rows) {
  constexpr std::int64_t kPairBytes = 2 * kWordBytes;
  constexpr std::int64_t kShortBytes = 8 * kPairBytes;
  const bool is_short = rows.run_bytes <= kShortBytes &&
                        (rows.run_bytes | rows.offset_bytes | rows.stride_bytes) % kPairBytes == 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::byte* const run = data + i * rows.data_stride_bytes;
    const std::int64_t offset = rows.offset_bytes + i * rows.stride_bytes;
    const std::int64_t at = offset % kBlockBytes;
    if (is_short && offset / kBlockBytes == block_ && at + rows.run_bytes <= kBlockBytes) {
      add_pairs_portable(sums_, at / kWordBytes, run, rows.run_bytes / kPairBytes);
      digest_.bytes += rows.run_bytes;
    } else {
      add(run, offset, rows.run_bytes);
    }
  }
}

Digest RunDigester::finish() {
  enter(-1);
  return digest_;
}

}  // namespace crossmesh::detail
