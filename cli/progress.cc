// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "cli/format.h"

namespace crossmesh::cli {
namespace {

constexpr int kMarks = 30;
constexpr auto kFirstDraw = std::chrono::milliseconds(300);
constexpr auto kNextDraw = std::chrono::milliseconds(100);

bool is_drawable() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (!terminal || std::string_view(terminal) != "dumb");
}

}  // namespace

std::string bar_text(const BarState& state) {
  const double part =
      state.total > 0
          ? std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0)
          : 0.0;
  const int marks = static_cast<int>(part * kMarks);
  std::string text = fmt::format("{}  [{:#<{}}{:.<{}}] {:3.0f}%", state.label, "", marks, "",
                                 kMarks - marks, part * 100);
  const double per_second =
      state.seconds > 0 ? static_cast<double>(state.done) / state.seconds : 0.0;
  text += state.unit == Progress::Unit::bytes
              ? fmt::format("  {}  {}", bytes_text(state.done), rate_text(per_second))
              : fmt::format("  {} of {}", count_text(state.done), count_text(state.total));
  if (per_second > 0 && state.total > state.done) {
    text += "  eta " + seconds_text(static_cast<double>(state.total - state.done) / per_second);
  }
  return text;
}

Progress::Progress(std::string label, std::int64_t total, Unit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      on_(is_drawable()),
      start_(Clock::now()),
      next_draw_(start_ + kFirstDraw) {}

Progress::~Progress() { finish(); }

void Progress::update(std::int64_t done) {
  if (!on_) return;
  const Clock::time_point at = Clock::now();
  if (at < next_draw_) return;
  next_draw_ = at + kNextDraw;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(at - start_).count();
  fmt::print(stderr, "\r\x1b[K{}", bar_text({label_, done, total_, seconds, unit_}));
  std::fflush(stderr);
}

void Progress::finish() {
  if (drawn_) {
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
  }
  drawn_ = false;
  on_ = false;
}

}  // namespace crossmesh::cli
