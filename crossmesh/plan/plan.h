// SPDX-License-Identifier: Apache-2.0
// Which elements go from which piece to which piece: two layouts met class by class, and proven.
// It chooses no holder, no order and no link; the schedule does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/fingerprint.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {

// One box of a tensor, as it lies on a source role and on a target role. In elements; offsets are
// relative to the two instances' places in their parameters. No dimension has extent 1, and none
// continues the one before it on both sides; a single element has no dimension.
struct Copy {
  int source_role = 0;
  int target_role = 0;
  Shape counts;
  View source;
  View target;

  bool operator==(const Copy&) const = default;
};

enum class Conversion : std::uint8_t { none, cast };

// A source class met with a target class. Copies are ordered by (target role, source role, place).
struct PlanClass {
  int source_class = 0;
  int target_class = 0;
  Conversion conversion = Conversion::none;
  std::vector<Copy> copies;
  std::vector<int> first_copy_of_target_role;  // size: roles + 1
  std::int64_t unique_elements = 0;            // distinct elements that some target role wants

  bool operator==(const PlanClass&) const = default;
};

// The source instance that feeds a target instance: plan instance i is of target instance i. A
// tensor that several source instances hold is read from the first.
struct PlanInstance {
  int source_instance = 0;
  int target_instance = 0;
  int plan_class = 0;   // -1 when opaque
  bool opaque = false;  // the whole tensor goes to the engine's loader

  bool operator==(const PlanInstance&) const = default;
};

// Why a tensor is unused where the target says nothing about it.
inline constexpr std::string_view kUnwanted = "no engine parameter takes it";

struct Plan {
  Layout source;
  Layout target;
  std::vector<PlanClass> classes;
  std::vector<PlanInstance> instances;  // in the order of the target's instances
  std::vector<Unused> unused;           // tensors that no engine wants, and why

  bool operator==(const Plan&) const = default;
};

// Matches the two sides' tensors by (model, name) and proves the result: every element of every
// target parameter is a piece, a fill, opaque, kept or derived exactly once; every copy reads what
// its source holds; every wanted tensor has a holder.
//
// Throws: mismatch: a wanted tensor is missing or has another shape (named, with both shapes), an
// element is covered twice or never (parameter, rank, element), a wanted box has no holder;
// unsupported: dtypes outside the cast table, refinements that take too many boxes, boxes of
// sub-byte elements that split a byte;
// invalid_argument: an empty plan.
// Requires: `check` passes on both.
Plan compile(Layout source, Layout target);

// The number of boxes copied over all target ranks.
std::int64_t copy_count(const Plan& plan);

Fingerprint fingerprint(const Plan& plan);

// A stable text: totals, classes with their copies, then instances by class, then unused tensors.
std::string explain(const Plan& plan);

}  // namespace crossmesh
