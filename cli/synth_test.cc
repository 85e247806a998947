// SPDX-License-Identifier: Apache-2.0
#include "cli/synth.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/read.h"
#include "crossmesh/catalog/temporary_folder.h"

namespace crossmesh::cli {
namespace {

using catalog_testing::bytes_of_file;
using catalog_testing::TemporaryFolder;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The bytes of all tensors, in order.
std::string made(const std::vector<TensorInfo>& tensors, std::uint64_t seed, int shard_count) {
  const TemporaryFolder folder;
  SynthOptions options;
  options.folder = folder.path();
  options.seed = seed;
  options.shard_count = shard_count;
  synth(tensors, options);
  const Checkpoint checkpoint = read(folder.path());
  EXPECT_EQ(checkpoint.catalog(), Catalog{tensors});
  std::string all;
  for (const TensorInfo& tensor : tensors) all += text_of(checkpoint.bytes(tensor.name));
  return all;
}

// The value of a pattern of a small float type with these bits, by its definition.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
};
double value_of(std::uint64_t bits, const FloatFormat& format) {
  const auto mantissa =
      static_cast<double>(bits & ((std::uint64_t{1} << format.mantissa_bits) - 1));
  const auto exponent = static_cast<int>(bits >> format.mantissa_bits &
                                         ((std::uint64_t{1} << format.exponent_bits) - 1));
  const bool is_negative = bits >> (format.mantissa_bits + format.exponent_bits) & 1;
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  const double size = exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                                    : std::ldexp(1 + fraction, exponent - format.bias);
  return is_negative ? -size : size;
}

const std::vector<TensorInfo> kMixed = {{"embed.weight", DType::bf16, {1000, 700}},
                                        {"norm.weight", DType::f32, {33}},
                                        {"q.bias", DType::f16, {77}},
                                        {"codes", DType::f4, {3, 2}},
                                        {"ids", DType::i64, {5}}};

TEST(Synth, depends_on_the_seed_and_not_on_the_shards) {
  const std::string one = made(kMixed, 7, 1);
  EXPECT_EQ(made(kMixed, 7, 1), one);
  EXPECT_EQ(made(kMixed, 7, 2), one);
  EXPECT_EQ(made(kMixed, 7, 5), one);
  EXPECT_NE(made(kMixed, 8, 1), one);
}

TEST(Synth, a_tensor_does_not_depend_on_the_others) {
  const std::string alone = made({kMixed[0]}, 7, 1);
  EXPECT_EQ(made({kMixed[1], kMixed[0]}, 7, 1).substr(33 * 4), alone);
  auto renamed = kMixed[0];
  renamed.name = "lm_head.weight";
  EXPECT_NE(made({renamed}, 7, 1), alone);
}

TEST(Synth, is_the_same_on_every_machine) {
  const std::string bytes =
      made({{"a", DType::bf16, {2, 2}}, {"b", DType::f32, {1, 1}}, {"n", DType::f32, {1}}}, 1, 1);
  std::string hexadecimal;
  for (const char c : bytes) hexadecimal += fmt::format("{:02x}", static_cast<unsigned char>(c));
  EXPECT_EQ(hexadecimal, "14bc6e3b40bc9e3c3057f43ce707983f");
}

template <typename Bits>
std::vector<double> values_of(std::string_view bytes, const FloatFormat& format) {
  std::vector<double> values;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    values.push_back(value_of(bits, format));
  }
  return values;
}

std::vector<double> float_values(const TensorInfo& tensor) {
  const std::string bytes = made({tensor}, 3, 1);
  switch (tensor.dtype) {
    case DType::bf16:
      return values_of<std::uint16_t>(bytes, {8, 7, 127});
    case DType::f16:
      return values_of<std::uint16_t>(bytes, {5, 10, 15});
    case DType::f64:
      return values_of<std::uint64_t>(bytes, {11, 52, 1023});
    default:
      return values_of<std::uint32_t>(bytes, {8, 23, 127});
  }
}

