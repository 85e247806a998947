// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/moved.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "crossmesh/plan/plan.h"
#include "crossmesh/plan/testing.h"

namespace crossmesh::reports {
namespace {

using testing::at;

int number_of(const Layout& layout, std::string_view parameter) {
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    if (layout.parameters[p].name == parameter) return static_cast<int>(p);
  }
  throw std::logic_error("no parameter of this name: " + std::string(parameter));
}

int role_of(const Layout& layout, int binding, int rank) {
  return layout.bindings[at(binding)].role_of_rank[at(rank)];
}

// The storage on a rank, with its constants.
Elements storage_of(const Layout& layout, int rank, int parameter) {
  if (!has_parameter(layout, rank, parameter)) return {};
  const Parameter& p = layout.parameters[at(parameter)];
  Elements elements(at(storage_elements(local_shape(layout, rank, parameter),
                                        local_strides(layout, rank, parameter))),
                    kUntouched);
  for (const Reserve& reserve : layout.parameter_classes[at(p.parameter_class)].reserves) {
    if (reserve.role != role_of(layout, p.binding, rank)) continue;
    if (reserve.kind != Reserve::Kind::fill) continue;
    for (const std::int64_t place : testing::places_of(reserve.region.shape, reserve.region.view)) {
      elements.at(at(place)) = kFill;
    }
  }
  return elements;
}

Elements held(const Layout& layout, int rank, int parameter) {
  Elements elements = storage_of(layout, rank, parameter);
  for (const Instance& instance : layout.instances) {
    if (instance.parameter != parameter) continue;
    const int role = role_of(layout, instance.binding, rank);
    if (role < 0) continue;
    const LayoutClass& c = layout.classes[at(instance.layout_class)];
    for (const auto& [place, element] : testing::elements_of(c, role)) {
      elements.at(at(place + instance.offset)) = instance.tensor * kTensorStride + element;
    }
  }
  return elements;
}

// The number that the target gives to a tensor of the source.
int renumbered(const Plan& plan, std::int64_t tensor) {
  const auto& name = plan.source.tensors[at(tensor)].name;
  for (std::size_t t = 0; t < plan.target.tensors.size(); ++t) {
    if (plan.target.tensors[t].name == name) return static_cast<int>(t);
  }
  throw std::logic_error("a step of a tensor that the target does not know: " + name);
}

}  // namespace

Elements held(const Layout& layout, int rank, std::string_view parameter) {
  return held(layout, rank, number_of(layout, parameter));
}

Elements moved(const Schedule& schedule, int rank, std::string_view parameter) {
  const Plan& plan = schedule.plan;
  const int number = number_of(plan.target, parameter);
  Elements elements = storage_of(plan.target, rank, number);
  for (const auto& steps : expand(schedule, Side::target, rank).steps_of_group) {
    for (const Step& step : steps) {
      if (step.target_parameter != number) continue;
      const Elements source = held(plan.source, step.peer, step.source_parameter);
      const auto from = testing::places_of(step.counts, step.source);
      const auto to = testing::places_of(step.counts, step.target);
      if (from.empty()) throw std::logic_error("a step that moves nothing");
      for (std::size_t i = 0; i < from.size(); ++i) {
        const std::int64_t element = source.at(at(from[i]));
        if (element < 0) throw std::logic_error("a step reads what no tensor's element is");
        if (elements.at(at(to[i])) != kUntouched) throw std::logic_error("written twice");
        elements[at(to[i])] =
            renumbered(plan, element / kTensorStride) * kTensorStride + element % kTensorStride;
      }
    }
  }
  return elements;
}

Elements moved(const Layout& source, const Layout& target, int rank, std::string_view parameter) {
  return moved(arrange(compile(source, target)), rank, parameter);
}

Elements counted(std::int64_t first, std::int64_t last) {
  Elements elements(at(std::max<std::int64_t>(last - first, 0)));
  std::iota(elements.begin(), elements.end(), first);
  return elements;
}

Elements joined(Elements a, const Elements& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace crossmesh::reports
