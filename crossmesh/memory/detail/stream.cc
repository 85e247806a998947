// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/detail/stream.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossmesh::detail {
namespace {

// A run is copied in this many lanes of as many lines, one behind the other. Lanes of a page
// each reach three quarters of the speed.
constexpr std::size_t kRunLanes = 4;
constexpr std::int64_t kLaneLinesMax = (std::int64_t{64} << 10) / kLineBytes;

void copy_bytes(Lane lane, std::int64_t bytes) {
  std::memcpy(lane.target, lane.source, static_cast<std::size_t>(bytes));
}

Lane advanced(Lane lane, std::int64_t bytes) { return {lane.source + bytes, lane.target + bytes}; }

// Bytes before the first line border of the target.
std::int64_t head_bytes(const Lane& lane) {
  return -static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(lane.target)) &
         (kLineBytes - 1);
}

template <std::size_t kLanes>
using Lanes = std::array<Lane, kLanes>;

template <std::size_t kLanes>
void copy_lines_portable(const Lanes<kLanes>& lanes, std::int64_t lines) {
  for (const Lane& lane : lanes) copy_bytes(lane, lines * kLineBytes);
}

#if defined(__x86_64__)

// Halves of lines: stores of whole ones gain nothing in runs, and lose a little in rows.
template <std::size_t kLanes>
__attribute__((target("avx2"))) void copy_lines_avx2(const Lanes<kLanes>& lanes,
                                                     std::int64_t lines) {
  const Lanes<kLanes> l = lanes;
  for (std::int64_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
#pragma GCC unroll 8
    for (const Lane& lane : l) {
      const auto* source = reinterpret_cast<const __m256i*>(lane.source + at);
      auto* target = reinterpret_cast<__m256i*>(lane.target + at);
      const __m256i low = _mm256_loadu_si256(source);
      const __m256i high = _mm256_loadu_si256(source + 1);
      _mm256_stream_si256(target, low);
      _mm256_stream_si256(target + 1, high);
    }
  }
}

#endif

// Requires: every lane's target lies on a line border.
template <std::size_t kLanes>
void copy_lines(CpuPath path, const Lanes<kLanes>& lanes, std::int64_t lines) {
#if defined(__x86_64__)
  if (path == CpuPath::avx2) return copy_lines_avx2(lanes, lines);
#endif
  static_cast<void>(path);
  copy_lines_portable(lanes, lines);
}

}  // namespace

void stream_run(CpuPath path, Lane run, std::int64_t bytes) {
  constexpr auto kLanes = static_cast<std::int64_t>(kRunLanes);
  const std::int64_t head = std::min(head_bytes(run), bytes);
  copy_bytes(run, head);
  run = advanced(run, head);
  bytes -= head;
  while (bytes >= kLanes * kLineBytes) {
    const std::int64_t lines = std::min(kLaneLinesMax, bytes / (kLanes * kLineBytes));
    Lanes<kRunLanes> lanes;
    for (Lane& lane : lanes) {
      lane = run;
      run = advanced(run, lines * kLineBytes);
    }
    copy_lines(path, lanes, lines);
    bytes -= kLanes * lines * kLineBytes;
  }
  copy_bytes(run, bytes);
}

void stream_rows(CpuPath path, const RowLanes& rows, std::int64_t bytes) {
  const auto on_border = [](const Lane& row) { return head_bytes(row) == 0; };
  std::int64_t lines = bytes / kLineBytes;
  if (bytes % kLineBytes == 0 && std::all_of(rows.begin(), rows.end(), on_border)) {
    return copy_lines(path, rows, lines);
  }
  RowLanes aligned = rows;
  for (Lane& row : aligned) {
    const std::int64_t head = std::min(head_bytes(row), bytes);
    copy_bytes(row, head);
    row = advanced(row, head);
    lines = std::min(lines, (bytes - head) / kLineBytes);
  }
  copy_lines(path, aligned, lines);
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    const std::int64_t done = aligned[i].source - rows[i].source + lines * kLineBytes;
    copy_bytes(advanced(rows[i], done), bytes - done);
  }
}

void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace crossmesh::detail
