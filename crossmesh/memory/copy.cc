// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/copy.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/detail/cast.h"
#include "crossmesh/memory/detail/copy_path.h"
#include "crossmesh/memory/detail/stream.h"
#include "crossmesh/memory/detail/walk.h"

namespace crossmesh::detail {
namespace {

// Below this a copy fits the cache of one core, where the next reader would rather find it.
constexpr std::int64_t kStreamBytesMin = std::int64_t{256} << 10;
// Shorter runs have too few whole lines to stream.
constexpr std::int64_t kStreamRunBytesMin = 512;
// Longer runs are streamed by themselves, shorter ones side by side.
constexpr std::int64_t kRowBytesMax = std::int64_t{32} << 10;

// What short runs are gathered into: a part of the first cache.
constexpr std::int64_t kGatherBytes = std::int64_t{4} << 10;

// The sides of the tiles of a transpose.
constexpr std::int64_t kTileRowBytes = 128;
constexpr std::int64_t kTileEdgeMin = 4;

// One loop around runs: where most time is spent.
struct Rows {
  const std::byte* source;
  std::byte* target;
  std::int64_t count;
  std::int64_t source_stride;
  std::int64_t target_stride;
};

template <std::int64_t kBytes>
void copy_fixed(const Rows& rows) {
  const std::byte* source = rows.source;
  std::byte* target = rows.target;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    std::memcpy(target, source, kBytes);
    source += rows.source_stride;
    target += rows.target_stride;
  }
}

// Runs of kHalf to 2 * kHalf bytes, as two blocks that may overlap.
template <std::int64_t kHalf>
void copy_halves(const Rows& rows, std::int64_t run_bytes) {
  struct Block {
    std::byte bytes[kHalf];
  };
  const std::byte* source = rows.source;
  std::byte* target = rows.target;
  const std::int64_t last = run_bytes - kHalf;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    Block first_block;
    Block last_block;
    std::memcpy(&first_block, source, kHalf);
    std::memcpy(&last_block, source + last, kHalf);
    std::memcpy(target, &first_block, kHalf);
    std::memcpy(target + last, &last_block, kHalf);
    source += rows.source_stride;
    target += rows.target_stride;
  }
}

void copy_cached(const Rows& rows, std::int64_t run_bytes) {
  switch (run_bytes) {
    case 1:
      return copy_fixed<1>(rows);
    case 2:
      return copy_fixed<2>(rows);
    case 4:
      return copy_fixed<4>(rows);
    case 8:
      return copy_fixed<8>(rows);
    case 16:
      return copy_fixed<16>(rows);
    case 32:
      return copy_fixed<32>(rows);
    case 48:
      return copy_fixed<48>(rows);
    case 64:
      return copy_fixed<64>(rows);
    default:
      break;
  }
  if (run_bytes >= 8 && run_bytes < 16) return copy_halves<8>(rows, run_bytes);
  if (run_bytes > 16 && run_bytes < 32) return copy_halves<16>(rows, run_bytes);
  if (run_bytes > 32 && run_bytes < 64) return copy_halves<32>(rows, run_bytes);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    std::memcpy(rows.target + i * rows.target_stride, rows.source + i * rows.source_stride,
                static_cast<std::size_t>(run_bytes));
  }
}

// The last loop of `nest` from an offset on; one step when there is no loop.
Rows last_loop(const std::byte* source, std::byte* target, const LoopNest& nest) {
  if (nest.counts.empty()) return {source, target, 1, 0, 0};
  return {source, target, nest.counts.back(), nest.source_strides.back(),
          nest.target_strides.back()};
}

void copy_cached(const std::byte* source, std::byte* target, const LoopNest& nest) {
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  walk(nest, std::max(0, nest.counts.size() - 1), [&](std::int64_t s, std::int64_t t) {
    copy_cached(last_loop(source + s, target + t, nest), run_bytes);
  });
}

// Whether walking `nest` row by row would use each line of the source once per element.
bool is_transposed(const LoopNest& nest) {
  const int last = nest.counts.size() - 1;
  if (last < 1 || nest.run_count * nest.source_element_bytes >= kLineBytes) return false;
  return std::abs(nest.source_strides[last]) >= kLineBytes &&
         std::abs(nest.source_strides[last - 1]) < std::abs(nest.source_strides[last]);
}

// The last two loops in tiles, whose lines stay in the cache on both sides.
void copy_tiled(const std::byte* source, std::byte* target, const LoopNest& nest) {
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  const std::int64_t edge = std::max<std::int64_t>(kTileEdgeMin, kTileRowBytes / run_bytes);
  const int last = nest.counts.size() - 1;
  const auto copy_tile = [&](const std::byte* s, std::byte* t, std::int64_t rows,
                             std::int64_t columns) {
    for (std::int64_t i = 0; i < rows; ++i) {
      copy_cached({s + i * nest.source_strides[last - 1], t + i * nest.target_strides[last - 1],
                   columns, nest.source_strides[last], nest.target_strides[last]},
                  run_bytes);
    }
  };
  walk(nest, last - 1, [&](std::int64_t s, std::int64_t t) {
    for (std::int64_t i = 0; i < nest.counts[last - 1]; i += edge) {
      for (std::int64_t j = 0; j < nest.counts[last]; j += edge) {
        copy_tile(source + s + i * nest.source_strides[last - 1] + j * nest.source_strides[last],
                  target + t + i * nest.target_strides[last - 1] + j * nest.target_strides[last],
                  std::min(edge, nest.counts[last - 1] - i), std::min(edge, nest.counts[last] - j));
      }
    }
  });
}

