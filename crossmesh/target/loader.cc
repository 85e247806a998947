// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/loader.h"

#include <array>

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, kLoaderKindCount> kNames = {
    "missing", "default", "replicated", "column",  "row",   "merged",
    "qkv",     "vocab",   "wrapped",    "partial", "custom"};

}  // namespace

std::string_view name_of(LoaderKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<LoaderKind> loader_kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LoaderKind>(i);
  }
  return std::nullopt;
}

}  // namespace crossmesh
