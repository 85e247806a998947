// SPDX-License-Identifier: Apache-2.0
// Where checks put what they find.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "crossmesh/verify/verify.h"

namespace crossmesh::detail {

// Findings of one check that knows neither tensor nor rank: `what`, `facts`, and the target role.
struct Finding {
  std::string what;
  std::string facts;
  int target_role = -1;
};

class Faults {
 public:
  explicit Faults(Verdict& verdict) : verdict_(verdict) {}

  bool any() const { return !verdict_.faults.empty(); }
  bool full() const { return verdict_.faults.size() >= static_cast<std::size_t>(kFaultsMax); }
  void add(Fault fault) {
    if (!full()) verdict_.faults.push_back(std::move(fault));
  }
  void add(std::string what, std::string facts) {
    add(Fault{std::move(what), {}, {}, -1, std::move(facts)});
  }

 private:
  Verdict& verdict_;
};

}  // namespace crossmesh::detail
