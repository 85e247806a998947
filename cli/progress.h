// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error, drawn only where that is a terminal and the work is long. It
// belongs to one thread, and clears its line when it goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace crossmesh::cli {

class Progress {
 public:
  enum class Unit { bytes, steps };

  // `total` may be 0 where it is not known yet; see set_total.
  Progress(std::string label, std::int64_t total, Unit unit = Unit::bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(std::int64_t total) { total_ = total; }

  // Sets what is done so far; redraws at most about ten times a second.
  void update(std::int64_t done);

  // Clears the line; nothing is drawn afterwards.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::int64_t total_;
  Unit unit_;
  bool on_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point next_draw_;
};

// What a bar looks like: `label  [#####.....]  48%  1.2 GiB  2.1 GB/s  eta 0.6 s`, 30 marks wide.
struct BarState {
  std::string label;
  std::int64_t done = 0;
  std::int64_t total = 0;
  double seconds = 0;
  Progress::Unit unit = Progress::Unit::bytes;
};
std::string bar_text(const BarState& state);

}  // namespace crossmesh::cli
