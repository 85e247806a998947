// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/plan.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

template <>
struct Words<Conversion> {
  static constexpr auto kLiteral = nb::detail::const_name("typing.Literal['none', 'cast']");
  static constexpr std::string_view kWhat = "conversion";
  static constexpr std::pair<std::string_view, Conversion> kWords[] = {{"none", Conversion::none},
                                                                       {"cast", Conversion::cast}};
};

namespace {

void bind_parts(nb::module_& m) {
  nb::class_<Copy> copy(m, "Copy",
                        "One box of a tensor, as it lies on a source role and on a target role. "
                        "In elements; offsets from the two instances' places.");
  copy.def_ro("source_role", &Copy::source_role)
      .def_ro("target_role", &Copy::target_role)
      .def_ro("counts", &Copy::counts, "Elements, by dimension.")
      .def_ro("source", &Copy::source)
      .def_ro("target", &Copy::target);
  compare(copy);
  show(copy, [](const Copy& c) {
    return Facts{fact("source_role", c.source_role), fact("target_role", c.target_role),
                 fact("counts", to_string(c.counts))};
  });

  nb::class_<PlanClass> plan_class(m, "PlanClass", "A source class met with a target class.");
  plan_class.def_ro("source_class", &PlanClass::source_class)
      .def_ro("target_class", &PlanClass::target_class)
      .def_prop_ro("conversion", [](const PlanClass& c) { return word_of(c.conversion); })
      .def_ro("copies", &PlanClass::copies)
      .def_ro("first_copy_of_target_role", &PlanClass::first_copy_of_target_role)
      .def_ro("unique_elements", &PlanClass::unique_elements,
              "Distinct elements that some target role wants.");
  compare(plan_class);
  show(plan_class, [](const PlanClass& c) {
    return Facts{fact("source_class", c.source_class), fact("target_class", c.target_class),
                 fact("copies", c.copies.size())};
  });

  nb::class_<PlanInstance> instance(m, "PlanInstance",
                                    "The source instance that feeds a target instance.");
  instance.def_ro("source_instance", &PlanInstance::source_instance)
      .def_ro("target_instance", &PlanInstance::target_instance)
      .def_ro("plan_class", &PlanInstance::plan_class, "-1 when opaque.")
      .def_ro("opaque", &PlanInstance::opaque, "The whole tensor goes to the engine's loader.");
  compare(instance);
  show(instance, [](const PlanInstance& i) {
    return Facts{fact("source_instance", i.source_instance),
                 fact("target_instance", i.target_instance), fact("opaque", i.opaque)};
  });
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_parts(m);
  nb::class_<Plan> plan(m, "Plan", R"(Which elements go from which piece to which piece, proven.

Example:
    >>> plan = crossmesh.compile(source, target)
    >>> plan.copy_count, plan.unused
    (98, [])
)");
  plan.def_ro("source", &Plan::source)
      .def_ro("target", &Plan::target)
      .def_ro("classes", &Plan::classes)
      .def_ro("instances", &Plan::instances, "In the order of the target's instances.")
      .def_ro("unused", &Plan::unused, "Tensors that no engine wants, and why.")
      .def_prop_ro(
          "copy_count", [](const Plan& p) { return copy_count(p); },
          "Boxes copied, over all target ranks.")
      .def(
          "fingerprint", [](const Plan& p) { return to_string(fingerprint(p)); },
          "Returns 32 hexadecimal digits: equal for equal plans, on any machine.")
      .def(
          "explain", [](const Plan& p) { return explain(p); },
          "Returns a stable text: totals, classes with their copies, then instances.");
  compare(plan);
  show(plan, [](const Plan& p) {
    return Facts{fact("source_ranks", p.source.rank_count),
                 fact("target_ranks", p.target.rank_count), fact("classes", p.classes.size()),
                 fact("instances", p.instances.size()), fact("copies", copy_count(p))};
  });
  m.def(
      "compile",
      [](const Layout& source, const Layout& target) {
        nb::gil_scoped_release release;
        return compile(source, target);
      },
      "source"_a, "target"_a,
      R"(Matches the two sides' tensors by name, and proves the result.

Every element of every target parameter is a piece, a fill, opaque, kept or derived, exactly once;
every copy reads what its source holds; every wanted tensor has a holder.

Raises:
    crossmesh.Error: mismatch: a wanted tensor is missing or has another shape, an element is
        covered twice or never, or a box has no holder, each named; unsupported: dtypes that are
        not converted, or too many boxes; invalid_argument: the plan is empty.

Example:
    >>> crossmesh.compile(source, target)
    Plan(source_ranks=2, target_ranks=2, classes=10, instances=35, copies=98)
)");
}

}  // namespace crossmesh::python
