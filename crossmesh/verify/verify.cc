// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/verify/verify.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "crossmesh/verify/detail/checks.h"

namespace crossmesh {
namespace {

template <typename Values>
const auto& at(const Values& values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

template <typename Values>
bool has(const Values& values, std::int64_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < values.size();
}

class Verifier {
 public:
  Verifier(const Plan& plan, Verdict& verdict) : plan_(plan), verdict_(verdict), faults_(verdict) {}

  void run();

 private:
  bool check_shape_of_plan();
  void check_classes();
  void check_instance(const PlanInstance& instance);
  void check_whole(const PlanInstance& instance);
  void check_holders(const PlanInstance& instance);
  void check_unused();
  void fault(std::string what, const PlanInstance& instance, std::string facts, int rank = -1);
  int rank_with(const Instance& target, int role) const;

  const Instance& source_of(const PlanInstance& i) const {
    return at(plan_.source.instances, i.source_instance);
  }
  const Instance& target_of(const PlanInstance& i) const {
    return at(plan_.target.instances, i.target_instance);
  }

  const Plan& plan_;
  Verdict& verdict_;
  detail::Faults faults_;
  std::set<std::pair<int, int>> whole_;               // (source class, binding) that were checked
  std::set<std::tuple<int, int, int>> with_holders_;  // (plan class, both bindings)
};

void Verifier::fault(std::string what, const PlanInstance& instance, std::string facts, int rank) {
  const Instance& target = target_of(instance);
  faults_.add(Fault{std::move(what), at(plan_.target.tensors, target.tensor).name,
                    at(plan_.target.parameters, target.parameter).name, rank, std::move(facts)});
}

int Verifier::rank_with(const Instance& target, int role) const {
  const auto& roles = at(plan_.target.bindings, target.binding).role_of_rank;
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    if (roles[rank] == role) return static_cast<int>(rank);
  }
  return -1;
}

// Whether all indices may be followed.
bool Verifier::check_shape_of_plan() {
  if (plan_.source.model != plan_.target.model) faults_.add("the sides are of other models", "");
  for (const Layout* side : {&plan_.source, &plan_.target}) {
    const std::string unsound = detail::find_unsound(*side);
    if (unsound.empty()) continue;
    faults_.add("a layout is unsound",
                fmt::format("{}, {}", side == &plan_.source ? "source" : "target", unsound));
  }
  if (plan_.instances.empty()) faults_.add("the plan is empty", "");
  if (plan_.instances.size() != plan_.target.instances.size()) {
    faults_.add("a target instance is not in the plan, or twice",
                fmt::format("{} plan instances, {} target instances", plan_.instances.size(),
                            plan_.target.instances.size()));
  }
  for (std::size_t c = 0; c < plan_.classes.size(); ++c) {
    if (has(plan_.source.classes, plan_.classes[c].source_class) &&
        has(plan_.target.classes, plan_.classes[c].target_class)) {
      continue;
    }
    faults_.add("a class meets no class", fmt::format("class {}", c));
  }
  for (std::size_t i = 0; i < plan_.instances.size(); ++i) {
    const PlanInstance& instance = plan_.instances[i];
    const bool is_right =
        instance.target_instance == static_cast<int>(i) &&
        has(plan_.source.instances, instance.source_instance) &&
        (instance.opaque ? instance.plan_class == -1 : has(plan_.classes, instance.plan_class));
    if (!is_right) faults_.add("a plan instance has a wrong index", fmt::format("instance {}", i));
  }
  return !faults_.any();
}

void Verifier::check_classes() {
  std::vector<const PlanInstance*> user(plan_.classes.size(), nullptr);
  for (auto i = plan_.instances.rbegin(); i != plan_.instances.rend(); ++i) {
    if (!i->opaque) user[static_cast<std::size_t>(i->plan_class)] = &*i;
  }
  for (std::size_t c = 0; c < plan_.classes.size(); ++c) {
    const PlanClass& plan_class = plan_.classes[c];
    if (user[c] == nullptr) {
      faults_.add("no instance has a class", fmt::format("class {}", c));
      continue;
    }
    const LayoutClass& source = at(plan_.source.classes, plan_class.source_class);
    const LayoutClass& target = at(plan_.target.classes, plan_class.target_class);
    const auto conversion = source.dtype == target.dtype ? Conversion::none : Conversion::cast;
    if (plan_class.conversion != conversion ||
        (conversion == Conversion::cast && !is_castable(source.dtype, target.dtype))) {
      fault("the conversion is not that of the dtypes", *user[c],
            fmt::format("{} to {}", name_of(source.dtype), name_of(target.dtype)));
    }
    if (tensor_shape(source.space) != tensor_shape(target.space)) {
      fault("the sides give a tensor other shapes", *user[c],
            fmt::format("{} and {}", to_string(source.space), to_string(target.space)));
      continue;
    }
    verdict_.checked_copies += static_cast<std::int64_t>(plan_class.copies.size());
    for (detail::Finding& found : detail::check_class(plan_class, source, target)) {
      fault(std::move(found.what), *user[c], std::move(found.facts),
            found.target_role < 0 ? -1 : rank_with(target_of(*user[c]), found.target_role));
    }
  }
}

// Whether the ranks of the source hold all of an opaque tensor.
void Verifier::check_whole(const PlanInstance& instance) {
  const Instance& source = source_of(instance);
  if (!whole_.emplace(source.layout_class, source.binding).second) return;
  const LayoutClass& c = at(plan_.source.classes, source.layout_class);
  std::vector<Box> boxes;
  std::set<int> roles;
  for (const int role : at(plan_.source.bindings, source.binding).role_of_rank) {
    if (role < 0 || !roles.insert(role).second) continue;
    for (const Piece& piece : at(c.pieces_of_role, role)) boxes.push_back(piece.box);
  }
  const std::int64_t held = detail::count_union(boxes);
  const std::int64_t wanted = volume(whole(tensor_shape(c.space)));
  if (held == wanted) return;
  fault("the source does not hold all of an opaque tensor", instance,
        fmt::format("{} of {} elements", held, wanted));
}

// Whether each role that is read by a role that is played is played too.
void Verifier::check_holders(const PlanInstance& instance) {
  const Instance& source = source_of(instance);
  const Instance& target = target_of(instance);
  if (!with_holders_.emplace(instance.plan_class, source.binding, target.binding).second) return;
  const auto played = [](const Layout& layout, const Instance& i) {
    std::vector<bool> is_played(at(layout.classes, i.layout_class).pieces_of_role.size(), false);
    for (const int role : at(layout.bindings, i.binding).role_of_rank) {
      if (role >= 0) is_played[static_cast<std::size_t>(role)] = true;
    }
    return is_played;
  };
  const std::vector<bool> gives = played(plan_.source, source);
  const std::vector<bool> takes = played(plan_.target, target);
  for (const Copy& copy : at(plan_.classes, instance.plan_class).copies) {
    if (!has(takes, copy.target_role) || !takes[static_cast<std::size_t>(copy.target_role)]) {
      continue;
    }
    if (has(gives, copy.source_role) && gives[static_cast<std::size_t>(copy.source_role)]) continue;
    fault("no rank plays a role that is read", instance,
          fmt::format("source role {}", copy.source_role), rank_with(target, copy.target_role));
    return;
  }
}

void Verifier::check_instance(const PlanInstance& instance) {
  const Instance& source = source_of(instance);
  const Instance& target = target_of(instance);
  const TensorInfo& held = at(plan_.source.tensors, source.tensor);
  const TensorInfo& wanted = at(plan_.target.tensors, target.tensor);
  if (held.name != wanted.name || held.shape != wanted.shape) {
    return fault("another tensor is read", instance, held.name);
  }
  if (instance.opaque != (target.opaque_reason >= 0)) {
    return fault("the plan and the target differ on what is opaque", instance, "");
  }
  if (instance.opaque) return check_whole(instance);
  const PlanClass& c = at(plan_.classes, instance.plan_class);
  if (c.source_class != source.layout_class || c.target_class != target.layout_class) {
    return fault("the class of a plan instance is not that of its instances", instance,
                 fmt::format("class {}", instance.plan_class));
  }
  check_holders(instance);
}

void Verifier::check_unused() {
  std::set<std::string_view> used;
  for (const PlanInstance& instance : plan_.instances) {
    used.insert(at(plan_.source.tensors, source_of(instance).tensor).name);
  }
  std::unordered_map<std::string_view, std::string_view> why;
  for (const Unused& unused : plan_.target.unused) why.emplace(unused.name, unused.why);
  std::vector<Unused> expected;
  for (const TensorInfo& tensor : plan_.source.tensors) {
    if (used.contains(tensor.name)) continue;
    const auto known = why.find(tensor.name);
    expected.push_back({tensor.name, std::string(known == why.end() ? kUnwanted : known->second)});
  }
  if (expected == plan_.unused) return;
  faults_.add("the list of unused tensors is wrong",
              fmt::format("{} listed, {} unused", plan_.unused.size(), expected.size()));
}

void Verifier::run() {
  if (!check_shape_of_plan()) return;
  for (const PlanInstance& instance : plan_.instances) {
    if (!faults_.full()) check_instance(instance);
  }
  check_classes();
  check_unused();
  detail::check_source_places(plan_.source, faults_);
  detail::check_target_places(plan_.target, faults_);
}

}  // namespace

Verdict verify(const Plan& plan) {
  Verdict verdict;
  Verifier(plan, verdict).run();
  return verdict;
}

std::string explain(const Verdict& verdict) {
  if (verdict.right()) return fmt::format("right: {} copies checked\n", verdict.checked_copies);
  std::string text = fmt::format("wrong: {}{} faults, {} copies checked\n",
                                 verdict.faults.size() >= kFaultsMax ? "at least " : "",
                                 verdict.faults.size(), verdict.checked_copies);
  for (const Fault& fault : verdict.faults) {
    text += "  " + fault.what;
    if (!fault.tensor.empty()) text += "; tensor " + fault.tensor;
    if (!fault.parameter.empty()) text += "; parameter " + fault.parameter;
    if (fault.rank >= 0) text += fmt::format("; rank {}", fault.rank);
    if (!fault.facts.empty()) text += "; " + fault.facts;
    text += '\n';
  }
  return text;
}

}  // namespace crossmesh
