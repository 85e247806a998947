// SPDX-License-Identifier: Apache-2.0
// The text form of a side's mesh: `axis=size,...`, major to minor; a word without `=` is an option.
// It knows no axis by name: each side says which it takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace crossmesh {

struct Axis {
  std::string name;
  std::string value;  // a size, or a word such as `linear`

  bool operator==(const Axis&) const = default;
};

struct Spec {
  std::string text;
  std::vector<Axis> axes;            // in the order written
  std::vector<std::string> options;  // words that are not `axis=size`

  bool operator==(const Spec&) const = default;
};

// Throws: invalid_argument on an empty word, an empty name or value, or a repeated axis.
Spec parse_spec(std::string_view text);

// The size of an axis; 1 when it is not there.
// Throws: invalid_argument when its value is not a number in [1, 1'000'000].
int axis_size(const Spec& spec, std::string_view name);

}  // namespace crossmesh
