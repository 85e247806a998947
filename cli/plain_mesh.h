// SPDX-License-Identifier: Apache-2.0
// Where a rank of the serving side stands, read from the engine's spec: which stage, which data
// parallel copy, which shard. It says nothing of the model.
#pragma once

#include "cli/plain_parameters.h"
#include "crossmesh/layout/spec.h"

namespace crossmesh::cli {

// The axes `replicas`, `pp`, `dp` and `tp`, major to minor as written; `experts` is no axis of
// ranks: `linear` or `round_robin`, and cut when not given. Only the mesh's fields are set.
//
// Requires: `rank` is one of the mesh.
// Throws: as mesh_of; invalid_argument when `experts` is another word.
PlainEngine plain_engine_of_rank(const Spec& spec, int rank);

}  // namespace crossmesh::cli
