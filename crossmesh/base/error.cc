// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/error.h"

#include <algorithm>

namespace crossmesh {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::corrupt_file:
      return "corrupt_file";
    case ErrorCode::io_failed:
      return "io_failed";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::limit_exceeded:
      return "limit_exceeded";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::timed_out:
      return "timed_out";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, std::string summary) : code_(code), text_(std::move(summary)) {}

Error Error::from_text(ErrorCode code, std::string text) { return Error(code, std::move(text)); }

Error&& Error::hint(std::string_view advice) && {
  hint_at_ = text_.size();
  text_ += fmt::format("\n  hint  {}", advice);
  return std::move(*this);
}

void Error::append(std::string_view key, std::string_view value) {
  const std::string line = fmt::format("\n  {}  {}", key, value);
  if (hint_at_ == std::string::npos) {
    text_ += line;
    return;
  }
  text_.insert(hint_at_, line);
  hint_at_ += line.size();
}

ErrorParts parts_of(const Error& error) {
  ErrorParts parts;
  std::string* last = &parts.summary;
  std::string_view rest = error.text();
  while (true) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    const std::size_t gap = line.starts_with("  ") ? line.find("  ", 2) : std::string_view::npos;
    if (gap != std::string_view::npos && gap > 2) {
      const std::string_view key = line.substr(2, gap - 2);
      const std::string_view value = line.substr(gap + 2);
      last =
          key == "hint" ? &parts.hint.emplace(value) : &parts.facts.emplace_back(key, value).second;
    } else {
      // The text's first line, or one more line of a value.
      if (line.data() != error.text().data()) *last += '\n';
      *last += line;
    }
    if (end == rest.size()) return parts;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace crossmesh
