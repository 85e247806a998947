// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/detail/cast.h"
#include "crossmesh/memory/detail/digest_run.h"
#include "crossmesh/memory/detail/walk.h"

namespace crossmesh {
namespace {

// Elements are converted this many at a time, into memory that stays in the nearest cache.
constexpr std::int64_t kConvertedElements = 2048;

// Goes along the places of a numbering.
class Cursor {
 public:
  Cursor(const Numbering& numbering, std::int64_t place) : numbering_(numbering) {
    tensor_ = numbering.tensor_offset_bytes;
    for (int d = 0; d < numbering.counts.size(); ++d) {
      const std::int64_t digit = place / numbering.place_strides[d];
      place -= digit * numbering.place_strides[d];
      tensor_ += digit * numbering.tensor_strides[d];
      digits_.push_back(digit);
    }
    in_run_ = place;
    assert(0 <= in_run_ && in_run_ < numbering.run_bytes);
  }

  // Where the byte lies in the tensor, and how many from it on lie side by side there.
  std::int64_t tensor_offset_bytes() const { return tensor_ + in_run_; }
  std::int64_t left_bytes() const { return numbering_.run_bytes - in_run_; }

  // Requires: bytes <= left_bytes(). What follows the run in memory is the next one.
  void skip(std::int64_t bytes) {
    in_run_ += bytes;
    if (in_run_ < numbering_.run_bytes) return;
    in_run_ = 0;
    carry(digits_.size() - 1);
  }

  // The whole runs of the last loop that lie in the next `bytes`; none in the midst of a run.
  detail::DigestRows rows(std::int64_t bytes) const {
    if (in_run_ != 0 || digits_.empty()) return {};
    const std::int64_t left = numbering_.counts.back() - digits_.back();
    return {tensor_, numbering_.run_bytes, std::min(left, bytes / numbering_.run_bytes),
            numbering_.tensor_strides.back(), numbering_.run_bytes};
  }

  // Requires: what rows() gave, or fewer, and not none.
  void skip_rows(std::int64_t count) {
    digits_[digits_.size() - 1] += count - 1;
    tensor_ += (count - 1) * numbering_.tensor_strides.back();
    carry(digits_.size() - 1);
  }

 private:
  // One step of loop `last`, and of those around it where it ends.
  void carry(int last) {
    for (int d = last; d >= 0; --d) {
      tensor_ += numbering_.tensor_strides[d];
      if (++digits_[d] < numbering_.counts[d]) return;
      tensor_ -= numbering_.tensor_strides[d] * numbering_.counts[d];
      digits_[d] = 0;
    }
  }

