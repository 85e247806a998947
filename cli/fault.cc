// SPDX-License-Identifier: Apache-2.0
#include "cli/fault.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <new>
#include <sstream>
#include <thread>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/session/message.h"

namespace crossmesh::cli {
namespace {

Error not_understood(std::string_view what, const std::string& text, std::string_view form) {
  return Error(ErrorCode::invalid_argument, fmt::format("move: this is no {}", what))
      .with("text", text)
      .with("form", form);
}

Error no_fault(const std::string& text) {
  return not_understood("fault", text,
                        "slow:PHASE:RANK:SECONDS, memory:PHASE:RANK or lost:MESSAGE:RANK");
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

bool is_message(std::string_view name) {
  for (int k = 0; k <= static_cast<int>(MessageKind::returned); ++k) {
    if (name_of(static_cast<MessageKind>(k)) == name) return true;
  }
  return false;
}

}  // namespace

Fault parse_fault(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
  if (parts.size() < 3) throw no_fault(text);
  Fault fault;
  const bool is_slow = parts[0] == "slow";
  const auto rank = number_in<int>(parts[2]);
  if (!rank || parts.size() != (is_slow ? 4u : 3u)) throw no_fault(text);
  fault.rank = *rank;
  if (parts[0] == "lost") {
    if (!is_message(parts[1])) throw no_fault(text);
    fault.kind = Fault::Kind::lost;
    fault.message = parts[1];
    return fault;
  }
  if (!is_slow && parts[0] != "memory") throw no_fault(text);
  fault.kind = is_slow ? Fault::Kind::slow : Fault::Kind::memory;
  fault.phase = phase_from_name(parts[1]);
  if (!is_slow) return fault;
  const auto seconds = number_in<double>(parts[3]);
  if (!seconds) throw no_fault(text);
  fault.seconds = *seconds;
  return fault;
}

Restart parse_restart(const std::string& text) {
  const std::size_t at = text.find('@');
  if (at != std::string::npos) {
    const auto engine = number_in<int>(std::string_view(text).substr(0, at));
    const auto version = number_in<int>(std::string_view(text).substr(at + 1));
    if (engine && version && *version > 0) return {*engine, *version};
  }
  throw not_understood("restart", text, "ENGINE@VERSION");
}

void add_fault_options(CLI::App& command, FaultWords& words) {
  command.add_option("--fault", words.fault)->group("");
  command.add_option("--restart-engine", words.restart)->group("");
  command.add_option("--session-name", words.options.session)->group("");
  command.add_option("--attempts", words.options.attempts)->check(CLI::Range(1, 100))->group("");
  command.add_flag("--returns", words.options.is_return)->group("");
}

FaultOptions finish_fault_options(const FaultWords& words, int iterations) {
  FaultOptions options = words.options;
  if (!words.fault.empty()) options.fault = parse_fault(words.fault);
  if (words.restart.empty()) return options;
  options.restart = parse_restart(words.restart);
  if (options.restart->version < iterations) return options;
  throw Error(ErrorCode::invalid_argument,
              "move: an engine is restarted between updates, and none follows this one")
      .with("version", options.restart->version)
      .with("iterations", iterations);
}

PlantedFault::PlantedFault(const std::optional<Fault>& fault, int rank) {
  if (fault && fault->rank == rank) fault_ = fault;
}

void PlantedFault::enter(Phase phase) {
  if (!fault_ || fault_->kind == Fault::Kind::lost || fault_->phase != phase) return;
  const Fault fault = *fault_;
  fault_.reset();
  if (fault.kind == Fault::Kind::memory) throw std::bad_alloc();
  std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
}

bool PlantedFault::loses(std::string_view message) {
  if (!fault_ || fault_->kind != Fault::Kind::lost || fault_->message != message) return false;
  fault_.reset();
  return true;
}

}  // namespace crossmesh::cli
