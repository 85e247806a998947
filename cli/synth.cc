// SPDX-License-Identifier: Apache-2.0
#include "cli/synth.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "crossmesh/catalog/write.h"

namespace crossmesh::cli {
namespace {

// A multiple of 8, so that a piece of a sub-byte tensor ends on a byte, and words are whole.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

constexpr double kDeviation = 0.02;
constexpr double kNormDeviation = 0.1;
constexpr double kScaleMean = 0.02;
constexpr double kScaleDeviation = 0.002;

// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014, with
// the state of element i computed instead of reached step by step.
constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::uint64_t key_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t key = mix(seed + kStride);
  for (const char c : name) key = mix((key ^ static_cast<unsigned char>(c)) + kStride);
  return key;
}

std::uint64_t word_at(std::uint64_t key, std::int64_t index) {
  return mix(key + static_cast<std::uint64_t>(index) * kStride);
}

struct Normal {
  double mean;
  double deviation;
};

Normal normal_of(const TensorInfo& tensor) {
  if (tensor.name.ends_with("_scale_inv")) return {kScaleMean, kScaleDeviation};
  const bool is_bias = tensor.name.ends_with("bias");
  if (tensor.shape.size() <= 1 && !is_bias) return {1.0, kNormDeviation};
  return {0.0, kDeviation};
}

// Four uniform numbers of 16 bits add up to an integer within ±131070 whose distribution is close
// to normal; its variance is that of 4 uniforms, (2^32 - 1) / 3.
constexpr double kSumDeviation = 37837.2;

std::int32_t centred_sum(std::uint64_t word) {
  const auto part = [word](int shift) { return static_cast<std::int32_t>(word >> shift & 0xFFFF); };
  return part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF;
}

// Rounded to nearest even. Requires: finite.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounded to nearest even. Requires: |value| < 65504.
std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  std::uint32_t size = bits & 0x7FFFFFFF;
  constexpr std::uint32_t kLeastNormal = 0x38800000;  // 2^-14
  if (size < kLeastNormal) {
    // The last bit of 0.5 in float is the unit of f16's subnormals, so the addition rounds.
    const float shifted = std::bit_cast<float>(size) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000));
  }
  size += 0xFFF + (size >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (size - 0x38000000) >> 13);
}

// A run of elements of one tensor that fills `bytes`; `first` is the index of its first word.
struct Piece {
  std::span<std::byte> bytes;
  std::uint64_t key;
  std::int64_t first;
};

// One word of randomness per element.
template <typename Element, typename Convert>
void fill_normal(const Piece& piece, const Normal& normal, const Convert& convert) {
  const double scale = normal.deviation / kSumDeviation;
  // Added before the product is taken, so that no compiler fuses the two into another rounding.
  const double centre = normal.mean / scale;
  const auto count = static_cast<std::int64_t>(piece.bytes.size() / sizeof(Element));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t sum = centred_sum(word_at(piece.key, piece.first + i));
    const Element element = convert((centre + sum) * scale);
    std::memcpy(piece.bytes.data() + static_cast<std::size_t>(i) * sizeof element, &element,
                sizeof element);
  }
}

// One word of randomness per eight bytes, of which `convert` makes the bytes that are wanted.
template <typename Convert>
void fill_words(const Piece& piece, const Convert& convert) {
  for (std::size_t at = 0; at < piece.bytes.size(); at += 8) {
    const auto index = piece.first + static_cast<std::int64_t>(at / 8);
    const std::uint64_t word = convert(word_at(piece.key, index));
    std::memcpy(piece.bytes.data() + at, &word, std::min<std::size_t>(8, piece.bytes.size() - at));
  }
}

constexpr std::uint64_t in_every_byte(std::uint64_t byte) { return byte * 0x0101010101010101; }

// Without the top bit of the exponent a number is below 2 in size, and neither NaN nor infinity.
std::uint64_t to_small_f8(std::uint64_t word) { return word & in_every_byte(0xBF); }

// The pattern of minus zero, the only NaN of these types, becomes zero.
std::uint64_t to_small_fnuz(std::uint64_t word) {
  word = to_small_f8(word);
  for (int shift = 0; shift < 64; shift += 8) {
    if ((word >> shift & 0xFF) == 0x80) word &= ~(std::uint64_t{0xFF} << shift);
  }
  return word;
}

// Bytes 120 to 127: powers of two from 2^-7 to 1.
std::uint64_t to_scale(std::uint64_t word) {
  return (word & in_every_byte(0x07)) | in_every_byte(0x78);
}

std::uint64_t to_boolean(std::uint64_t word) { return word & in_every_byte(1); }

// The bytes of a tensor that one word of randomness makes.
std::int64_t bytes_per_word(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::c64:
      return 4;
    default:
      return 8;
  }
}

void fill(const Piece& piece, DType dtype, const Normal& normal) {
  switch (dtype) {
    case DType::bf16:
      return fill_normal<std::uint16_t>(
          piece, normal, [](double value) { return to_bf16(static_cast<float>(value)); });
    case DType::f16:
      return fill_normal<std::uint16_t>(
          piece, normal, [](double value) { return to_f16(static_cast<float>(value)); });
    case DType::f32:
    case DType::c64:
      return fill_normal<float>(piece, normal,
                                [](double value) { return static_cast<float>(value); });
    case DType::f64:
      return fill_normal<double>(piece, normal, [](double value) { return value; });
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return fill_words(piece, to_small_f8);
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return fill_words(piece, to_small_fnuz);
    case DType::f8_e8m0:
      return fill_words(piece, to_scale);
    case DType::boolean:
      return fill_words(piece, to_boolean);
    default:
      return fill_words(piece, std::identity{});
  }
}

}  // namespace

void synth(const std::vector<TensorInfo>& tensors, const SynthOptions& options) {
  CheckpointPlan plan{options.folder, tensors, options.shard_count};
  plan.is_replacing = options.is_replacing;
  CheckpointWriter writer(std::move(plan));
  const std::int64_t total_bytes = byte_count(Catalog{tensors});
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPieceBytes, total_bytes)));
  std::int64_t done_bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::uint64_t key = key_of(tensor.name, options.seed);
    const Normal normal = normal_of(tensor);
    const std::int64_t tensor_bytes = byte_count(tensor);
    for (std::int64_t at = 0; at < tensor_bytes; at += kPieceBytes) {
      const auto piece_bytes = static_cast<std::size_t>(std::min(kPieceBytes, tensor_bytes - at));
      const std::span<std::byte> bytes(buffer.data(), piece_bytes);
      fill({bytes, key, at / bytes_per_word(tensor.dtype)}, tensor.dtype, normal);
      writer.append(bytes);
      done_bytes += std::ssize(bytes);
      if (options.on_progress) options.on_progress(done_bytes, total_bytes);
    }
  }
  // The config first: a folder with weights is a whole checkpoint.
  if (!options.config_text.empty()) {
    write_text(options.folder / "config.json", options.config_text);
  }
  writer.publish();
}

}  // namespace crossmesh::cli
