// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/detail/stream.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossmesh::detail {
namespace {

constexpr std::int64_t kPageBytes = 4096;

void copy_bytes(Lane lane, std::int64_t bytes) {
  std::memcpy(lane.target, lane.source, static_cast<std::size_t>(bytes));
}

Lane advanced(Lane lane, std::int64_t bytes) { return {lane.source + bytes, lane.target + bytes}; }

// Bytes before the first line border of the target.
std::int64_t head_bytes(const Lane& lane) {
  return -static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(lane.target)) &
         (kLineBytes - 1);
}

void copy_lines_portable(const Lanes& lanes, std::int64_t lines) {
  for (const Lane& lane : lanes) copy_bytes(lane, lines * kLineBytes);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void copy_lines_avx2(const Lanes& lanes, std::int64_t lines) {
  const Lanes l = lanes;
  for (std::int64_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
#pragma GCC unroll 4
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

__attribute__((target("avx512f"))) void copy_lines_avx512(const Lanes& lanes, std::int64_t lines) {
  const Lanes l = lanes;
  for (std::int64_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
#pragma GCC unroll 4
    for (const Lane& lane : l) {
      const __m512i line = _mm512_loadu_si512(lane.source + at);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(lane.target + at), line);
    }
  }
}

#endif

// Requires: every lane's target lies on a line border.
void copy_lines(CpuPath path, const Lanes& lanes, std::int64_t lines) {
#if defined(__x86_64__)
  if (path == CpuPath::avx512) return copy_lines_avx512(lanes, lines);
  if (path == CpuPath::avx2) return copy_lines_avx2(lanes, lines);
#endif
  static_cast<void>(path);
  copy_lines_portable(lanes, lines);
}

}  // namespace

void stream_run(CpuPath path, Lane run, std::int64_t bytes) {
  constexpr std::int64_t kBlockBytes = kLanes * kPageBytes;
  const std::int64_t head = std::min(head_bytes(run), bytes);
  copy_bytes(run, head);
  run = advanced(run, head);
  bytes -= head;
  for (; bytes >= kBlockBytes; bytes -= kBlockBytes, run = advanced(run, kBlockBytes)) {
    Lanes pages;
    for (int i = 0; i < kLanes; ++i) {
      pages[static_cast<std::size_t>(i)] = advanced(run, i * kPageBytes);
    }
    copy_lines(path, pages, kPageBytes / kLineBytes);
  }
  copy_bytes(run, bytes);
}

void stream_rows(CpuPath path, const Lanes& rows, std::int64_t bytes) {
  std::int64_t lines = bytes / kLineBytes;
  Lanes aligned = rows;
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
