// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/box.h"
#include "crossmesh/geometry/space.h"
#include "crossmesh/geometry/view.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

void bind_geometry(nb::module_& m) {
  nb::class_<Box> box(m, "Box",
                      "The elements i of an index space with origin <= i < origin + shape.");
  box.def_ro("origin", &Box::origin, "The first index, by dimension.")
      .def_ro("shape", &Box::shape, "Extents, by dimension.");
  compare(box);
  show(box, [](const Box& b) { return Facts{fact("box", to_string(b))}; });

  nb::class_<View> view(m, "View",
                        "Where a box's elements lie: element i, from the origin of the box, at "
                        "`offset + sum(i[d] * strides[d])`. In elements.");
  view.def_ro("offset", &View::offset, "Elements from the start of the storage.")
      .def_ro("strides", &View::strides, "Elements between neighbours, by dimension.");
  compare(view);
  show(view, [](const View& v) {
    return Facts{fact("offset", v.offset), fact("strides", to_string(v.strides))};
  });

  nb::class_<Space> space(m, "Space",
                          "A tensor's index space, some of its dimensions split into factors.");
  space.def_ro("factors", &Space::factors, "All factors, dimension by dimension, outermost first.")
      .def_ro("factor_count", &Space::factor_count, "Factors of each dimension of the tensor.")
      .def_prop_ro(
          "tensor_shape", [](const Space& s) { return tensor_shape(s); },
          "The product of each dimension's factors.");
  compare(space);
  show(space, [](const Space& s) { return Facts{fact("space", to_string(s))}; });

  nb::class_<StridedRegion> region(m, "StridedRegion", "A strided part of a flat storage.");
  region.def_ro("shape", &StridedRegion::shape, "Extents, by dimension.")
      .def_ro("view", &StridedRegion::view, "Where it lies.");
  compare(region);
  show(region, [](const StridedRegion& r) { return Facts{fact("region", to_string(r))}; });
}

}  // namespace crossmesh::python
