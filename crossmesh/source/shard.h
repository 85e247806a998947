// SPDX-License-Identifier: Apache-2.0
// What trainers do: a mesh spec and a catalog give the layout of the training side. Every rank
// holds each tensor's shard as one contiguous parameter of the tensor's own name.
#pragma once

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/layout/spec.h"

namespace crossmesh {

// Splits every tensor of `catalog` over the trainer mesh `spec` (axes `pp`, `dp_replicate`, `fsdp`,
// `ep`, `etp`, `tp`, in any order, major to minor as written).
//
// `fsdp` splits dimension 0. `tp` splits q, k, v, gate, up, their biases, the embedding and lm_head
// on dimension 0, o and down on dimension 1, and replicates the rest; where both split dimension 0,
// tp splits first and fsdp splits each tp shard. `dp_replicate` repeats.
//
// `ep` and `etp` reuse data-parallel ranks: other tensors are split over all fsdp * ep * etp ranks,
// numbered in the order written. An expert (a name with `experts.` and a number) lies on one
// coordinate of `ep`: contiguous blocks of a layer's experts, the first coordinates one more where
// they do not divide. `etp` splits it there as tp would (gate and up on dimension 0, down on
// dimension 1), and fsdp each of these shards; tp repeats it. A stack of all experts (a name that
// ends in `experts.` and a word) is split by `ep` on dimension 0, by `etp` within its matrices
// (gate_up_proj, whose gates lie above its ups, in both halves alike), then by fsdp on dimension 0.
//
// `pp` splits layers (the first number of a name, counted over the catalog) as stage_of_layer says;
// of tensors without a layer, embeddings lie on the first stage and all others on the last.
//
// Shapes: the boxes of one tensor tile its whole shape over the ranks of its stage and coordinate;
// ranks past the end hold none.
// Throws: invalid_argument: an axis that trainers do not have, repeated, or not a size; mismatch:
// more stages than layers; unsupported: a cut inside a byte of a sub-byte tensor, or more than
// kDimsMax dimensions.
// Source: uneven extents follow torch.chunk; the order of tp and fsdp follows torch's FSDP over TP.
Layout shard(const Catalog& catalog, const Spec& spec);

}  // namespace crossmesh