void copy_streaming(CpuPath path, const std::byte* source, std::byte* target,
                    const LoopNest& nest) {
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  RowLanes held_rows{};
  std::size_t held = 0;
  const auto copy_run = [&](const Lane& run) {
    if (run_bytes > kRowBytesMax) return stream_run(path, run, run_bytes);
    held_rows[held++] = run;
    if (held < held_rows.size()) return;
    stream_rows(path, held_rows, run_bytes);
    held = 0;
  };
  walk(nest, std::max(0, nest.counts.size() - 1), [&](std::int64_t s, std::int64_t t) {
    const Rows rows = last_loop(source + s, target + t, nest);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      copy_run({rows.source + i * rows.source_stride, rows.target + i * rows.target_stride});
    }
  });
  for (std::size_t i = 0; i < held; ++i) stream_run(path, held_rows[i], run_bytes);
}

// Whether the runs of the last loop are short, lie one behind the other at the target, and make a
// long one. Runs of more than a line gain less than the second copy costs.
bool fills_target(const LoopNest& nest) {
  if (nest.counts.empty()) return false;
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  return run_bytes <= kLineBytes && nest.target_strides.back() == run_bytes &&
         nest.counts.back() * run_bytes >= kStreamRunBytesMin;
}

// Short runs that fill the target: gathered where they stay in the cache, then streamed.
void copy_gathering(CpuPath path, const std::byte* source, std::byte* target,
                    const LoopNest& nest) {
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  const std::int64_t rows_max = kGatherBytes / run_bytes;
  alignas(kLineBytes) std::byte gathered[kGatherBytes];
  walk(nest, nest.counts.size() - 1, [&](std::int64_t s, std::int64_t t) {
    const Rows all = last_loop(source + s, target + t, nest);
    for (std::int64_t first = 0; first < all.count; first += rows_max) {
      const std::int64_t count = std::min(rows_max, all.count - first);
      copy_cached(
          {all.source + first * all.source_stride, gathered, count, all.source_stride, run_bytes},
          run_bytes);
      stream_run(path, {gathered, all.target + first * run_bytes}, count * run_bytes);
    }
  });
}

bool streams(const LoopNest& nest, StoreHint hint) {
  if (hint == StoreHint::cached) return false;
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  return hint == StoreHint::streaming || run_total(nest) * run_bytes >= kStreamBytesMin;
}

}  // namespace

void copy_on(CpuPath path, const std::byte* source, std::byte* target, const LoopNest& nest,
             StoreHint hint) {
  assert(nest.source_element_bytes == nest.target_element_bytes);
  const LoopNest simple = merged(nest);
  if (simple.run_count == 0) return;
  const bool is_long = simple.run_count * simple.source_element_bytes >= kStreamRunBytesMin;
  const bool is_streamed = streams(simple, hint);
  if (is_streamed && is_long) return copy_streaming(path, source, target, simple);
  const LoopNest ordered = reordered(simple);
  if (is_transposed(ordered)) return copy_tiled(source, target, ordered);
  if (is_streamed && fills_target(ordered)) return copy_gathering(path, source, target, ordered);
  copy_cached(source, target, ordered);
}

void convert_on(CpuPath path, const std::byte* source, std::byte* target, const LoopNest& nest,
                DType source_dtype, DType target_dtype) {
  const CastRun cast = cast_of(path, source_dtype, target_dtype);
  const LoopNest simple = merged(nest);
  if (simple.run_count == 0) return;
  walk(simple, simple.counts.size(),
       [&](std::int64_t s, std::int64_t t) { cast(source + s, target + t, simple.run_count); });
}

}  // namespace crossmesh::detail

namespace crossmesh {

void copy(const std::byte* source, std::byte* target, const LoopNest& nest, StoreHint hint) {
  detail::copy_on(best_cpu_path(), source, target, nest, hint);
  if (hint == StoreHint::automatic) detail::stream_fence();
}

void finish_streaming() { detail::stream_fence(); }

void convert(const std::byte* source, std::byte* target, const LoopNest& nest, DType source_dtype,
             DType target_dtype) {
  if (source_dtype == target_dtype) return copy(source, target, nest);
  if (!is_castable(source_dtype, target_dtype)) {
    throw Error(ErrorCode::unsupported, "convert: no cast between these dtypes")
        .with("source", name_of(source_dtype))
        .with("target", name_of(target_dtype))
        .hint("casts exist between F32, F16 and BF16");
  }
  detail::convert_on(best_cpu_path(), source, target, nest, source_dtype, target_dtype);
}

}  // namespace crossmesh
