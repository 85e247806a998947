// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/copy_classes.h"

#include <fmt/format.h>

#include <variant>

#include "crossmesh/target/lower.h"

namespace crossmesh::detail {
namespace {

LoweredClass lowered(const BakeEvent& event, const ElementMap& map, Interner& interner) {
  const Strides& strides = event.region.view.strides;
  const CopyTarget target{event.dtype,
                          {event.region.shape, {0, strides}},
                          storage_elements(event.region.shape, strides)};
  const auto answer = lower(map, target);
  if (const auto* opaque = std::get_if<OpaqueCopy>(&answer)) return {-1, {}, opaque->reason};
  const LoweredCopy& copy = std::get<LoweredCopy>(answer);
  if (copy.source_dtype != map.tensor.dtype) {
    return {-1,
            {},
            fmt::format("a conversion from {}, as which {} was viewed", name_of(copy.source_dtype),
                        name_of(map.tensor.dtype))};
  }
  if (copy.pieces.empty() && element_count(map.tensor) > 0) {
    return {-1, {}, "a copy of no elements"};
  }
  return {
      interner.layout_class({copy.space, copy.target_dtype, {copy.pieces}}), copy.target_dtype, {}};
}

}  // namespace

std::size_t CopyClasses::KeyHash::operator()(const Key& key) const {
  std::size_t hash = static_cast<std::size_t>(key.chain) * 31 + static_cast<std::size_t>(key.dtype);
  const auto add = [&](std::int64_t value) {
    hash = hash * 1000003 + static_cast<std::size_t>(value);
  };
  for (const std::int64_t size : key.shape) add(size);
  for (const std::int64_t stride : key.strides) add(stride);
  return hash;
}

const LoweredClass& CopyClasses::find(const BakeEvent& event) {
  const Key key{event.chain, event.dtype, event.region.shape, event.region.view.strides};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, lowered(event, book_.element_map(event.chain), interner_))
      .first->second;
}

}  // namespace crossmesh::detail
