// SPDX-License-Identifier: Apache-2.0
// How an engine loads one of its parameters, as plain values: which function of its framework does
// it, and what the parameter is marked with. An adapter recognises functions by identity and says
// `custom` for all others: what is not known to be a plain copy is not trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/dim_vector.h"

namespace crossmesh {

enum class LoaderKind : std::uint8_t {
  missing,     // the parameter has none
  default_,    // copies the whole tensor
  replicated,  // of a layer that every rank has whole
  column,      // cuts the output dimension
  row,         // cuts the input dimension
  merged,      // several tensors above one another, each cut by itself
  qkv,         // the same, by heads
  vocab,       // rows of a padded vocabulary
  wrapped,     // another function around one of these
  partial,     // one of these with arguments bound
  custom,      // any other
};
inline constexpr int kLoaderKindCount = static_cast<int>(LoaderKind::custom) + 1;

std::string_view name_of(LoaderKind kind);
std::optional<LoaderKind> loader_kind_from_name(std::string_view name);

struct Loader {
  LoaderKind kind = LoaderKind::missing;
  bool is_bound = false;             // to a layer, its owner
  std::optional<int> owner_tp_size;  // how many ranks share the owner's weight
  bool operator==(const Loader&) const = default;
};

// What frameworks write on parameters for their loaders. A mark that is absent is nothing, which is
// not the same as 0.
struct LoaderMarks {
  std::optional<std::int64_t> output_dim;
  std::optional<std::int64_t> input_dim;
  std::optional<std::int64_t> packed_dim;
  std::optional<std::int64_t> packed_factor;
  std::optional<std::int64_t> marlin_tile_size;
  bool needs_scalar_to_array = false;
  bool is_sharded_weight = false;
  bool is_transposed = false;

  bool operator==(const LoaderMarks&) const = default;
};

// A parameter of an engine rank, as it lies there. A second name of one has `alias_of` and nothing
// else.
struct LiveParameter {
  std::string name;
  std::string alias_of;
  DType dtype = DType::u8;
  Shape shape;
  bool is_contiguous = true;
  Loader loader;
  LoaderMarks marks;

  bool operator==(const LiveParameter&) const = default;
};

// A module that the engine has, by its path, and the full name of its type.
struct LiveModule {
  std::string path;
  std::string type;
};

}  // namespace crossmesh
