// SPDX-License-Identifier: Apache-2.0
// What tests plant in a `move`, and how it may go on: flags that `--help` does not show. A fault
// happens once, in the last update or on the way to the first.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "crossmesh/session/session.h"

namespace CLI {
class App;
}

namespace crossmesh::cli {

struct Fault {
  enum class Kind {
    slow,    // the rank sleeps as it enters the phase
    memory,  // it finds no memory there
    lost,    // a control message that it sends never arrives
  };
  Kind kind = Kind::slow;
  Phase phase = Phase::join;  // of slow and memory
  std::string message;        // of lost: its kind
  int rank = 0;               // among all
  double seconds = 0;         // of slow
};

// fault = "slow:" phase ":" rank ":" seconds | "memory:" phase ":" rank | "lost:" message ":" rank
// Throws: invalid_argument.
Fault parse_fault(const std::string& text);

// An engine rank that is killed once it has checked a version, and started again.
struct Restart {
  int engine = 0;
  int version = 0;
};

// restart = engine "@" version. Throws: invalid_argument.
Restart parse_restart(const std::string& text);

struct FaultOptions {
  std::optional<Fault> fault;
  std::optional<Restart> restart;
  std::string session;     // the job's name; empty for a fresh one
  int attempts = 1;        // at each version, while all trainers live
  bool is_return = false;  // this process is an engine rank that was killed and started again
};

// The words of the command line.
struct FaultWords {
  FaultOptions options;
  std::string fault;
  std::string restart;
};
void add_fault_options(CLI::App& command, FaultWords& words);

// Throws: invalid_argument.
FaultOptions finish_fault_options(const FaultWords& words, int iterations);

// The fault of one rank, if it is that rank's.
class PlantedFault {
 public:
  PlantedFault(const std::optional<Fault>& fault, int rank);

  // The rank enters a phase. Throws: std::bad_alloc.
  void enter(Phase phase);

  // Whether this message is lost.
  bool loses(std::string_view message);

 private:
  std::optional<Fault> fault_;  // until it has happened
};

}  // namespace crossmesh::cli
