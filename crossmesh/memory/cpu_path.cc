// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/cpu_path.h"

namespace crossmesh {

std::string_view name_of(CpuPath path) {
  switch (path) {
    case CpuPath::portable:
      return "portable";
    case CpuPath::avx2:
      return "avx2";
    case CpuPath::avx512:
      return "avx512";
  }
  return "portable";
}

bool runs_here(CpuPath path) {
  if (path == CpuPath::portable) return true;
#if defined(__x86_64__)
  // The compiler's run-time library reads CPUID once, when the process starts.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (path == CpuPath::avx2) return has_avx2;
  return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

CpuPath best_cpu_path() {
  if (runs_here(CpuPath::avx512)) return CpuPath::avx512;
  return runs_here(CpuPath::avx2) ? CpuPath::avx2 : CpuPath::portable;
}

}  // namespace crossmesh
