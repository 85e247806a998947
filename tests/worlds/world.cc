// SPDX-License-Identifier: Apache-2.0
#include "tests/worlds/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/verify/verify.h"

namespace crossmesh::worlds {
namespace {

using oracle::Element;
using oracle::Elements;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// -- What must come out --------------------------------------------------------------------------

enum class Expected { success, refusal, either };

// Which elements of each tensor some source rank holds.
std::vector<std::set<std::int64_t>> held_by_tensor(const World& world) {
  std::vector<std::set<std::int64_t>> held(world.tensors.size());
  for (const auto& parameters : world.held.elements) {
    for (const Elements& elements : parameters) {
      for (const Element& element : elements) {
        if (element.tensor >= 0) held[at(element.tensor)].insert(element.index);
      }
    }
  }
  return held;
}

std::int64_t size_of(const TensorInfo& tensor) {
  std::int64_t size = 1;
  for (const std::int64_t extent : tensor.shape) size *= extent;
  return size;
}

std::int64_t tensor_size(const World& world, const std::string& name) {
  for (const TensorInfo& tensor : world.target.tensors) {
    if (tensor.name == name) return size_of(tensor);
  }
  return 0;
}

bool is_played(const Layout& layout, const Instance& instance) {
  return std::ranges::any_of(layout.bindings[at(instance.binding)].role_of_rank,
                             [](int role) { return role >= 0; });
}

// Whether some role that no rank plays has pieces: holders are chosen by role, so that a plan may
// then count on one that is not there, and be refused though another rank could serve.
bool has_idle_holder(const Layout& source) {
  for (const Instance& instance : source.instances) {
    const auto& roles = source.bindings[at(instance.binding)].role_of_rank;
    const auto& pieces_of_role = source.classes[at(instance.layout_class)].pieces_of_role;
    for (std::size_t role = 0; role < pieces_of_role.size(); ++role) {
      const bool is_idle = std::ranges::find(roles, static_cast<int>(role)) == roles.end();
      if (is_idle && !pieces_of_role[role].empty()) return true;
    }
  }
  return false;
}

// A refusal is due where a rank wants what no rank holds. Where only a role wants it that no rank
// plays, the library may do either.
Expected expect(const World& world, const oracle::Side& moved) {
  if (moved != world.wanted) return Expected::refusal;
  const auto held = held_by_tensor(world);
  bool is_all_held = true;
  for (std::size_t t = 0; t < held.size(); ++t) {
    const bool is_whole =
        static_cast<std::int64_t>(held[t].size()) == tensor_size(world, world.tensors[t]);
    is_all_held = is_all_held && is_whole;
    for (const Instance& instance : world.target.instances) {
      if (instance.opaque_reason >= 0 && !is_whole && is_played(world.target, instance) &&
          world.target.tensors[at(instance.tensor)].name == world.tensors[t]) {
        return Expected::refusal;
      }
    }
  }
  const bool is_sure = is_all_held && !has_idle_holder(world.source);
  return is_sure ? Expected::success : Expected::either;
}

// -- Performing a schedule -----------------------------------------------------------------------

constexpr Element kUntouched{-2, -2};

struct Ends {
  const Elements* source = nullptr;
  Elements* target = nullptr;
};

// The problem of the first element that is read or written where it must not be.
std::string perform(const Step& step, Ends ends) {
  const int dims = step.counts.size();
  if (step.source.strides.size() != dims || step.target.strides.size() != dims) {
    return "a step's strides and counts differ in number";
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : step.counts) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t source = step.source.offset;
    std::int64_t target = step.target.offset;
    for (int d = dims - 1; d >= 0; --d) {
      source += rest % step.counts[d] * step.source.strides[d];
      target += rest % step.counts[d] * step.target.strides[d];
      rest /= step.counts[d];
    }
    if (source < 0 || source >= static_cast<std::int64_t>(ends.source->size())) {
      return fmt::format("a step reads element {} of {}", source, ends.source->size());
    }
    if (target < 0 || target >= static_cast<std::int64_t>(ends.target->size())) {
      return fmt::format("a step writes element {} of {}", target, ends.target->size());
    }
    if ((*ends.target)[at(target)] != kUntouched) {
      return fmt::format("element {} is written twice", target);
    }
    (*ends.target)[at(target)] = (*ends.source)[at(source)];
  }
  return {};
}

bool are_equal(const Step& given, const Step& taken) {
  return given.instance == taken.instance && given.source_parameter == taken.source_parameter &&
         given.target_parameter == taken.target_parameter && given.counts == taken.counts &&
         given.source == taken.source && given.target == taken.target &&
         given.whole_tensor == taken.whole_tensor;
}

class Judge {
 public:
  Judge(const World& world, const Schedule& schedule, Tally& tally)
      : world_(world), schedule_(schedule), tally_(tally) {}

