// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/cpu_path.h"

namespace crossmesh {

std::string_view name_of(CpuPath path) {
  switch (path) {
    case CpuPath::portable:
      return "portable";
    case CpuPath::avx2:
      return "avx2";
  }
  return "portable";
}

bool runs_here(CpuPath path) {
  if (path == CpuPath::portable) return true;
#if defined(__x86_64__)
  // The compiler's run-time library reads CPUID once, when the process starts.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

CpuPath best_cpu_path() { return runs_here(CpuPath::avx2) ? CpuPath::avx2 : CpuPath::portable; }

}  // namespace crossmesh
