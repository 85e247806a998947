// SPDX-License-Identifier: Apache-2.0
// Plans a move and performs it element by element: what the engine's memory then holds, each
// element by the number that it has in its tensor. Small enough to be compared whole.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "crossmesh/layout/layout.h"
#include "crossmesh/schedule/schedule.h"

namespace crossmesh::reports {

// What an element of memory is where no tensor's element lies.
inline constexpr std::int64_t kUntouched = -1;
inline constexpr std::int64_t kFill = -2;  // a constant that the engine sets

// Element i of tensor t of a layout is t * kTensorStride + i; tensor 0 thus counts from 0.
inline constexpr std::int64_t kTensorStride = 1'000'000;

using Elements = std::vector<std::int64_t>;

// What lies in a parameter's storage on one rank. Empty where the rank does not have it.
Elements held(const Layout& layout, int rank, std::string_view parameter);

// What lies there after the whole of `schedule` was performed, the memory being kUntouched or kFill
// before. Tensors are numbered as the target numbers them.
Elements moved(const Schedule& schedule, int rank, std::string_view parameter);

// The same for the two sides' plan, by the direct route.
Elements moved(const Layout& source, const Layout& target, int rank, std::string_view parameter);

// first, first + 1, ..., last - 1
Elements counted(std::int64_t first, std::int64_t last);

// A then b.
Elements joined(Elements a, const Elements& b);

}  // namespace crossmesh::reports