  std::string run(const oracle::Side& moved) {
    for (int rank = 0; rank < world_.source.rank_count; ++rank) {
      given_.push_back(expand(schedule_, Side::source, rank));
    }
    for (int rank = 0; rank < world_.target.rank_count; ++rank) {
      taken_.push_back(expand(schedule_, Side::target, rank));
    }
    std::string problem = compare_parts();
    for (int rank = 0; problem.empty() && rank < world_.target.rank_count; ++rank) {
      problem = take(rank, moved.elements[at(rank)]);
    }
    return problem.empty() ? compare_totals() : problem;
  }

 private:
  std::string compare_parts() const;
  std::string take(int rank, const std::vector<Elements>& moved);
  std::string compare_fallback(int rank, const std::map<int, Elements>& buffers) const;
  std::string compare_totals() const;

  const World& world_;
  const Schedule& schedule_;
  Tally& tally_;
  std::vector<RankPart> given_;
  std::vector<RankPart> taken_;
};

// What s gives t is what t takes from s, in the same order, group by group.
std::string Judge::compare_parts() const {
  for (std::size_t g = 0; g < schedule_.groups.size(); ++g) {
    for (std::size_t s = 0; s < given_.size(); ++s) {
      for (std::size_t t = 0; t < taken_.size(); ++t) {
        std::vector<const Step*> gives;
        std::vector<const Step*> takes;
        for (const Step& step : given_[s].steps_of_group.at(g)) {
          if (step.peer == static_cast<int>(t)) gives.push_back(&step);
        }
        for (const Step& step : taken_[t].steps_of_group.at(g)) {
          if (step.peer == static_cast<int>(s)) takes.push_back(&step);
        }
        if (!std::ranges::equal(gives, takes, [](const Step* give, const Step* take) {
              return are_equal(*give, *take);
            })) {
          return fmt::format("source rank {} and target rank {} expand group {} differently", s, t,
                             g);
        }
      }
    }
  }
  return {};
}

std::string Judge::take(int rank, const std::vector<Elements>& moved) {
  const Layout& target = world_.target;
  std::vector<Elements> parameters;
  for (const Elements& elements : moved) {
    parameters.push_back(Elements(elements.size(), kUntouched));
  }
  std::map<int, Elements> buffers;  // of the fallback, by tensor
  for (const auto& steps : taken_[at(rank)].steps_of_group) {
    for (const Step& step : steps) {
      if (step.peer < 0 || step.peer >= world_.source.rank_count) return "a step has no such peer";
      const int held_at = world_.source.parameters[at(step.source_parameter)].storage;
      Ends ends{&world_.held.elements[at(step.peer)][at(held_at)], nullptr};
      if (step.whole_tensor) {
        const int instance = schedule_.plan.instances[at(step.instance)].target_instance;
        const int tensor = target.instances[at(instance)].tensor;
        Elements& buffer = buffers[tensor];
        if (buffer.empty()) buffer.assign(at(size_of(target.tensors[at(tensor)])), kUntouched);
        ends.target = &buffer;
      } else {
        ends.target = &parameters[at(target.parameters[at(step.target_parameter)].storage)];
      }
      const std::string problem = perform(step, ends);
      if (!problem.empty()) return fmt::format("target rank {}: {}", rank, problem);
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    for (std::size_t i = 0; i < parameters[p].size(); ++i) {
      const Element expected = moved[p][i].tensor < 0 ? kUntouched : moved[p][i];
      const Element actual = parameters[p][i];
      if (actual != expected) {
        return fmt::format("target rank {} parameter {} element {}: has {}[{}], must have {}[{}]",
                           rank, p, i, actual.tensor, actual.index, expected.tensor,
                           expected.index);
      }
      tally_.elements += actual.tensor >= 0;
    }
  }
  return compare_fallback(rank, buffers);
}

// An opaque tensor comes whole, in order and once to each rank that has a part in it.
std::string Judge::compare_fallback(int rank, const std::map<int, Elements>& buffers) const {
  const Layout& target = world_.target;
  std::map<int, Elements> expected;
  for (const Instance& instance : target.instances) {
    const bool is_here = target.bindings[at(instance.binding)].role_of_rank[at(rank)] >= 0;
    const TensorInfo& tensor = target.tensors[at(instance.tensor)];
    if (instance.opaque_reason < 0 || !is_here || size_of(tensor) == 0) continue;
    const auto found = std::ranges::find(world_.tensors, tensor.name);
    const auto number = static_cast<int>(found - world_.tensors.begin());
    Elements& elements = expected[instance.tensor];
    elements.clear();
    for (std::int64_t e = 0; e < size_of(tensor); ++e) elements.push_back({number, e});
  }
  tally_.fallbacks += static_cast<std::int64_t>(expected.size());
  if (buffers == expected) return {};
  return fmt::format("target rank {}: what the fallback brings is not the opaque tensors", rank);
}

std::int64_t element_count_of(const Step& step) {
  std::int64_t count = 1;
  for (const std::int64_t extent : step.counts) count *= extent;
  return count;
}

// The sums over all parts, and over what the oracle wants.
std::string Judge::compare_totals() const {
  const Plan& plan = schedule_.plan;
  Totals expected;
  expected.egress_bytes.assign(given_.size(), 0);
  expected.ingress_bytes.assign(taken_.size(), 0);
  std::map<std::string, std::set<std::int64_t>> unique;
  for (std::size_t rank = 0; rank < taken_.size(); ++rank) {
    for (const auto& steps : taken_[rank].steps_of_group) {
      for (const Step& step : steps) {
        const PlanInstance& instance = plan.instances[at(step.instance)];
        const std::int64_t bytes = element_count_of(step) * byte_size(source_dtype(plan, instance));
        expected.egress_bytes[at(step.peer)] += bytes;
        expected.ingress_bytes[rank] += bytes;
        expected.bytes_needed += bytes;
        expected.bytes_fallback += step.whole_tensor ? bytes : 0;
        ++expected.copies;
      }
    }
    for (const Elements& elements : world_.wanted.elements[rank]) {
      for (const Element& element : elements) {
        if (element.tensor >= 0) unique[world_.tensors[at(element.tensor)]].insert(element.index);
      }
    }
    for (const Instance& instance : world_.target.instances) {
      const auto& roles = world_.target.bindings[at(instance.binding)].role_of_rank;
      if (instance.opaque_reason < 0 || roles[rank] < 0) continue;
      const TensorInfo& tensor = world_.target.tensors[at(instance.tensor)];
      for (std::int64_t e = 0; e < size_of(tensor); ++e) unique[tensor.name].insert(e);
    }
  }
  for (const TensorInfo& tensor : world_.source.tensors) {
    expected.bytes_model += size_of(tensor) * byte_size(tensor.dtype);
    expected.bytes_unique +=
        static_cast<std::int64_t>(unique[tensor.name].size()) * byte_size(tensor.dtype);
  }
  tally_.copies += expected.copies;
  const Totals actual = totals(schedule_);
  const auto text = [](const Totals& t) {
    return fmt::format(
        "model {} unique {} needed {} fallback {} egress [{}] ingress [{}] copies {}",
        t.bytes_model, t.bytes_unique, t.bytes_needed, t.bytes_fallback,
        fmt::join(t.egress_bytes, ", "), fmt::join(t.ingress_bytes, ", "), t.copies);
  };
  if (text(actual) == text(expected)) return {};
  return fmt::format("totals are\n  {}\nand must be\n  {}", text(actual), text(expected));
}

bool has_unnested_factors(const Plan& plan) {
  return std::ranges::any_of(plan.instances, [&](const PlanInstance& instance) {
    const Instance& source = plan.source.instances[at(instance.source_instance)];
    const Instance& target = plan.target.instances[at(instance.target_instance)];
    return !common_refinement(plan.source.classes[at(source.layout_class)].space,
                              plan.target.classes[at(target.layout_class)].space);
  });
}

// The plan with one copy that some rank takes moved by an element on one end; nothing where no rank
// takes any.
std::optional<Plan> spoil(const Plan& plan, std::int64_t number) {
  std::vector<std::pair<std::size_t, std::size_t>> taken;  // (class, copy)
  for (const PlanInstance& instance : plan.instances) {
    if (instance.opaque) continue;
    const Instance& target = plan.target.instances[at(instance.target_instance)];
    const auto& roles = plan.target.bindings[at(target.binding)].role_of_rank;
    const auto& copies = plan.classes[at(instance.plan_class)].copies;
    for (std::size_t c = 0; c < copies.size(); ++c) {
      const bool is_taken = std::ranges::find(roles, copies[c].target_role) != roles.end();
      if (is_taken) taken.emplace_back(at(instance.plan_class), c);
    }
  }
  if (taken.empty()) return std::nullopt;
  const auto [in_class, chosen] = taken[at(number) % taken.size()];
  Plan spoiled = plan;
  Copy& copy = spoiled.classes[in_class].copies[chosen];
  (number / 8 % 2 == 0 ? copy.target.offset : copy.source.offset) += 1;
  return spoiled;
}

}  // namespace

std::string judge(const World& world, const ScheduleOptions& options, Tally& tally) {
  ++tally.worlds;
  const oracle::Side moved = oracle::move_naive(world.held, world.wanted);
  const Expected expected = expect(world, moved);
  try {
    check(world.source);
    check(world.target);
  } catch (const Error& error) {
    return "the test made a bad layout: " + error.text();
  }
  std::optional<Plan> plan;
  try {
    plan = compile(world.source, world.target);
  } catch (const Error& error) {
    if (expected == Expected::success || error.code() != ErrorCode::mismatch) {
      return "refused: " + error.text();
    }
    ++tally.refused;
    return {};
  }
  if (expected == Expected::refusal) return "a plan was made of elements that nobody holds";
  tally.unnested += has_unnested_factors(*plan);
  const Verdict verdict = verify(*plan);
  if (!verdict.right()) return "verify refuses a right plan: " + explain(verdict);
  if (tally.worlds % 8 == 0) {
    const std::optional<Plan> spoiled = spoil(*plan, tally.worlds);
    if (spoiled && verify(*spoiled).right()) return "verify takes a spoiled plan for a right one";
    tally.spoiled += spoiled.has_value();
  }
  const Schedule schedule = arrange(std::move(*plan), options);
  return Judge(world, schedule, tally).run(moved);
}

}  // namespace crossmesh::worlds
