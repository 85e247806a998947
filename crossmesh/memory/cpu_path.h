// SPDX-License-Identifier: Apache-2.0
// The instruction sets for which crossmesh has kernels. All are compiled into every build; the
// processor that runs decides. It is not a list of what a processor can do.
#pragma once

#include <array>
#include <string_view>

namespace crossmesh {

enum class CpuPath {
  portable,  // plain C++
  avx2,      // AVX2 and F16C
};

inline constexpr std::array kCpuPaths = {CpuPath::portable, CpuPath::avx2};

std::string_view name_of(CpuPath path);

// Whether this processor and its system run `path`.
bool runs_here(CpuPath path);

// The widest path that runs here. It costs a few loads, so callers need not keep it.
CpuPath best_cpu_path();

}  // namespace crossmesh
