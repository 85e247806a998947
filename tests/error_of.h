// SPDX-License-Identifier: Apache-2.0
// For tests: the whole text of the error that a call throws.
#pragma once

#include <string>

#include "crossmesh/base/error.h"

namespace crossmesh::testing {

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.text();
  }
  return "no error";
}

}  // namespace crossmesh::testing