  const Numbering& numbering_;
  DimVector digits_;
  std::int64_t tensor_ = 0;
  std::int64_t in_run_ = 0;
};

// Bytes that lie side by side in memory, at `cursor`, which is moved behind them.
void digest_along(detail::RunDigester& digester, const std::byte* data, Cursor& cursor,
                  std::int64_t bytes) {
  while (bytes > 0) {
    const detail::DigestRows rows = cursor.rows(bytes);
    const std::int64_t part =
        rows.count > 0 ? rows.count * rows.run_bytes : std::min(bytes, cursor.left_bytes());
    if (rows.count > 0) {
      digester.add_rows(data, rows);
      cursor.skip_rows(rows.count);
    } else {
      digester.add(data, cursor.tensor_offset_bytes(), part);
      cursor.skip(part);
    }
    data += part;
    bytes -= part;
  }
}

// Runs of memory that are written one behind the other.
struct MemoryRows {
  const std::byte* data;
  std::int64_t count;
  std::int64_t run_bytes;
  std::int64_t stride_bytes;
};

void digest_rows(detail::RunDigester& digester, const MemoryRows& memory, Cursor& cursor) {
  for (std::int64_t i = 0; i < memory.count;) {
    const std::byte* const data = memory.data + i * memory.stride_bytes;
    detail::DigestRows rows = cursor.rows((memory.count - i) * memory.run_bytes);
    if (rows.count > 0 && rows.run_bytes == memory.run_bytes) {
      rows.data_stride_bytes = memory.stride_bytes;
      digester.add_rows(data, rows);
      cursor.skip_rows(rows.count);
      i += rows.count;
    } else {
      digest_along(digester, data, cursor, memory.run_bytes);
      ++i;
    }
  }
}

Digest digest_converted(const std::byte* source, const NumberedPlace& target, const LoopNest& nest,
                        detail::CastRun cast) {
  alignas(64) std::array<std::byte, kConvertedElements * 4> converted;
  detail::RunDigester digester(best_cpu_path());
  detail::walk(nest, nest.counts.size(), [&](std::int64_t s, std::int64_t t) {
    Cursor cursor(*target.numbering, target.offset_bytes + t);
    for (std::int64_t i = 0; i < nest.run_count; i += kConvertedElements) {
      const std::int64_t count = std::min(kConvertedElements, nest.run_count - i);
      cast(source + s + i * nest.source_element_bytes, converted.data(), count);
      digest_along(digester, converted.data(), cursor, count * nest.target_element_bytes);
    }
  });
  return digester.finish();
}

struct Loop {
  std::int64_t count;
  std::int64_t place;
  std::int64_t tensor;
};

// The loops in the order of places, those that continue each other as one.
std::vector<Loop> ordered(const ElementLoops& loops) {
  std::vector<Loop> order;
  for (int d = 0; d < loops.counts.size(); ++d) {
    if (loops.counts[d] == 1) continue;
    order.push_back({loops.counts[d], loops.source_strides[d] * loops.source_element_bytes,
                     loops.target_strides[d] * loops.target_element_bytes});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Loop& a, const Loop& b) { return a.place > b.place; });
  std::vector<Loop> merged;
  for (const Loop& loop : order) {
    Loop* outer = merged.empty() ? nullptr : &merged.back();
    if (outer && outer->place == loop.count * loop.place &&
        outer->tensor == loop.count * loop.tensor) {
      *outer = {outer->count * loop.count, loop.place, loop.tensor};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

}  // namespace

Digest& Digest::operator+=(const Digest& other) {
  sums[0] += other.sums[0];
  sums[1] += other.sums[1];
  bytes += other.bytes;
  return *this;
}

std::string to_string(const Digest& digest) {
  return fmt::format("{:016x}{:016x} of {} bytes", digest.sums[0], digest.sums[1], digest.bytes);
}

Digest digest(const std::byte* data, std::int64_t offset_bytes, std::int64_t bytes) {
  detail::RunDigester digester(best_cpu_path());
  digester.add(data, offset_bytes, bytes);
  return digester.finish();
}

std::optional<Numbering> number(const ElementLoops& loops, std::int64_t tensor_offset_bytes) {
  assert(loops.source_element_bytes == loops.target_element_bytes);
  if (std::any_of(loops.counts.begin(), loops.counts.end(), [](auto n) { return n == 0; })) {
    return Numbering{{}, {}, {}, 0, tensor_offset_bytes};
  }
  std::vector<Loop> order = ordered(loops);
  Numbering numbering;
  numbering.tensor_offset_bytes = tensor_offset_bytes;
  numbering.run_bytes = loops.source_element_bytes;
  if (!order.empty() && order.back().place == numbering.run_bytes &&
      order.back().tensor == numbering.run_bytes) {
    numbering.run_bytes *= order.back().count;
    order.pop_back();
  }
  std::int64_t reach = numbering.run_bytes;
  for (auto loop = order.rbegin(); loop != order.rend(); ++loop) {
    if (loop->place < reach) return std::nullopt;
    reach += (loop->count - 1) * loop->place;
  }
  for (const Loop& loop : order) {
    numbering.counts.push_back(loop.count);
    numbering.place_strides.push_back(loop.place);
    numbering.tensor_strides.push_back(loop.tensor);
  }
  return numbering;
}

bool is_place(const Numbering& numbering, std::int64_t offset_bytes) {
  if (offset_bytes < 0) return false;
  for (int d = 0; d < numbering.counts.size(); ++d) {
    const std::int64_t digit = offset_bytes / numbering.place_strides[d];
    if (digit >= numbering.counts[d]) return false;
    offset_bytes -= digit * numbering.place_strides[d];
  }
  return offset_bytes < numbering.run_bytes;
}

Digest digest(const std::byte* source, const NumberedPlace& target, const LoopNest& nest,
              DType source_dtype, DType target_dtype) {
  const LoopNest simple = detail::merged(nest);
  if (simple.run_count == 0) return {};
  if (source_dtype != target_dtype) {
    return digest_converted(source, target, simple,
                            detail::cast_of(best_cpu_path(), source_dtype, target_dtype));
  }
  const std::int64_t run_bytes = simple.run_count * simple.target_element_bytes;
  detail::RunDigester digester(best_cpu_path());
  // Rows that are read here and there are mostly written one behind the other.
  const int loops = simple.counts.size();
  const bool fills = loops > 0 && simple.target_strides.back() == run_bytes;
  detail::walk(simple, fills ? loops - 1 : loops, [&](std::int64_t s, std::int64_t t) {
    Cursor cursor(*target.numbering, target.offset_bytes + t);
    if (!fills) return digest_along(digester, source + s, cursor, run_bytes);
    digest_rows(digester,
                {source + s, simple.counts.back(), run_bytes, simple.source_strides.back()},
                cursor);
  });
  return digester.finish();
}

Digest digest_written(const std::byte* written, const NumberedPlace& target, const LoopNest& nest) {
  LoopNest both = nest;
  both.source_strides = nest.target_strides;
  both.source_element_bytes = nest.target_element_bytes;
  return digest(written, target, both, DType::u8, DType::u8);
}

}  // namespace crossmesh