TEST(Synth, float_values_are_about_normal) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64, DType::c64}) {
    struct Row {
      TensorInfo tensor;
      double mean;
      double deviation;
    };
    const Row rows[] = {{{"w", dtype, {200, 200}}, 0.0, 0.02},
                        {{"norm.weight", dtype, {40'000}}, 1.0, 0.1},
                        {{"q_proj.bias", dtype, {40'000}}, 0.0, 0.02},
                        {{"w_scale_inv", dtype, {200, 200}}, 0.02, 0.002}};
    for (const Row& row : rows) {
      const auto values = float_values(row.tensor);
      double sum = 0;
      double squares = 0;
      double greatest = 0;
      for (const double value : values) {
        sum += value;
        squares += (value - row.mean) * (value - row.mean);
        greatest = std::max(greatest, std::abs(value - row.mean));
      }
      const auto count = static_cast<double>(values.size());
      EXPECT_NEAR(sum / count, row.mean, row.deviation * 0.02) << explain({{row.tensor}});
      EXPECT_NEAR(std::sqrt(squares / count), row.deviation, row.deviation * 0.02);
      EXPECT_GT(greatest, row.deviation * 3);
      EXPECT_LT(greatest, row.deviation * 3.6);
    }
  }
}

TEST(Synth, f16_is_the_nearest_to_the_f32_of_the_same_place) {
  // Both round the same number, f16 once more, so it must be the nearest of the three around.
  const auto wide = float_values({"w", DType::f32, {300, 300}});
  const auto narrow_bytes = made({{"w", DType::f16, {300, 300}}}, 3, 1);
  int subnormals = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, narrow_bytes.data() + 2 * i, 2);
    const FloatFormat format{5, 10, 15};
    const double error = std::abs(value_of(bits, format) - wide[i]);
    const auto size = static_cast<std::uint16_t>(bits & 0x7FFF);
    subnormals += size < 0x400;
    ASSERT_LE(error, std::abs(value_of(static_cast<std::uint16_t>(bits + 1), format) - wide[i]));
    if (size == 0) continue;
    ASSERT_LE(error, std::abs(value_of(static_cast<std::uint16_t>(bits - 1), format) - wide[i]));
  }
  EXPECT_GT(subnormals, 50);
}

TEST(Synth, no_pattern_of_a_small_type_is_a_nan_or_an_infinity) {
  const auto patterns = [](DType dtype) {
    const std::string bytes = made({{"w", dtype, {100'000}}}, 3, 1);
    std::set<int> seen;
    for (const char c : bytes) seen.insert(static_cast<unsigned char>(c));
    return seen;
  };
  std::set<int> below_two;
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 0x40) == 0) below_two.insert(byte);
  }
  EXPECT_EQ(patterns(DType::f8_e4m3), below_two);
  EXPECT_EQ(patterns(DType::f8_e5m2), below_two);
  std::set<int> without_minus_zero = below_two;
  without_minus_zero.erase(0x80);
  EXPECT_EQ(patterns(DType::f8_e4m3fnuz), without_minus_zero);
  EXPECT_EQ(patterns(DType::f8_e5m2fnuz), without_minus_zero);
  EXPECT_EQ(patterns(DType::f8_e8m0), (std::set<int>{120, 121, 122, 123, 124, 125, 126, 127}));
  EXPECT_EQ(patterns(DType::boolean), (std::set<int>{0, 1}));
  EXPECT_EQ(patterns(DType::u8).size(), 256U);
}

TEST(Synth, every_two_rows_differ) {
  const std::size_t row_bytes = 64 * 2;
  const std::string bytes = made({{"w", DType::bf16, {20'000, 64}}}, 3, 1);
  std::set<std::string_view> rows;
  for (std::size_t at = 0; at < bytes.size(); at += row_bytes) {
    rows.insert(std::string_view(bytes).substr(at, row_bytes));
  }
  EXPECT_EQ(rows.size(), 20'000U);
}

TEST(Synth, tensors_of_every_dtype_are_made) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    tensors.push_back({fmt::format("t{}", i), static_cast<DType>(i), {3, 8}});
  }
  tensors.push_back({"scalar", DType::f32, {}});
  tensors.push_back({"empty", DType::f32, {0}});
  EXPECT_EQ(std::ssize(made(tensors, 1, 3)), byte_count(Catalog{tensors}));
}

TEST(Synth, the_config_lies_beside_and_progress_is_told) {
  const TemporaryFolder folder;
  SynthOptions options;
  options.folder = folder / "new/model";
  options.config_text = "{\"model_type\": \"llama\"}\n";
  std::string progress;
  options.on_progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
    progress += fmt::format("{}/{} ", done_bytes, total_bytes);
  };
  synth({{"a", DType::u8, {(2 << 20) + 1}}, {"b", DType::f32, {1}}}, options);
  EXPECT_EQ(progress, "1048576/2097157 2097152/2097157 2097153/2097157 2097157/2097157 ");
  EXPECT_EQ(bytes_of_file(options.folder / "config.json"), options.config_text);
  try {
    synth({}, options);
    ADD_FAILURE() << "a checkpoint was overwritten";
  } catch (const Error& error) {
    EXPECT_EQ(error.text(),
              fmt::format("write: the folder holds a checkpoint\n  found  model.safetensors\n"
                          "  folder  {}\n  hint  give an empty folder, or remove the checkpoint",
                          options.folder.string()));
  }
}

}  // namespace
}  // namespace crossmesh::cli
