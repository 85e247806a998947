// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_cast.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

std::uint32_t f32_from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00) return sign | 0x7f800000 | (rest & 0x3ff) << 13;
  if (rest >= 0x400) return sign | ((rest << 13) + (112u << 23));
  return sign | std::bit_cast<std::uint32_t>(static_cast<float>(rest) * 0x1p-24f);
}

std::uint16_t f16_from_f32(std::uint32_t bits) {
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t rest = bits & 0x7fffffff;
  std::uint32_t half = 0;
  if (rest > 0x7f800000) {
    half = 0x7e00;
  } else if (rest >= 0x477ff000) {  // 65520 and above round to infinity.
    half = 0x7c00;
  } else if (rest >= 0x38800000) {
    half = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
  } else {  // Subnormal: whole multiples of 2^-24.
    half = static_cast<std::uint32_t>(std::lrint(std::bit_cast<float>(rest) * 0x1p24f));
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint32_t f32_from_bf16(std::uint16_t bits) { return static_cast<std::uint32_t>(bits) << 16; }

std::uint16_t bf16_from_f32(std::uint32_t bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Word>
Word load_word(const std::byte* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

template <typename Source, typename Target, typename Convert>
void cast_each(std::span<const std::byte> source, std::span<std::byte> target, Convert convert) {
  const std::size_t count = source.size() / sizeof(Source);
  assert(target.size() == count * sizeof(Target));
  for (std::size_t i = 0; i < count; ++i) {
    const Target word = convert(load_word<Source>(source.data() + i * sizeof(Source)));
    std::memcpy(target.data() + i * sizeof(Target), &word, sizeof word);
  }
}

}  // namespace

void cast_plainly(DType source_dtype, std::span<const std::byte> source, DType target_dtype,
                  std::span<std::byte> target) {
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  const auto pair = std::pair(source_dtype, target_dtype);
  if (source_dtype == target_dtype) {
    assert(source.size() == target.size());
    if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
  } else if (pair == std::pair(DType::f32, DType::bf16)) {
    cast_each<U32, U16>(source, target, bf16_from_f32);
  } else if (pair == std::pair(DType::f32, DType::f16)) {
    cast_each<U32, U16>(source, target, f16_from_f32);
  } else if (pair == std::pair(DType::bf16, DType::f32)) {
    cast_each<U16, U32>(source, target, f32_from_bf16);
  } else if (pair == std::pair(DType::f16, DType::f32)) {
    cast_each<U16, U32>(source, target, f32_from_f16);
  } else if (pair == std::pair(DType::bf16, DType::f16)) {
    cast_each<U16, U16>(source, target, [](U16 bits) { return f16_from_f32(f32_from_bf16(bits)); });
  } else if (pair == std::pair(DType::f16, DType::bf16)) {
    cast_each<U16, U16>(source, target, [](U16 bits) { return bf16_from_f32(f32_from_f16(bits)); });
  } else {
    throw Error(ErrorCode::unsupported, "cast plainly: these dtypes do not convert")
        .with("source", name_of(source_dtype))
        .with("target", name_of(target_dtype));
  }
}

bool is_nan(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::f32:
      return (load_word<std::uint32_t>(element) & 0x7fffffff) > 0x7f800000;
    case DType::f16:
      return (load_word<std::uint16_t>(element) & 0x7fff) > 0x7c00;
    case DType::bf16:
      return (load_word<std::uint16_t>(element) & 0x7fff) > 0x7f80;
    default:
      return false;
  }
}

}  // namespace crossmesh::cli
