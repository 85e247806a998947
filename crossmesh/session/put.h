// SPDX-License-Identifier: Apache-2.0
// Puts a whole tensor that lies in this process into the parameters of one rank, as a layout's
// pieces say. It takes no part in a session: an engine does so when it loads a checkpoint itself.
#pragma once

#include <cstddef>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {

// A whole tensor in row-major order, without gaps.
struct HeldTensor {
  DType dtype = DType::u8;
  const std::byte* bytes = nullptr;
};

// One rank's part of a layout, with the memory that it writes.
class Putter {
 public:
  // Requires: parameters[p] is where the storage of parameter p begins on `rank`, as long as the
  // layout says (null where the rank lacks it). `layout` outlives the putter, unchanged.
  Putter(const Layout& layout, int rank, std::vector<std::byte*> parameters);

  // Writes the pieces of a tensor; opaque instances are left to the loader.
  // Ensures: what `copy_` of the same elements would write, and no other byte.
  // Throws: unsupported for a conversion that crossmesh does not perform; nothing is written then.
  void put(int tensor, const HeldTensor& held) const;

  // Writes the constants of all parameters that the rank has.
  void put_fills() const;

 private:
  const Layout& layout_;
  int rank_;
  std::vector<std::byte*> parameters_;
  std::vector<std::vector<int>> instances_of_tensor_;  // that have pieces on the rank
};

}  // namespace crossmesh
