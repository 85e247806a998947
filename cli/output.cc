// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {

void print_text(std::string_view text) {
  errno = 0;
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::io_failed, "print: standard output does not take the result")
        .with("system", std::strerror(errno));
  }
}

void print_json(const nlohmann::ordered_json& value) {
  print_text(value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace crossmesh::cli
