// SPDX-License-Identifier: Apache-2.0
// The memories of a rank's parameters, and what became of each write to them: which elements show
// in the end, which were hidden by later writes, and which nothing reached.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/view.h"
#include "crossmesh/target/bake.h"
#include "crossmesh/target/detail/digit_space.h"

namespace crossmesh::detail {

// Parameters that are one memory: the owner's bytes hold those of all.
struct BakeGroup {
  int owner = 0;             // in the record's parameters
  std::vector<int> members;  // in order, the owner among them
  int storage = 0;
  std::int64_t begin = 0;  // bytes, from the start of the storage
  std::int64_t end = 0;
  std::vector<int> events;  // in order
  bool is_written = false;

  // Told where events overlap or leave holes; else every element shows one copy.
  bool is_mixed = false;
  bool is_whole_opaque = false;         // its regions cannot be told apart
  std::int64_t unit_bytes = 1;          // regions of boxes count in these, from `begin`
  std::vector<DigitSpace> space;        // one, where it is mixed
  std::vector<std::vector<Box>> boxes;  // of each of `events`
  std::vector<std::vector<Box>> shown;  // what no later event hides of it
  std::vector<Box> left;                // what no event reaches
};

// Throws: unsupported where parameters overlap in part.
std::vector<BakeGroup> group_parameters(std::span<const BakeParameter> parameters);

// The group of each event. Throws: invalid_argument where one has none.
std::vector<int> place_events(const BakeRecord& record, std::vector<BakeGroup>& groups);

// Fills in what is told of mixed groups.
void look_through(const BakeRecord& record, BakeGroup& group);

// The elements of a region, of `dtype`, in smaller units from `begin` bytes on.
StridedRegion in_units(const StridedRegion& region, DType dtype, std::int64_t unit_bytes,
                       std::int64_t begin);

std::int64_t element_count(const StridedRegion& region);

}  // namespace crossmesh::detail
