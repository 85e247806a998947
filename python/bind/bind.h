// SPDX-License-Identifier: Apache-2.0
// The functions that add each module's nouns and verbs to crossmesh._core. Bindings convert and
// forward; what they forward to lives in the library.
#pragma once

#include <nanobind/nanobind.h>

namespace crossmesh::python {

void bind_base(nanobind::module_& m);
void bind_geometry(nanobind::module_& m);
void bind_catalog(nanobind::module_& m);
void bind_layout(nanobind::module_& m);
void bind_source(nanobind::module_& m);
void bind_target(nanobind::module_& m);
void bind_chain(nanobind::module_& m);
void bind_bake(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_schedule(nanobind::module_& m);
void bind_verify(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_transport(nanobind::module_& m);
void bind_session(nanobind::module_& m);

}  // namespace crossmesh::python
