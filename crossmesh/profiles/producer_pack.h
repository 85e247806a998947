// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: what a producer packs for a pull, from the tensors that it serves
// and the calls it is asked to make on them. Which calls it makes is one table for both sides.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/profiles/buffers.h"
#include "crossmesh/target/chain.h"
#include "crossmesh/target/op.h"

namespace crossmesh::profiles {

// The calls that travel: those that a loader may make on a recorded tensor.
inline constexpr OpKind kServedCalls[] = {
    OpKind::narrow,     OpKind::view,      OpKind::reshape, OpKind::getitem, OpKind::unsqueeze,
    OpKind::squeeze,    OpKind::transpose, OpKind::t,       OpKind::permute, OpKind::flatten,
    OpKind::contiguous, OpKind::chunk,     OpKind::unbind,
};

// Throws: unsupported naming a disallowed op, for a call that is none of those.
OpKind served_call(std::string_view name);

// Throws: unsupported naming up to three sources of `requested` that are not in `served`.
void check_served(const std::vector<std::string>& requested,
                  const std::vector<std::string>& served);

// Where the slices lie, sized by what the calls yield. Throws: as PackedLayout::add.
PackedLayout pack_slices(const ChainBook& book, const std::vector<int>& chains);

}  // namespace crossmesh::profiles
