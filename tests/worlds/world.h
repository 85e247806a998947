// SPDX-License-Identifier: Apache-2.0
// One small world: two layouts as the library has them, the same two sides as the oracle has them,
// and the judge that compiles, arranges and expands the one, performs it on element identities,
// and compares with what the other says must come out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/schedule/schedule.h"
#include "tests/oracle/oracle.h"

namespace crossmesh::worlds {

struct World {
  Layout source;
  Layout target;
  std::vector<std::string> tensors;  // by the oracle's numbers
  // By the parameters of the layouts; a parameter that is a second name of a storage is empty.
  oracle::Side held;
  oracle::Side wanted;  // without what opaque instances want
};

// How many worlds there were, and of which kinds.
struct Tally {
  std::int64_t worlds = 0;
  std::int64_t refused = 0;   // rightly: no holder
  std::int64_t unnested = 0;  // planned, though two sides' factors do not nest
  std::int64_t spoiled = 0;   // plans with one copy moved by an element, which verify must refuse
  std::int64_t copies = 0;
  std::int64_t elements = 0;  // moved
  std::int64_t fallbacks = 0;
};

// What is wrong with the library's answer; empty when nothing is.
std::string judge(const World& world, const ScheduleOptions& options, Tally& tally);

}  // namespace crossmesh::worlds
