// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/verify/verify.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

void bind_verify(nb::module_& m) {
  nb::class_<Fault> fault(m, "Fault", "One wrong thing in a plan.");
  fault.def_ro("what", &Fault::what, "One line.")
      .def_ro("tensor", &Fault::tensor)
      .def_ro("parameter", &Fault::parameter)
      .def_ro("rank", &Fault::rank, "A target rank, or -1.")
      .def_ro("facts", &Fault::facts, "Boxes and numbers.");
  compare(fault);
  show(fault, [](const Fault& f) {
    return Facts{fact("what", f.what), fact("tensor", f.tensor), fact("rank", f.rank)};
  });

  nb::class_<Verdict> verdict(m, "Verdict", "Whether a plan moves the right bytes.");
  verdict.def_ro("faults", &Verdict::faults, "Twenty at most.")
      .def_ro("checked_copies", &Verdict::checked_copies)
      .def_prop_ro("right", &Verdict::right, "Whether there is no fault.")
      .def(
          "explain", [](const Verdict& v) { return explain(v); }, "Returns a stable text.");
  show(verdict, [](const Verdict& v) {
    return Facts{fact("right", v.right()), fact("checked_copies", v.checked_copies),
                 fact("faults", v.faults.size())};
  });

  m.def(
      "verify",
      [](const Plan& plan) {
        nb::gil_scoped_release release;
        return verify(plan);
      },
      "plan"_a,
      R"(Checks a plan against its two layouts, by other code than the compiler's.

Example:
    >>> crossmesh.verify(plan)
    Verdict(right=true, checked_copies=25, faults=0)
)");
}

}  // namespace crossmesh::python
