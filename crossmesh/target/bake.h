// SPDX-License-Identifier: Apache-2.0
// What one run of a rank's own loader says about its parameters: the copies, fills and other writes
// that were seen, in order, become this rank's part of a target layout. Where a write lands is told
// by its storage, never by who asked for it. It runs no loader and reads no value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/target/chain.h"

namespace crossmesh {

// A parameter or a buffer of the rank. Names of one storage that overlap are one memory.
struct BakeParameter {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  Strides strides;
  int storage = 0;          // which memory
  std::int64_t offset = 0;  // elements of the dtype, from the start of the memory
  bool is_buffer = false;   // one that nothing writes is left out

  bool operator==(const BakeParameter&) const = default;
};

// One write to a storage. Offsets and strides count elements of `dtype` from its start.
struct BakeEvent {
  enum class Kind : std::uint8_t {
    copy,   // of what a chain shows
    fill,   // with a constant
    write,  // of values that are not known
  };
  Kind kind = Kind::copy;
  int tensor = -1;  // that the loader had been given last, or -1 before the first
  int storage = 0;
  DType dtype = DType::u8;
  StridedRegion region;
  int source = -1;                // of a copy: the tensor that its chain shows
  int chain = -1;                 // of a copy
  std::uint64_t value_bits = 0;   // of a fill: one element
  std::vector<int> tensors = {};  // of a write: those whose values it may hold
  std::string reason = {};        // of a write: what the loader did

  bool operator==(const BakeEvent&) const = default;
};

// A tensor that the loader did something else to than what chains record.
struct BakeRefusal {
  int tensor = 0;
  std::string reason;

  bool operator==(const BakeRefusal&) const = default;
};

struct BakeRecord {
  std::vector<TensorInfo> tensors;  // in the order in which the loader was given them
  std::vector<BakeParameter> parameters;
  std::vector<BakeEvent> events;  // in the order in which they happened
  std::vector<BakeRefusal> refusals;
};

// What becomes of a tensor on this rank.
enum class Fate : std::uint8_t {
  never_copied,  // the loader puts it nowhere
  baked,         // pieces say all that it does
  overwritten,   // later copies hide all of it
  opaque,        // it goes to the loader
};
std::string_view name_of(Fate fate);

struct BakedTensor {
  Fate fate = Fate::never_copied;
  std::string reason;  // of an opaque one; of one overwritten: by which

  bool operator==(const BakedTensor&) const = default;
};

struct BakeResult {
  Layout layout;                     // of one rank
  std::vector<BakedTensor> tensors;  // as in the record
  // Whether the loader must run even where no tensor is opaque: it computes values by itself.
  bool needs_loader = false;
};

// The layout that does what the recorded load did. A copy is pieces, or its tensor is opaque: where
// the loader treats it otherwise, where it shares elements with something that cannot be said, or
// where copies overlap in part. A copy that later ones hide is dropped. What no event reaches is
// kept, and what is written with no tensor in hand is derived.
// Ensures: every element of every parameter is a piece, a fill, opaque, kept or derived, once.
// Throws: invalid_argument where an event lies outside all parameters or torch refuses its copy;
// unsupported where parameters overlap in part.
BakeResult bake(const BakeRecord& record, const ChainBook& book);

}  // namespace crossmesh
