// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: which packed pulls one engine rank makes in an update, in which
// order, from whom, and which groups each of them frees. A pure function of what was recorded; it
// pulls nothing, and crossmesh's own runs go through its schedule instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/dim_vector.h"
#include "crossmesh/profiles/buffers.h"
#include "crossmesh/profiles/router.h"

namespace crossmesh::profiles {

// What is pulled: a tensor and the recorded calls on it, as ChainBook::calls writes them. Spellings
// count.
struct SliceKey {
  std::string source;
  std::string calls = "[]";

  bool operator==(const SliceKey&) const = default;
};

// One recorded copy into a parameter of a leaf module: the destination's shape, and the dtype of
// the slice after its calls.
struct Scatter {
  std::string parameter;
  SliceKey key;
  Shape shape;
  DType dtype = DType::u8;

  bool operator==(const Scatter&) const = default;
};

// A leaf module of which every element was recorded, with its copies in the order they were made.
struct BakedModule {
  std::string name;
  std::vector<Scatter> scatters;
};

struct PlannedScatter {
  int module = 0;
  int scatter = 0;  // of the module
  int key = 0;      // of the chunk

  bool operator==(const PlannedScatter&) const = default;
};

// One packed pull: names of one gather group and one owner class, from one producer.
struct Chunk {
  int group = 0;
  int producer = 0;
  int sequence = 0;  // of this consumer's pulls from that producer
  std::vector<PlannedScatter> scatters;
  std::vector<SliceKey> keys;    // each once
  PackedLayout layout;           // of the keys
  std::vector<int> materialize;  // modules that are first touched here
  std::vector<int> process;      // modules that are complete after it
  std::vector<int> free;         // groups that are done with after it

  bool operator==(const Chunk&) const = default;
};

struct ConsumerPlan {
  int consumer = 0;             // over all deployments
  std::vector<int> free_first;  // groups with nothing for this rank
  std::vector<Chunk> chunks;

  bool operator==(const ConsumerPlan&) const = default;
};

// A name that feeds several modules reaches all of them, and a module with names in several groups
// is pulled in parts. `live_unbaked` are names that a loader copied and no module's record holds.
// Ensures: every group is freed once, by a chunk or first.
// Throws: unsupported naming what did not bake; invalid_argument for a source that is not listed or
// has no owner; mismatch where copies of one slice differ in size or dtype; as PackedLayout::add.
ConsumerPlan plan_consumer(const Router& router, int consumer,
                           const std::vector<BakedModule>& modules,
                           const std::vector<std::string>& live_unbaked = {});

// The largest pull from each producer, which is what a slot of its serving ring holds.
std::vector<std::int64_t> serve_bytes(const ConsumerPlan& plan, int producer_count);

// The size of each of the consumer's own slots; 0 where it pulls nothing.
std::int64_t receive_slot_bytes(const ConsumerPlan& plan, std::int64_t presize_bytes = 0);

}  // namespace crossmesh::profiles
