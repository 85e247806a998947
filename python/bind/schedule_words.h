// SPDX-License-Identifier: Apache-2.0
// The words of a schedule that several bindings read.
#pragma once

#include "crossmesh/schedule/schedule.h"
#include "python/bind/convert.h"

namespace crossmesh::python {

template <>
struct Words<Route> {
  static constexpr auto kLiteral =
      nanobind::detail::const_name("typing.Literal['direct', 'packed']");
  static constexpr std::string_view kWhat = "route";
  static constexpr std::pair<std::string_view, Route> kWords[] = {{"direct", Route::direct},
                                                                  {"packed", Route::packed}};
};

template <>
struct Words<Side> {
  static constexpr auto kLiteral =
      nanobind::detail::const_name("typing.Literal['source', 'target']");
  static constexpr std::string_view kWhat = "side";
  static constexpr std::pair<std::string_view, Side> kWords[] = {{"source", Side::source},
                                                                 {"target", Side::target}};
};

}  // namespace crossmesh::python
