// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "crossmesh/base/dtype.h"
#include "crossmesh/plan/plan.h"

namespace crossmesh {
namespace {

// Copies of a class that the text shows.
constexpr std::size_t kCopiesShown = 16;

using Text = std::back_insert_iterator<std::string>;

const Layout& side_of(const Plan& plan, bool is_source) {
  return is_source ? plan.source : plan.target;
}

std::string view_text(const View& view) {
  return fmt::format("{}+{}", to_string(view.strides), view.offset);
}

void explain_class(Text text, const Plan& plan, std::size_t index) {
  const PlanClass& c = plan.classes[index];
  const LayoutClass& source = plan.source.classes[static_cast<std::size_t>(c.source_class)];
  const LayoutClass& target = plan.target.classes[static_cast<std::size_t>(c.target_class)];
  fmt::format_to(text, "class {}  source class {} {} {}, target class {} {} {}\n", index,
                 c.source_class, to_string(source.space), name_of(source.dtype), c.target_class,
                 to_string(target.space), name_of(target.dtype));
  fmt::format_to(text, "  {}, {} copies, {} distinct elements\n",
                 c.conversion == Conversion::cast ? "cast" : "same dtype", c.copies.size(),
                 c.unique_elements);
  for (std::size_t i = 0; i < std::min(c.copies.size(), kCopiesShown); ++i) {
    const Copy& copy = c.copies[i];
    fmt::format_to(text, "  role {} <- {}  {}  source {}  target {}\n", copy.target_role,
                   copy.source_role, to_string(copy.counts), view_text(copy.source),
                   view_text(copy.target));
  }
  if (c.copies.size() > kCopiesShown) {
    fmt::format_to(text, "  and {} more\n", c.copies.size() - kCopiesShown);
  }
}

void explain_instance(Text text, const Plan& plan, const PlanInstance& instance) {
  const auto t = static_cast<std::size_t>(instance.target_instance);
  const Instance& target = plan.target.instances[t];
  fmt::format_to(text, "  {} -> {}",
                 plan.target.tensors[static_cast<std::size_t>(target.tensor)].name,
                 plan.target.parameters[static_cast<std::size_t>(target.parameter)].name);
  if (target.offset != 0) fmt::format_to(text, " +{}", target.offset);
  if (instance.opaque) {
    fmt::format_to(text, "  ({})",
                   plan.target.reasons[static_cast<std::size_t>(target.opaque_reason)]);
  }
  *text++ = '\n';
}

void explain_instances(Text text, const Plan& plan) {
  // Grouped in one pass, so that the text costs its own length.
  std::vector<std::vector<int>> of_class(plan.classes.size() + 1);
  for (std::size_t i = 0; i < plan.instances.size(); ++i) {
    const PlanInstance& instance = plan.instances[i];
    const std::size_t c =
        instance.opaque ? plan.classes.size() : static_cast<std::size_t>(instance.plan_class);
    of_class[c].push_back(static_cast<int>(i));
  }
  for (std::size_t c = 0; c < of_class.size(); ++c) {
    if (of_class[c].empty()) continue;
    if (c < plan.classes.size()) {
      fmt::format_to(text, "instances of class {}: {}\n", c, of_class[c].size());
    } else {
      fmt::format_to(text, "opaque instances: {}\n", of_class[c].size());
    }
    for (const int i : of_class[c]) {
      explain_instance(text, plan, plan.instances[static_cast<std::size_t>(i)]);
    }
  }
}

void add_view(FingerprintBuilder& builder, const View& view) {
  builder.add(view.offset).add(view.strides.span());
}

Fingerprint fingerprint(const PlanClass& c) {
  FingerprintBuilder builder;
  builder.add(c.source_class).add(c.target_class).add(static_cast<std::int64_t>(c.conversion));
  builder.add(static_cast<std::int64_t>(c.copies.size()));
  for (const Copy& copy : c.copies) {
    builder.add(copy.source_role).add(copy.target_role).add(copy.counts.span());
    add_view(builder, copy.source);
    add_view(builder, copy.target);
  }
  for (const int first : c.first_copy_of_target_role) builder.add(first);
  return builder.add(c.unique_elements).finish();
}

// Ranks that play each role of a target instance's class.
std::vector<std::int64_t> players(const Layout& target, const Instance& instance) {
  const auto& c = target.classes[static_cast<std::size_t>(instance.layout_class)];
  std::vector<std::int64_t> count(c.pieces_of_role.size(), 0);
  for (const int role : target.bindings[static_cast<std::size_t>(instance.binding)].role_of_rank) {
    if (role >= 0) ++count[static_cast<std::size_t>(role)];
  }
  return count;
}

}  // namespace

std::int64_t copy_count(const Plan& plan) {
  // Instances of one class and binding are counted together.
  std::vector<std::vector<std::int64_t>> instances_of(
      plan.classes.size(), std::vector<std::int64_t>(plan.target.bindings.size(), 0));
  std::vector<std::vector<const Instance*>> example(
      plan.classes.size(), std::vector<const Instance*>(plan.target.bindings.size(), nullptr));
  for (const PlanInstance& i : plan.instances) {
    if (i.opaque) continue;
    const Instance& target = plan.target.instances[static_cast<std::size_t>(i.target_instance)];
    const auto c = static_cast<std::size_t>(i.plan_class);
    ++instances_of[c][static_cast<std::size_t>(target.binding)];
    example[c][static_cast<std::size_t>(target.binding)] = &target;
  }
  std::int64_t sum = 0;
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const auto& first = plan.classes[c].first_copy_of_target_role;
    for (std::size_t b = 0; b < plan.target.bindings.size(); ++b) {
      if (example[c][b] == nullptr) continue;
      const std::vector<std::int64_t> ranks = players(plan.target, *example[c][b]);
      for (std::size_t role = 0; role < ranks.size(); ++role) {
        sum += instances_of[c][b] * ranks[role] * (first[role + 1] - first[role]);
      }
    }
  }
  return sum;
}

