// SPDX-License-Identifier: Apache-2.0
// Whether strided regions fill a flat storage, each element exactly once. The answer comes from the
// regions' borders and never from walking elements.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "crossmesh/geometry/view.h"

namespace crossmesh {

// Why regions are not an exact cover.
struct CoverFault {
  enum class Kind { outside, overlap, hole, intractable } kind;
  int first = -1;            // index of the region at fault; of the first of two that overlap
  int second = -1;           // the second of two that overlap
  std::int64_t element = 0;  // one flat element that shows the fault
  std::int64_t count = 0;    // elements covered in sum, for a hole

  bool operator==(const CoverFault&) const = default;
};

// Nothing when every element of [0, storage_size) lies in exactly one region. Of several faults,
// one outside is told first, then an overlap, then the lowest hole. Empty regions cover nothing.
// `intractable` when the regions' strides do not nest and walking them would take too long; it is
// never returned for row blocks, column blocks and interleaved rows of one storage.
std::optional<CoverFault> find_cover_fault(std::span<const StridedRegion> regions,
                                           std::int64_t storage_size);

}  // namespace crossmesh
