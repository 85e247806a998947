// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/detail/cast.h"

#include <bit>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossmesh::detail {
namespace {

using Half = std::uint16_t;
using Word = std::uint32_t;

constexpr Word kF32Sign = 0x8000'0000;
constexpr Word kF32Infinity = 0x7f80'0000;
constexpr Word kF32Quiet = 0x0040'0000;

// Drops the low `shift` bits, to nearest, ties to even.
constexpr Word rounded(Word value, Word shift) {
  return (value + (Word{1} << (shift - 1)) - 1 + (value >> shift & 1)) >> shift;
}

Word f32_of_bf16(Half value) { return Word{value} << 16; }

Half bf16_of_f32(Word value) {
  if ((value & ~kF32Sign) > kF32Infinity) return static_cast<Half>((value | kF32Quiet) >> 16);
  return static_cast<Half>(rounded(value, 16));
}

Word f32_of_f16(Half value) {
  const Word sign = Word{value & 0x8000u} << 16;
  const Word exponent = value >> 10 & 0x1f;
  const Word fraction = value & 0x3ff;
  if (exponent == 0x1f) {
    return sign | kF32Infinity | fraction << 13 | (fraction != 0 ? kF32Quiet : 0);
  }
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
  if (fraction == 0) return sign;
  // A subnormal: its leading one becomes the hidden bit.
  const Word shift = static_cast<Word>(std::countl_zero(fraction)) - 21;
  return sign | (113 - shift) << 23 | (fraction << shift & 0x3ff) << 13;
}

Half f16_of_f32(Word value) {
  const Word sign = value >> 16 & 0x8000;
  const Word magnitude = value & ~kF32Sign;
  const Word exponent = magnitude >> 23;
  if (magnitude > kF32Infinity) {
    return static_cast<Half>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  // At 2^16 and above; what rounds up to 2^16 carries into infinity by itself.
  if (exponent >= 143) return static_cast<Half>(sign | 0x7c00);
  if (exponent >= 113) return static_cast<Half>(sign | rounded(magnitude - (Word{112} << 23), 13));
  // Below 2^-25 all round to zero.
  if (exponent < 102) return static_cast<Half>(sign);
  const Word significand = (magnitude & 0x7f'ffff) | 0x80'0000;
  return static_cast<Half>(sign | rounded(significand, 126 - exponent));
}

Half f16_of_bf16(Half value) { return f16_of_f32(f32_of_bf16(value)); }
Half bf16_of_f16(Half value) { return bf16_of_f32(f32_of_f16(value)); }

template <typename Source, typename Target, Target (*kConvert)(Source)>
void cast_portable(const std::byte* source, std::byte* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Source element;
    std::memcpy(&element, source + i * std::int64_t{sizeof(Source)}, sizeof(Source));
    const Target converted = kConvert(element);
    std::memcpy(target + i * std::int64_t{sizeof(Target)}, &converted, sizeof(Target));
  }
}

constexpr CastRun kF32OfBf16 = cast_portable<Half, Word, f32_of_bf16>;
constexpr CastRun kF32OfF16 = cast_portable<Half, Word, f32_of_f16>;
constexpr CastRun kBf16OfF32 = cast_portable<Word, Half, bf16_of_f32>;
constexpr CastRun kF16OfF32 = cast_portable<Word, Half, f16_of_f32>;
constexpr CastRun kF16OfBf16 = cast_portable<Half, Half, f16_of_bf16>;
constexpr CastRun kBf16OfF16 = cast_portable<Half, Half, bf16_of_f16>;

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,f16c")

// Eight f32 bit patterns, and how eight elements of each type become them and come from them.

inline __m256i load_f32(const std::byte* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}
inline __m128i load_half(const std::byte* source) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
}
inline __m256i load_bf16(const std::byte* source) {
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(source)), 16);
}
inline __m256i load_f16(const std::byte* source) {
  return _mm256_castps_si256(_mm256_cvtph_ps(load_half(source)));
}

inline void store_f32(std::byte* target, __m256i words) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), words);
}
inline void store_half(std::byte* target, __m128i halves) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), halves);
}
inline void store_f16(std::byte* target, __m256i words) {
  store_half(target, _mm256_cvtps_ph(_mm256_castsi256_ps(words), _MM_FROUND_TO_NEAREST_INT));
}
inline void store_bf16(std::byte* target, __m256i words) {
  const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi32(0x7fff'ffff));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kF32Infinity));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(words, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(words, _mm256_set1_epi32(kF32Quiet));
  const __m256i wide = _mm256_blendv_epi8(_mm256_add_epi32(words, bias), quiet, is_nan);
  const __m256i high = _mm256_srli_epi32(wide, 16);
  const __m256i packed = _mm256_packus_epi32(high, high);
  store_half(target, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)));
}

using Load8 = __m256i (*)(const std::byte*);
using Store8 = void (*)(std::byte*, __m256i);

template <Load8 kLoad, int kSourceBytes, Store8 kStore, int kTargetBytes, CastRun kRest>
void cast_avx2(const std::byte* source, std::byte* target, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    kStore(target + i * kTargetBytes, kLoad(source + i * kSourceBytes));
  kRest(source + i * kSourceBytes, target + i * kTargetBytes, count - i);
}

CastRun cast_avx2_of(DType source, DType target) {
  if (source == DType::f32) {
    return target == DType::f16 ? cast_avx2<load_f32, 4, store_f16, 2, kF16OfF32>
                                : cast_avx2<load_f32, 4, store_bf16, 2, kBf16OfF32>;
  }
  if (source == DType::f16) {
    return target == DType::f32 ? cast_avx2<load_f16, 2, store_f32, 4, kF32OfF16>
                                : cast_avx2<load_f16, 2, store_bf16, 2, kBf16OfF16>;
  }
  return target == DType::f32 ? cast_avx2<load_bf16, 2, store_f32, 4, kF32OfBf16>
                              : cast_avx2<load_bf16, 2, store_f16, 2, kF16OfBf16>;
}

#pragma GCC pop_options

#endif

CastRun cast_portable_of(DType source, DType target) {
  if (source == DType::f32) return target == DType::f16 ? kF16OfF32 : kBf16OfF32;
  if (source == DType::f16) return target == DType::f32 ? kF32OfF16 : kBf16OfF16;
  return target == DType::f32 ? kF32OfBf16 : kF16OfBf16;
}

}  // namespace

CastRun cast_of(CpuPath path, DType source, DType target) {
  assert(is_castable(source, target));
#if defined(__x86_64__)
  if (path == CpuPath::avx2) return cast_avx2_of(source, target);
#endif
  static_cast<void>(path);
  return cast_portable_of(source, target);
}

}  // namespace crossmesh::detail
