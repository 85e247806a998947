// SPDX-License-Identifier: Apache-2.0
// Why the memory of another process cannot be read, and what would let it. It reports what the
// system said beside the setting that most often decides; it does not try anything.
#pragma once

#include <string>

namespace crossmesh {

struct Refusal {
  std::string why;      // empty when the memory can be read
  std::string way_out;  // what to change, by the name of the file, setting or option; may be empty

  bool operator==(const Refusal&) const = default;
};

// What the system answered to process_vm_readv, and where.
struct AttachAnswer {
  int error = 0;          // errno, or 0 when the read succeeded
  int ptrace_scope = -1;  // Yama's, or -1 where there is no Yama
};

// Source: yama(7) in the kernel's documentation, ptrace(2) on access checks.
Refusal explain(const AttachAnswer& answer);

// The peer's process has no pid here.
Refusal explain_other_namespace();

// What /proc/sys/kernel/yama/ptrace_scope says, or -1.
int read_ptrace_scope();

}  // namespace crossmesh
