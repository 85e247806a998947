// SPDX-License-Identifier: Apache-2.0
// Are they the right bytes, and if not, where: a plan checked against the two layouts that it
// claims to join. It shares no step with the compiler.
#pragma once

#include <string>
#include <vector>

#include "crossmesh/plan/plan.h"

namespace crossmesh {

struct Fault {
  std::string what;  // one line: `copy reads outside its piece`
  std::string tensor;
  std::string parameter;
  int rank = -1;      // a target rank, or -1
  std::string facts;  // boxes and numbers

  bool operator==(const Fault&) const = default;
};

struct Verdict {
  std::vector<Fault> faults;  // at most kFaultsMax are listed
  std::int64_t checked_copies = 0;

  bool right() const { return faults.empty(); }
};

inline constexpr int kFaultsMax = 20;

// Checks that each plan instance's copies move exactly the elements of each target piece from a
// holder's piece of the same tensor, at the places that the layouts say, and that nothing else is
// written; that conversions are those of the dtypes; that every wanted tensor is there; that each
// element of each target parameter is claimed once. It starts from the plan's addresses and asks
// which element lies there. Pieces whose strides do not nest are reported, as they cannot be asked.
Verdict verify(const Plan& plan);

std::string explain(const Verdict& verdict);

}  // namespace crossmesh
