// SPDX-License-Identifier: Apache-2.0
// What a recorded call gives on a tensor of known geometry: it binds the call's arguments and asks
// the functions of strided_tensor.h. It keeps no record.
#pragma once

#include <optional>
#include <vector>

#include "crossmesh/target/op.h"
#include "crossmesh/target/strided_tensor.h"

namespace crossmesh::detail {

// The result of a call that yields one tensor. Where torch copies, `copied` is the view that it
// reads, with dimensions in the order of the new storage, which is dense and starts at 0.
struct Outcome {
  StridedTensor result;
  std::optional<StridedTensor> copied;
};

// Requires: op yields one tensor. Throws: as strided_tensor.h; and unsupported for an argument
// that cannot be recorded (tensors, boolean and list indices).
Outcome evaluate(const StridedTensor& tensor, const Op& op);

// Requires: chunk or unbind.
std::vector<StridedTensor> evaluate_parts(const StridedTensor& tensor, const Op& op);

// The narrows that a split is made of. Requires: split.
std::vector<Op> narrows_of(const StridedTensor& tensor, const Op& op);

// The index that a select means. Requires: select.
Op getitem_of(const StridedTensor& tensor, const Op& op);

}  // namespace crossmesh::detail
