// SPDX-License-Identifier: Apache-2.0
// What loaders did to checkpoint tensors before they copied them, each step recorded once: a chain
// is the index of a step, and its record reaches back to a whole tensor. It knows geometry, and
// neither names nor values. Refused is at once what torch would refuse when it comes to it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/target/op.h"
#include "crossmesh/target/strided_tensor.h"

namespace crossmesh {

// Which elements of a whole tensor a chain shows, and in which order: `result` is a view of a
// storage. That storage is the tensor's own, in row-major order, or else, where the chain copied,
// it holds the elements of the last of `copies`, in row-major order of its sizes; and so on.
struct ElementMap {
  StridedTensor tensor;  // whole, contiguous
  std::vector<StridedTensor> copies;
  StridedTensor result;

  bool operator==(const ElementMap&) const = default;
};

// The chains of one run of a loader. A call that was made before, on a chain that was met before,
// costs one look-up. Indices stay valid as long as the book; spans until the next call.
class ChainBook {
 public:
  // The chain of a whole tensor. Ensures: the same index for the same dtype and shape.
  // Throws: as fresh_tensor.
  int start(DType dtype, std::span<const std::int64_t> shape);

  // The chain after one more call. Ensures: the same index for the same chain and op.
  // Throws: invalid_argument where torch refuses, and where `op` yields several tensors;
  // unsupported where an argument cannot be recorded. Nothing is recorded then. The error holds
  // the call, the tensor it met, and the chain so far.
  int apply(int chain, const Op& op);

  // The chains after a call that yields several tensors, in order. Throws: as apply.
  std::span<const int> apply_several(int chain, const Op& op);

  const StridedTensor& geometry(int chain) const { return at(geometries_, geometry_index(chain)); }
  // Equal for chains whose tensors have equal geometry: a small number to keep things under.
  int geometry_index(int chain) const { return at(steps_, chain).geometry; }
  // Whether a call had to copy, so that the geometry is that of another storage.
  bool has_copied(int chain) const { return at(steps_, chain).storage >= 0; }
  ElementMap element_map(int chain) const;

  int chain_count() const { return static_cast<int>(steps_.size()); }
  int geometry_count() const { return static_cast<int>(geometries_.size()); }

  // The recorded calls as JSON: `[["narrow",[0,0,4],{}],["t",[],{}]]`. A part of chunk or unbind
  // is the call and an index: `[["chunk",[2],{}],["__getitem__",[1],{}]]`.
  std::string calls(int chain) const;

  // The identity of a slice on the wire: `["model.norm.weight",[["narrow",[0,0,4],{}]]]`.
  // Spellings count: a keyword makes another key than a position. Equal maps of elements are told
  // by canonical (lower.h) instead.
  std::string wire_key(std::string_view tensor_name, int chain) const;

 private:
  struct Step {
    int parent = -1;          // the chain that the call was made on
    int geometry = -1;        // of the tensor; -1 for a call that yields several
    int storage = -1;         // in storages_, or -1 where the storage is the tensor's own
    std::int64_t parts = -1;  // first in parts_, where there are several
    std::int64_t part_count = 0;
    Op op;
  };
  // A storage that a copy made.
  struct Storage {
    int parent = -1;    // the storage that was read
    int geometry = -1;  // the view of it, in the order of the new storage
  };
  // Open addressing; a slot is an index, or -1. Sizes are powers of 2.
  using Slots = std::vector<int>;

  template <typename Value>
  static const Value& at(const std::vector<Value>& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }

  std::optional<int> find_step(int parent, const Op& op, std::uint64_t hash) const;
  int add_step(Step step, std::uint64_t hash);
  int intern(const StridedTensor& geometry);
  std::span<const int> parts_of(int call) const;

  std::vector<Step> steps_;
  std::vector<std::uint64_t> hashes_;  // of steps_
  Slots step_slots_;
  std::vector<StridedTensor> geometries_;
  Slots geometry_slots_;
  std::vector<Storage> storages_;
  std::vector<int> parts_;
};

}  // namespace crossmesh
