// SPDX-License-Identifier: Apache-2.0
// The transport whose ranks are threads of one process: a region is a pointer. It serves tests,
// and sessions that have no second process.
#pragma once

#include <memory>
#include <string>

#include "crossmesh/transport/transport.h"

namespace crossmesh {

// Where the ranks of one process meet. It outlives its endpoints; any thread may use it.
class InprocHub {
 public:
  InprocHub();
  ~InprocHub();
  InprocHub(const InprocHub&) = delete;
  InprocHub& operator=(const InprocHub&) = delete;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

struct InprocOptions {
  InprocHub* hub = nullptr;
  std::string session_name = "00000000000000000000000000000000";
  int rank = 0;
};

// Throws: invalid_argument when the rank is none or is in the hub already; io_failed.
std::unique_ptr<Transport> make_inproc(const InprocOptions& options);

}  // namespace crossmesh
