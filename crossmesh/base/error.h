// SPDX-License-Identifier: Apache-2.0
// The one error of crossmesh: a code to branch on and a text to read. The text is
// `verb: what is wrong`, then one `key  value` line per fact, then `hint  ...`.
// It is not a log line: nothing in the library prints it.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace crossmesh {

enum class ErrorCode {
  invalid_argument,  // the request itself is wrong: a spec, a flag, a name
  corrupt_file,      // a file is not what its format says
  io_failed,         // the system refused to read, write, map or connect
  unsupported,       // a legal request that crossmesh does not serve
  mismatch,          // two sides, or a config and a checkpoint, disagree
  limit_exceeded,  // a bound given by the caller is too small; the text names the number that would
                   // do
  out_of_memory,   // memory could not be reserved
  timed_out,       // a wait reached its limit
  peer_lost,       // a peer died or closed its connection
  aborted,         // an attempt was cancelled
  internal,        // a bug in crossmesh
};

std::string_view name_of(ErrorCode code);

class Error : public std::exception {
 public:
  // `summary` is `verb: what is wrong`, in lower case, with no full stop.
  Error(ErrorCode code, std::string summary);

  // Appends one fact. Facts are added where they are known, innermost first.
  template <typename Value>
  Error& with(std::string_view key, const Value& value) & {
    append(key, fmt::format("{}", value));
    return *this;
  }
  template <typename Value>
  Error&& with(std::string_view key, const Value& value) && {
    append(key, fmt::format("{}", value));
    return std::move(*this);
  }

  // Says how to mend it. It stays the last line whatever is appended later.
  Error&& hint(std::string_view advice) &&;

  ErrorCode code() const { return code_; }
  const std::string& text() const { return text_; }
  const char* what() const noexcept override { return text_.c_str(); }

  // An error that crossed a process boundary, with its text as it was there.
  static Error from_text(ErrorCode code, std::string text);

 private:
  void append(std::string_view key, std::string_view value);

  ErrorCode code_;
  std::string text_;
  std::size_t hint_at_ = std::string::npos;
};

// An error's text taken apart. Facts are in the order of the text; a value may have several lines.
struct ErrorParts {
  std::string summary;
  std::vector<std::pair<std::string, std::string>> facts;
  std::optional<std::string> hint;

  bool operator==(const ErrorParts&) const = default;
};
ErrorParts parts_of(const Error& error);

}  // namespace crossmesh