Fingerprint fingerprint(const Plan& plan) {
  FingerprintBuilder builder;
  builder.add(fingerprint(plan.source)).add(fingerprint(plan.target));
  builder.add(static_cast<std::int64_t>(plan.classes.size()));
  for (const PlanClass& c : plan.classes) builder.add(fingerprint(c));
  builder.add(static_cast<std::int64_t>(plan.instances.size()));
  for (const PlanInstance& i : plan.instances) {
    builder.add(i.source_instance).add(i.target_instance).add(i.plan_class);
    builder.add(std::int64_t{i.opaque});
  }
  for (const Unused& unused : plan.unused) builder.add(unused.name).add(unused.why);
  return builder.finish();
}

std::string explain(const Plan& plan) {
  std::string out;
  Text text = std::back_inserter(out);
  fmt::format_to(text, "plan of {}\n", plan.source.model);
  for (const bool is_source : {true, false}) {
    const Layout& side = side_of(plan, is_source);
    fmt::format_to(text, "{}: {} ranks, {} tensors, {} parameters, {} classes\n",
                   is_source ? "source" : "target", side.rank_count, side.tensors.size(),
                   side.parameters.size(), side.classes.size());
  }
  fmt::format_to(text, "{} classes, {} instances, {} copies\n", plan.classes.size(),
                 plan.instances.size(), copy_count(plan));
  for (std::size_t c = 0; c < plan.classes.size(); ++c) explain_class(text, plan, c);
  explain_instances(text, plan);
  if (!plan.unused.empty()) fmt::format_to(text, "unused: {}\n", plan.unused.size());
  for (const Unused& unused : plan.unused) {
    fmt::format_to(text, "  {}  ({})\n", unused.name, unused.why);
  }
  return out;
}

}  // namespace crossmesh
