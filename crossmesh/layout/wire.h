// SPDX-License-Identifier: Apache-2.0
// A layout as JSON, or as CBOR of the same schema: what peers exchange, and what lies on disk. It
// carries values only, and a reader trusts none of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "crossmesh/layout/layout.h"

namespace crossmesh {

// What a reader accepts, at most.
inline constexpr int kWireDepthMax = 16;
inline constexpr int kWireRanksMax = 1 << 20;

// Requires: check(layout) passes.
nlohmann::json to_json(const Layout& layout);

// Ensures: layout_from_json(to_json(x)) == x, and the result passes check.
// Throws: mismatch: another schema or version; corrupt_file: a field is missing, has another type
// or is out of range (named), or the layout breaks an invariant; limit_exceeded: too many ranks.
Layout layout_from_json(const nlohmann::json& json);

std::vector<std::uint8_t> to_cbor(const Layout& layout);

// Throws: as json_from_cbor and layout_from_json.
Layout layout_from_cbor(std::span<const std::uint8_t> bytes);

// Reads CBOR from a peer that may lie. Only what JSON has is accepted: no tags, no byte strings.
// Ensures: memory stays within a constant times the bytes given, stack within `depth_max` levels.
// Throws: corrupt_file: it ends early, goes on past its end, is too deep or has another kind of
// item.
nlohmann::json json_from_cbor(std::span<const std::uint8_t> bytes, int depth_max);

}  // namespace crossmesh
