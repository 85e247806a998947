// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/schedule/schedule.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "python/bind/bind.h"
#include "python/bind/schedule_words.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {
namespace {

int rank_count(const Schedule& schedule, Side side) {
  return side == Side::source ? schedule.plan.source.rank_count : schedule.plan.target.rank_count;
}

void bind_parts(nb::module_& m) {
  nb::class_<ScheduleOptions> options(m, "ScheduleOptions", "What `arrange` was asked for.");
  options.def_prop_ro("route", [](const ScheduleOptions& o) { return word_of(o.route); })
      .def_ro("staging_bytes_max", &ScheduleOptions::staging_bytes_max, "Per source rank.")
      .def_ro("fallback_bytes_max", &ScheduleOptions::fallback_bytes_max, "Per target rank.");
  show(options, [](const ScheduleOptions& o) {
    return Facts{fact("route", word_of(o.route)), fact("staging_bytes_max", o.staging_bytes_max),
                 fact("fallback_bytes_max", o.fallback_bytes_max)};
  });

  nb::class_<Group> group(m, "Group", "Plan instances that are moved and released together.");
  group.def_ro("name", &Group::name)
      .def_ro("first", &Group::first, "Into the schedule's `order`.")
      .def_ro("last", &Group::last, "One past.");
  compare(group);
  show(group, [](const Group& g) {
    return Facts{fact("name", g.name), fact("instances", g.last - g.first)};
  });

  nb::class_<Step> step(m, "Step",
                        "One copy that a rank gives or takes. In elements; offsets from the start "
                        "of the parameters.");
  step.def_ro("peer", &Step::peer, "The rank on the other side.")
      .def_ro("instance", &Step::instance, "Of the plan.")
      .def_ro("source_parameter", &Step::source_parameter)
      .def_ro("target_parameter", &Step::target_parameter)
      .def_ro("counts", &Step::counts, "Elements, by dimension.")
      .def_ro("source", &Step::source)
      .def_ro("target", &Step::target)
      .def_ro("whole_tensor", &Step::whole_tensor,
              "The target is the buffer of an opaque tensor, for the engine's loader.");
  show(step, [](const Step& s) {
    return Facts{fact("peer", s.peer), fact("instance", s.instance),
                 fact("counts", to_string(s.counts))};
  });

  nb::class_<Totals> totals(m, "Totals", "A schedule's sums, in bytes of the source's dtypes.");
  totals.def_ro("bytes_model", &Totals::bytes_model, "One copy of the checkpoint.")
      .def_ro("bytes_unique", &Totals::bytes_unique, "Distinct wanted bytes.")
      .def_ro("bytes_needed", &Totals::bytes_needed, "Over all target ranks.")
      .def_ro("bytes_fallback", &Totals::bytes_fallback, "Of these, by the fallback.")
      .def_ro("egress_bytes", &Totals::egress_bytes, "By source rank.")
      .def_ro("ingress_bytes", &Totals::ingress_bytes, "By target rank.")
      .def_ro("copies", &Totals::copies, "Steps, over all target ranks.");
  compare(totals);
  show(totals, [](const Totals& t) {
    return Facts{fact("bytes_model", t.bytes_model), fact("bytes_unique", t.bytes_unique),
                 fact("bytes_needed", t.bytes_needed), fact("bytes_fallback", t.bytes_fallback),
                 fact("copies", t.copies)};
  });
}

void bind_arrange(nb::module_& m) {
  m.def(
      "arrange",
      [](const Plan& plan, const Word<Route>& route, std::int64_t staging_bytes_max,
         std::int64_t fallback_bytes_max) {
        const ScheduleOptions options{route.get(), staging_bytes_max, fallback_bytes_max};
        nb::gil_scoped_release release;
        return arrange(plan, options);
      },
      "plan"_a, nb::kw_only(), "route"_a = "direct",
      "staging_bytes_max"_a = ScheduleOptions().staging_bytes_max,
      "fallback_bytes_max"_a = ScheduleOptions().fallback_bytes_max,
      R"(Chooses holders, an order and bounds for a plan.

Args:
    plan: From `compile`.
    route: `"direct"`: straight from the source's parameters; `"packed"`: through bounded staging.
    staging_bytes_max: Bytes, per source rank.
    fallback_bytes_max: Bytes, per target rank; the largest opaque tensor must fit.

Raises:
    crossmesh.Error: limit_exceeded, naming the bound, the tensor and the number that would do;
        invalid_argument: there is no such route.

Example:
    >>> crossmesh.arrange(plan, route="packed", staging_bytes_max=4096).staging_slot_bytes
    2048
)");
}

}  // namespace

void bind_schedule(nb::module_& m) {
  bind_parts(m);
  nb::class_<Schedule> schedule(m, "Schedule",
                                R"(From which holder, in which order, within which memory.

Example:
    >>> schedule = crossmesh.arrange(plan)
    >>> [group.name for group in schedule.groups]
    ['before', 'model.layers.0', 'model.layers.1', 'after']
    >>> schedule.totals().bytes_needed
    64448
)");
  schedule.def_ro("plan", &Schedule::plan)
      .def_ro("options", &Schedule::options)
      .def_ro("order", &Schedule::order, "Plan instances, group by group.")
      .def_ro("groups", &Schedule::groups)
      .def_ro("staging_slot_bytes", &Schedule::staging_slot_bytes, "0 where nothing is staged.")
      .def_ro("staging_slot_count", &Schedule::staging_slot_count)
      .def(
          "totals", [](const Schedule& s) { return totals(s); },
          "Returns the sums over every rank's part.")
      .def(
          "expand",
          [](const Schedule& s, const Word<Side>& side, std::int64_t rank) {
            const auto count = static_cast<std::size_t>(rank_count(s, side.get()));
            const int checked = checked_index(rank, count, "expand: no such rank");
            return expand(s, side.get(), checked).steps_of_group;
          },
          "side"_a, "rank"_a,
          R"(Returns the steps of one rank, group by group.

Args:
    side: `"source"` or `"target"`.
    rank: Of that side, from 0.

Raises:
    crossmesh.Error: invalid_argument: there is no such side or rank.
)")
      .def(
          "fingerprint", [](const Schedule& s) { return to_string(fingerprint(s)); },
          "Returns 32 hexadecimal digits: equal for equal schedules, on any machine.")
      .def(
          "explain", [](const Schedule& s) { return explain(s); }, "Returns a stable text.");
  show(schedule, [](const Schedule& s) {
    return Facts{fact("route", word_of(s.options.route)), fact("groups", s.groups.size()),
                 fact("instances", s.order.size()),
                 fact("staging_slot_bytes", s.staging_slot_bytes)};
  });
  bind_arrange(m);
}

}  // namespace crossmesh::python
