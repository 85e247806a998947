// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/source/shard.h"

#include "python/bind/bind.h"
#include "python/bind/catalog_like.h"
#include "python/bind/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

void bind_source(nb::module_& m) {
  m.def(
      "shard",
      [](const CatalogLike& catalog, const std::string& spec) {
        return shard(catalog_of(catalog), parse_spec(spec));
      },
      "catalog"_a, "spec"_a,
      R"(Returns the layout of the training side: every tensor of `catalog` split over a mesh.

Shapes: the boxes of one tensor tile its whole shape over the ranks of its stage and coordinate;
ranks past the end hold none. Each rank's shard is one contiguous parameter of the tensor's name.

Args:
    catalog: A catalog, or an opened checkpoint.
    spec: `axis=size,...`, major to minor, of the axes `pp`, `dp_replicate`, `fsdp`, `ep`, `etp`
        and `tp`: `"fsdp=2,tp=2"` is four ranks.

Raises:
    crossmesh.Error: invalid_argument: an axis is unknown, repeated or not a size; mismatch: more
        stages than layers; unsupported: a cut inside a byte.

Source: uneven extents follow torch.chunk; the order of tp and fsdp follows torch's FSDP over TP.

Example:
    >>> crossmesh.shard(catalog, "fsdp=2")
    Layout(ranks=2, tensors=35, parameters=35, classes=8)
)");
}

}  // namespace crossmesh::python
