// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/detail/copy_path.h"
#include "crossmesh/memory/detail/walk.h"

namespace crossmesh {
namespace {

constexpr std::array kHints = {StoreHint::automatic, StoreHint::cached, StoreHint::streaming};
constexpr std::byte kGuard{0xa5};

using Bytes = std::vector<std::byte>;

// Distinct enough that a misplaced byte shows.
Bytes patterned(std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

void copy_naively(const std::byte* source, std::byte* target, const LoopNest& nest, int d = 0) {
  if (d == nest.counts.size()) {
    for (std::int64_t j = 0; j < nest.run_count * nest.source_element_bytes; ++j) {
      target[j] = source[j];
    }
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[d]; ++i) {
    copy_naively(source + i * nest.source_strides[d], target + i * nest.target_strides[d], nest,
                 d + 1);
  }
}

std::vector<CpuPath> paths_here() {
  std::vector<CpuPath> paths;
  for (const CpuPath path : kCpuPaths) {
    if (runs_here(path)) {
      paths.push_back(path);
    } else {
      std::cout << "[  SKIPPED ] " << name_of(path) << ": this processor lacks it\n";
    }
  }
  return paths;
}

// Runs every path and hint on `nest`, and compares all of the target, guards included.
class CopyChecker {
 public:
  // Requires: the nest stays within `margin` bytes before and `extent` after its start.
  CopyChecker(std::int64_t margin, std::int64_t extent)
      : margin_(margin),
        source_(patterned(margin + extent + 64)),
        expected_(source_.size(), kGuard),
        target_(source_.size(), kGuard) {}

  // Bytes that the whole buffers are shifted by: alignments.
  void check(const LoopNest& nest, std::int64_t source_shift = 0, std::int64_t target_shift = 0) {
    const std::byte* source = source_.data() + margin_ + source_shift;
    std::fill(expected_.begin(), expected_.end(), kGuard);
    copy_naively(source, expected_.data() + margin_ + target_shift, nest);
    for (const CpuPath path : paths_) {
      for (const StoreHint hint : kHints) {
        std::fill(target_.begin(), target_.end(), kGuard);
        detail::copy_on(path, source, target_.data() + margin_ + target_shift, nest, hint);
        ASSERT_EQ(std::memcmp(target_.data(), expected_.data(), target_.size()), 0)
            << name_of(path) << ", hint " << static_cast<int>(hint) << ", counts "
            << to_string(nest.counts) << ", source strides " << to_string(nest.source_strides)
            << ", target strides " << to_string(nest.target_strides) << ", run " << nest.run_count
            << " of " << nest.source_element_bytes << ", shifts " << source_shift << " and "
            << target_shift;
        ++cases_;
      }
    }
  }

  std::int64_t cases() const { return cases_; }

 private:
  std::int64_t margin_;
  Bytes source_;
  Bytes expected_;
  Bytes target_;
  std::vector<CpuPath> paths_ = paths_here();
  std::int64_t cases_ = 0;
};

// Row-major strides of steps that lie `gap` bytes apart, in the order of loops that `reversed`
// says.
Strides strides_of(const DimVector& counts, std::int64_t run_bytes, std::int64_t gap,
                   bool reversed) {
  Strides strides = DimVector::filled(counts.size(), 0);
  std::int64_t step = run_bytes;
  for (int i = 0; i < counts.size(); ++i) {
    const int d = reversed ? i : counts.size() - 1 - i;
    step += gap;
    strides[d] = step;
    step *= std::max<std::int64_t>(1, counts[d]);
  }
  return strides;
}

// Kinds of source strides; targets have the first three, which visit no byte twice.
constexpr int kTargetKinds = 3;
constexpr int kSourceKinds = 6;

Strides strides_of_kind(int kind, const DimVector& counts, std::int64_t run_bytes) {
  switch (kind) {
    case 0:
      return strides_of(counts, run_bytes, 0, false);
    case 1:
      return strides_of(counts, run_bytes, 3, false);
    case 2:
      return strides_of(counts, run_bytes, 0, true);
    case 3:
      return DimVector::filled(counts.size(), 0);
    default:
      break;
  }
  Strides strides = strides_of(counts, run_bytes, kind == 4 ? 0 : 5, kind == 5);
  for (std::int64_t& stride : strides) stride = -stride;
  return strides;
}

void check_all_kinds(CopyChecker& checker, const DimVector& counts) {
  for (const std::int32_t element : {1, 2, 4, 8}) {
    for (std::int64_t run = 0; run <= 9; ++run) {
      for (int s = 0; s < kSourceKinds; ++s) {
        for (int t = 0; t < kTargetKinds; ++t) {
          checker.check({counts, strides_of_kind(s, counts, run * element),
                         strides_of_kind(t, counts, run * element), run, element, element});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Copy, equals_a_byte_loop_for_all_small_nests) {
  CopyChecker checker(3000, 3000);
  check_all_kinds(checker, {});
  for (std::int64_t a = 0; a <= 3; ++a) {
    check_all_kinds(checker, {a});
    for (std::int64_t b = 0; b <= 3; ++b) {
      check_all_kinds(checker, {a, b});
      for (std::int64_t c = 0; c <= 3; ++c) check_all_kinds(checker, {a, b, c});
    }
  }
  std::cout << checker.cases() << " cases\n";
}

TEST(Copy, equals_a_byte_loop_for_a_run_of_every_length_to_200) {
  CopyChecker checker(64, 3 * 220);
  for (std::int64_t run = 0; run <= 200; ++run) {
    checker.check({{}, {}, {}, run, 1, 1}, 1, 2);
    checker.check({{3}, {run}, {run + 7}, run, 1, 1}, 5, 0);
  }
}

TEST(Copy, equals_a_byte_loop_for_a_long_run_of_every_alignment) {
  CopyChecker checker(64, 310'000);
  for (const std::int64_t run :
       {511, 512, 513, 16'383, 16'384, 16'449, 32'768, 32'769, 65'611, 300'200}) {
    for (std::int64_t shift = 0; shift < 64; ++shift) {
      checker.check({{}, {}, {}, run, 1, 1}, shift * 7 % 64, shift);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Copy, equals_a_byte_loop_for_rows_of_every_alignment) {
  CopyChecker checker(64, 18 * 3300);
  for (const std::int64_t run : {512, 575, 1024, 2048, 3001}) {
    for (std::int64_t rows = 1; rows <= 17; rows += 4) {
      for (std::int64_t shift = 0; shift < 64; shift += 3) {
        checker.check({{rows}, {run + 40}, {run}, run, 1, 1}, shift * 5 % 64, shift);
        checker.check({{rows}, {run}, {run + 65}, run, 1, 1}, 0, shift);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Copy, equals_a_byte_loop_for_short_runs_that_fill_the_target) {
  CopyChecker checker(64, 2 * 10'500);
  for (std::int64_t run = 1; run <= 66; ++run) {
    for (const std::int64_t bytes : {511, 512, 600, 4096, 4097, 9000}) {
      const std::int64_t rows = (bytes + run - 1) / run;
      checker.check({{rows}, {2 * run}, {run}, run, 1, 1}, run * 5 % 64, run * 3 % 64);
      checker.check(
          {{2, rows / 2}, {rows / 2 * 2 * run, 2 * run}, {rows / 2 * run + 3, run}, run, 1, 1}, 0,
          run % 7);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Copy, equals_a_byte_loop_for_transposes_larger_than_a_tile) {
  CopyChecker checker(0, 150 * 70 * 8);
  for (const std::int32_t element : {1, 2, 4, 8}) {
    for (const std::int64_t rows : {1, 7, 63, 64, 150}) {
      for (const std::int64_t columns : {1, 8, 33, 64, 70}) {
        checker.check({{rows, columns},
                       {element, rows * element},
                       {columns * element, element},
                       1,
                       element,
                       element});
        checker.check({{columns, rows},
                       {rows * element, element},
                       {element, columns * element},
                       1,
                       element,
                       element});
        checker.check({{rows, 2, columns / 2},
                       {2 * element, element, rows * 2 * element},
                       {columns / 2 * 2 * element, columns / 2 * element, element},
                       1,
                       element,
                       element});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Copy, equals_a_byte_loop_for_as_many_loops_as_there_are_dimensions) {
  CopyChecker checker(0, 10'000);
  const DimVector counts = DimVector::filled(kDimsMax, 2);
  checker.check({counts, strides_of(counts, 6, 1, true), strides_of(counts, 6, 2, false), 3, 2, 2});
}

TEST(Copy, streams_a_copy_larger_than_a_cache_without_a_hint) {
  CopyChecker checker(64, 3 << 20);
  checker.check({{}, {}, {}, (2 << 20) + 13, 1, 1}, 1, 3);
  checker.check({{1001}, {3000}, {1999}, 1999, 1, 1}, 9, 1);
}

TEST(Copy, of_nothing_touches_nothing) {
  copy(nullptr, nullptr, {{}, {}, {}, 0, 2, 2});
  copy(nullptr, nullptr, {{3, 0}, {8, 8}, {8, 8}, 4, 2, 2});
}

TEST(Convert, follows_the_nest_on_every_path) {
  // Every other f32 of three rows, transposed into f16.
  const std::vector<float> source = {1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6};
  const std::vector<std::uint16_t> expected = {0xffff, 0x3c00, 0x4200, 0x4500,
                                               0x4000, 0x4400, 0x4600, 0xffff};
  const LoopNest nest{{2, 3}, {8, 16}, {6, 2}, 1, 4, 2};
  for (const CpuPath path : paths_here()) {
    std::vector<std::uint16_t> target(8, 0xffff);
    detail::convert_on(path, reinterpret_cast<const std::byte*>(source.data()),
                       reinterpret_cast<std::byte*>(target.data() + 1), nest, DType::f32,
                       DType::f16);
    EXPECT_EQ(target, expected) << name_of(path);
  }
}

TEST(Convert, between_equal_dtypes_copies) {
  const Bytes source = patterned(64);
  Bytes target(64);
  convert(source.data(), target.data(), {{}, {}, {}, 8, 8, 8}, DType::f64, DType::f64);
  EXPECT_EQ(target, source);
}

TEST(Convert, a_pair_outside_the_table_is_refused) {
  try {
    convert(nullptr, nullptr, {{}, {}, {}, 1, 8, 4}, DType::f64, DType::f32);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.text(),
              "convert: no cast between these dtypes\n"
              "  source  F64\n"
              "  target  F32\n"
              "  hint  casts exist between F32, F16 and BF16");
  }
}

TEST(CpuPath, those_up_to_the_best_run_here_and_no_wider_one) {
  EXPECT_TRUE(runs_here(CpuPath::portable));
  EXPECT_TRUE(runs_here(best_cpu_path()));
  for (const CpuPath path : kCpuPaths) {
    EXPECT_EQ(runs_here(path), path <= best_cpu_path()) << name_of(path);
  }
}

}  // namespace
}  // namespace crossmesh
