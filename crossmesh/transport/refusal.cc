// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/refusal.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace crossmesh {
namespace {

std::string way_out_of(const AttachAnswer& answer) {
  if (answer.error == ENOSYS) {
    return "a kernel with CONFIG_CROSS_MEMORY_ATTACH, or a seccomp profile that has "
           "process_vm_readv";
  }
  if (answer.error != EPERM) return {};
  switch (answer.ptrace_scope) {
    case 1:
      return "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the ranks";
    case 2:
      return "CAP_SYS_PTRACE for the ranks, or sysctl kernel.yama.ptrace_scope=0";
    case 3:
      return "a boot with another kernel.yama.ptrace_scope: 3 cannot be lowered";
    default:
      return "one user and group for all ranks, which are dumpable (PR_SET_DUMPABLE); or "
             "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)";
  }
}

}  // namespace

Refusal explain(const AttachAnswer& answer) {
  if (answer.error == 0) return {};
  Refusal refusal{
      fmt::format("the system refuses: {}", std::generic_category().message(answer.error)),
      way_out_of(answer)};
  if (answer.error == EPERM && answer.ptrace_scope >= 0) {
    refusal.why += fmt::format("; kernel.yama.ptrace_scope is {}", answer.ptrace_scope);
  }
  return refusal;
}

Refusal explain_other_namespace() {
  return {"the peer is in another pid namespace",
          "one pid namespace for all ranks (docker run --pid host, or --pid container:NAME)"};
}

int read_ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = -1;
  return file >> scope ? scope : -1;
}

}  // namespace crossmesh
