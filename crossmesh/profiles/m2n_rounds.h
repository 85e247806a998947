// SPDX-License-Identifier: Apache-2.0
// A profile of a collective reshard (nccl_m2n): the order in which the two sides of an update go
// through its tensors, so that every reshard meets its partner. It moves no byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace crossmesh::profiles {

// One thing that a worker does for an update.
struct ReceiveStep {
  enum class Kind : std::uint8_t {
    reshard_into_live,
    reshard_into_buffer,  // whole, for the loader; the stream is synchronised before it is loaded
    begin_loading,
    load,
    end_loading,
  };
  Kind kind = Kind::reshard_into_live;
  int parameter = -1;  // of the plan

  bool operator==(const ReceiveStep&) const = default;
};

struct PlannedName {
  std::string name;
  bool is_direct = false;
};

// In the order requested; one call of the loader takes all fallbacks, and reshards of what is
// direct run between its items. A name that the plan has twice means its last.
// Throws: invalid_argument naming what was not declared; nothing has been resharded then.
std::vector<ReceiveStep> receive_steps(const std::vector<PlannedName>& plan,
                                       const std::vector<std::string>& requested);

// A loader that stops early leaves reshards that the other side waits in.
// Throws: mismatch naming the first tensor that it did not take.
void check_all_loaded(const std::vector<PlannedName>& plan, const std::vector<ReceiveStep>& steps,
                      int loaded_count);

// A trainer's pass over its source: one reshard for each announced tensor, in order.
class SendRound {
 public:
  explicit SendRound(std::vector<std::string> names) : names_(std::move(names)) {}

  // The place of what the source yielded. Throws: mismatch where it is another tensor, or one more.
  int take(const std::string& name);
  // Throws: mismatch where the source yielded too few.
  void finish() const;

 private:
  std::vector<std::string> names_;
  std::size_t taken_ = 0;
};

}  // namespace crossmesh::profiles
