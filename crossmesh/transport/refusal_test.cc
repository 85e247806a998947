// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/refusal.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace crossmesh {
namespace {

TEST(Refusal, names_what_the_system_said_and_what_would_let_it) {
  struct Row {
    const char* name;
    AttachAnswer answer;
    Refusal expected;
  };
  const Row rows[] = {
      {"no error", {0, 3}, {"", ""}},
      {"forbidden without yama",
       {EPERM, -1},
       {"the system refuses: Operation not permitted",
        "one user and group for all ranks, which are dumpable (PR_SET_DUMPABLE); or "
        "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"}},
      {"forbidden though yama lets it",
       {EPERM, 0},
       {"the system refuses: Operation not permitted; kernel.yama.ptrace_scope is 0",
        "one user and group for all ranks, which are dumpable (PR_SET_DUMPABLE); or "
        "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"}},
      {"descendants only",
       {EPERM, 1},
       {"the system refuses: Operation not permitted; kernel.yama.ptrace_scope is 1",
        "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the ranks"}},
      {"administrators only",
       {EPERM, 2},
       {"the system refuses: Operation not permitted; kernel.yama.ptrace_scope is 2",
        "CAP_SYS_PTRACE for the ranks, or sysctl kernel.yama.ptrace_scope=0"}},
      {"nobody",
       {EPERM, 3},
       {"the system refuses: Operation not permitted; kernel.yama.ptrace_scope is 3",
        "a boot with another kernel.yama.ptrace_scope: 3 cannot be lowered"}},
      {"no such call",
       {ENOSYS, 1},
       {"the system refuses: Function not implemented",
        "a kernel with CONFIG_CROSS_MEMORY_ATTACH, or a seccomp profile that has "
        "process_vm_readv"}},
      {"gone", {ESRCH, 1}, {"the system refuses: No such process", ""}},
  };
  for (const Row& row : rows) EXPECT_EQ(explain(row.answer), row.expected) << row.name;
}

}  // namespace
}  // namespace crossmesh
