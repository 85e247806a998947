// SPDX-License-Identifier: Apache-2.0
// copy and convert on a chosen instruction set, so that tests and benchmarks reach each of them.
#pragma once

#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/cpu_path.h"

namespace crossmesh::detail {

// Requires: runs_here(path), and what crossmesh::copy and crossmesh::convert require.
void copy_on(CpuPath path, const std::byte* source, std::byte* target, const LoopNest& nest,
             StoreHint hint);
void convert_on(CpuPath path, const std::byte* source, std::byte* target, const LoopNest& nest,
                DType source_dtype, DType target_dtype);

}  // namespace crossmesh::detail
