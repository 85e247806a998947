// SPDX-License-Identifier: Apache-2.0
#include "python/bind/bind.h"

NB_MODULE(_core, module) {
  using namespace crossmesh::python;
  module.attr("__doc__") = "The compiled half of crossmesh; use the names of `crossmesh`.";
  bind_base(module);
  bind_geometry(module);
  bind_catalog(module);
  bind_layout(module);
  bind_source(module);
  bind_target(module);
  bind_chain(module);
  bind_bake(module);
  bind_plan(module);
  bind_schedule(module);
  bind_verify(module);
  bind_memory(module);
  bind_transport(module);
  bind_session(module);
}
