// SPDX-License-Identifier: Apache-2.0
// Decides, for each announced tensor, whether it may be written straight into a live parameter, and
// how the engine's ranks cut it: from the loader's identity and marks alone, never guessed from
// shapes. What it cannot be sure of takes the fallback, and says why. It runs no loader: bake does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/geometry/dim_vector.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/target/loader.h"

namespace crossmesh {

// A tensor that trainers announce, whole.
struct AnnouncedTensor {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  // The live parameters that its loader writes, where a bake or a family knows. Nothing: itself,
  // for a tensor that has the name of a parameter; else not known.
  std::optional<std::vector<std::string>> feeds;
};

// A module is reloaded as a unit: what the fallback loads of it overwrites what was written
// straight into the rest. So a module with a fallback has no direct parameter at all.
enum class Closure : std::uint8_t {
  target_modules,  // by the modules that a fallback feeds; where one is not known: by all
  names,           // by the names of fallbacks that are live parameters, and by no other
};

struct ResolveRequest {
  std::vector<LiveParameter> parameters;
  std::vector<LiveModule> modules;            // at least those whose type is distrusted
  std::vector<AnnouncedTensor> tensors;       // in the order announced
  std::vector<std::string> distrusted_types;  // of modules that transform what they load
  int rank_count = 1;                         // of the engine: replicas times shards
  int shard_count = 1;                        // neighbours that share one tensor
  std::string distrust_all;  // why nothing is direct (a quantised engine), or empty
  Closure closure = Closure::target_modules;
};

struct Destination {
  std::string name;
  bool is_direct = false;
  int parameter = -1;            // of a direct one: in ResolveRequest::parameters
  std::optional<int> shard_dim;  // of a direct one: the cut dimension; nothing: whole on each rank
  std::string reason;            // of a fallback
  bool is_demoted = false;       // a fallback by its module alone

  bool operator==(const Destination&) const = default;
};

struct Resolution {
  std::vector<Destination> destinations;  // of the tensors, in order

  bool operator==(const Resolution&) const = default;
};

// Throws: invalid_argument for parameters of one name, an alias of none, or counts below 1.
Resolution resolve(const ResolveRequest& request);

// How much of what is announced goes straight.
struct Coverage {
  std::int64_t direct_count = 0;
  std::int64_t fallback_count = 0;
  std::int64_t direct_bytes = 0;
  std::int64_t total_bytes = 0;

  bool operator==(const Coverage&) const = default;
};
Coverage coverage(const ResolveRequest& request, const Resolution& resolution);

// One line: counts, bytes and the share of bytes with one decimal.
std::string to_string(const Coverage& coverage);

// What was resolved, as the layout of the engine's ranks; rank r has shard r mod shard_count.
// Fallbacks are opaque, with their reasons, over all of the parameters that they feed.
// Requires: `resolution` is that of `request`.
// Throws: unsupported for a fallback of which it is not known what it feeds.
Layout lay_out(const ResolveRequest& request, const Resolution& resolution);

}  // namespace crossmesh
