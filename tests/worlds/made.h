// SPDX-License-Identifier: Apache-2.0
// Worlds whose layouts no front end makes: refined spaces that nest and that do not, transposes,
// strides, gaps, interleaved pieces, replicas, roles that nobody plays, several tensors in one
// parameter, second names, opaque instances. A world is a pure function of its number.
#pragma once

#include <cstdint>

#include "tests/worlds/world.h"

namespace crossmesh::worlds {

World make_world(std::uint64_t number);

// Parameters that are strided themselves: each is one box of one tensor with its dimensions in any
// order, and rows further apart than they are long. What lies between them is nobody's.
World make_strided_world(std::uint64_t number);

}  // namespace crossmesh::worlds
