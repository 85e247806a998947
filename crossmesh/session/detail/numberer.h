// SPDX-License-Identifier: Apache-2.0
// From the places of an engine rank's parameters to the places in tensors, for digests. Both ends
// of a step find the same.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "crossmesh/memory/digest.h"
#include "crossmesh/schedule/schedule.h"
#include "crossmesh/session/moves.h"

namespace crossmesh::detail {

class Numberer {
 public:
  // `numberings` grows by those that are met.
  Numberer(const Plan& plan, std::vector<Numbering>& numberings)
      : plan_(plan), numberings_(numberings) {}

  // Throws: internal when the step leaves the pieces of its target.
  TensorPart part_of(const Step& step, int target_rank);

 private:
  TensorPart part_of_whole(const Step& step, const TensorInfo& tensor, int tensor_index);
  int numbering_of(int layout_class, int role, int piece);

  const Plan& plan_;
  std::vector<Numbering>& numberings_;
  std::map<std::tuple<int, int, int>, int> of_piece_;
  std::map<std::int64_t, int> of_whole_;  // by bytes
};

}  // namespace crossmesh::detail
