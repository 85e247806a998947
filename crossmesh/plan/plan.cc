// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/plan.h"

#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/detail/prove.h"
#include "crossmesh/plan/meet.h"

namespace crossmesh {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  }
  return text + "]";
}

// Builds a plan instance by instance; what only depends on classes and bindings is done once.
class Compiler {
 public:
  explicit Compiler(Plan& plan) : plan_(plan) {}

  void match();
  void add_instances();
  void list_unused();

 private:
  const TensorInfo& wanted_tensor(const Instance& instance) const {
    return plan_.target.tensors[static_cast<std::size_t>(instance.tensor)];
  }
  const LayoutClass& source_class(int index) const {
    return plan_.source.classes[static_cast<std::size_t>(index)];
  }
  const LayoutClass& target_class(int index) const {
    return plan_.target.classes[static_cast<std::size_t>(index)];
  }
  int source_instance_of(const Instance& wanted) const;
  void add(int target_instance);
  int class_of(int source_class, int target_class);
  Conversion conversion_of(DType source, DType target) const;
  void require_dtypes(const TensorInfo& held, const Instance& source, const Instance& target) const;
  void require_whole(const Instance& source);
  void require_holders(const Instance& source, const Instance& target, int plan_class);
  void require_bytes(const Instance& source, const Instance& target, int plan_class);

  Plan& plan_;
  std::vector<int> source_of_wanted_;    // source tensor of a target tensor, or -1
  std::vector<int> instance_of_source_;  // first source instance of a source tensor, or -1
  std::unordered_map<std::uint64_t, int> class_by_pair_;
  std::set<std::pair<int, int>> whole_;               // (source class, binding) checked
  std::set<std::tuple<int, int, int>> with_holders_;  // (plan class, both bindings) checked
};

void Compiler::match() {
  std::unordered_map<std::string_view, int> source_by_name;
  source_by_name.reserve(plan_.source.tensors.size());
  for (std::size_t t = 0; t < plan_.source.tensors.size(); ++t) {
    source_by_name.emplace(plan_.source.tensors[t].name, static_cast<int>(t));
  }
  instance_of_source_.assign(plan_.source.tensors.size(), -1);
  for (std::size_t i = plan_.source.instances.size(); i-- > 0;) {
    const auto tensor = static_cast<std::size_t>(plan_.source.instances[i].tensor);
    instance_of_source_[tensor] = static_cast<int>(i);
  }
  source_of_wanted_.reserve(plan_.target.tensors.size());
  for (const TensorInfo& tensor : plan_.target.tensors) {
    const auto found = source_by_name.find(tensor.name);
    source_of_wanted_.push_back(found == source_by_name.end() ? -1 : found->second);
  }
}

int Compiler::source_instance_of(const Instance& wanted) const {
  const TensorInfo& tensor = wanted_tensor(wanted);
  const auto& parameter = plan_.target.parameters[static_cast<std::size_t>(wanted.parameter)];
  const int source = source_of_wanted_[static_cast<std::size_t>(wanted.tensor)];
  const int instance = source < 0 ? -1 : instance_of_source_[static_cast<std::size_t>(source)];
  if (instance < 0) {
    throw Error(ErrorCode::mismatch, source < 0
                                         ? "compile: the source lacks a tensor that is wanted"
                                         : "compile: no source rank holds a tensor that is wanted")
        .with("tensor", tensor.name)
        .with("shape", shape_text(tensor.shape))
        .with("parameter", parameter.name)
        .hint("the checkpoint and the engine's config are of different models");
  }
  const TensorInfo& held = plan_.source.tensors[static_cast<std::size_t>(source)];
  if (held.shape != tensor.shape) {
    throw Error(ErrorCode::mismatch, "compile: a tensor has another shape than the engine wants")
        .with("tensor", tensor.name)
        .with("source shape", shape_text(held.shape))
        .with("target shape", shape_text(tensor.shape))
        .with("parameter", parameter.name)
        .hint("the checkpoint and the engine's config are of different models");
  }
  return instance;
}

Conversion Compiler::conversion_of(DType source, DType target) const {
  if (source == target) return Conversion::none;
  if (is_castable(source, target)) return Conversion::cast;
  throw Error(ErrorCode::unsupported, "compile: no conversion between the dtypes of a tensor")
      .with("source dtype", name_of(source))
      .with("target dtype", name_of(target))
      .hint("crossmesh casts between F32, F16 and BF16; let the engine load it as opaque");
}

// A layout that tells a tensor's dtype twice must tell the same.
void Compiler::require_dtypes(const TensorInfo& held, const Instance& source,
                              const Instance& target) const {
  const auto require = [](std::string_view side, DType tensor, DType elements) {
    if (tensor == elements) return;
    throw Error(ErrorCode::mismatch, "compile: the elements of a tensor have another dtype than it")
        .with("side", side)
        .with("tensor dtype", name_of(tensor))
        .with("element dtype", name_of(elements));
  };
  require("source", held.dtype, source_class(source.layout_class).dtype);
  if (target.opaque_reason >= 0) return;
  require("target", wanted_tensor(target).dtype, target_class(target.layout_class).dtype);
}

int Compiler::class_of(int source, int target) {
  const std::uint64_t pair =
      (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(target);
  const auto [at, is_new] = class_by_pair_.emplace(pair, static_cast<int>(plan_.classes.size()));
  if (!is_new) return at->second;
  const LayoutClass& a = source_class(source);
  const LayoutClass& b = target_class(target);
  const Conversion conversion = conversion_of(a.dtype, b.dtype);
  PlanClass met = meet(a, b);
  met.source_class = source;
  met.target_class = target;
  met.conversion = conversion;
  plan_.classes.push_back(std::move(met));
  return at->second;
}

std::vector<bool> roles_played(const Layout& layout, const Instance& instance) {
  const auto& c = layout.classes[static_cast<std::size_t>(instance.layout_class)];
  std::vector<bool> is_played(c.pieces_of_role.size(), false);
  for (const int role : layout.bindings[static_cast<std::size_t>(instance.binding)].role_of_rank) {
    if (role >= 0) is_played[static_cast<std::size_t>(role)] = true;
  }
  return is_played;
}

void require_played(const std::vector<bool>& is_played, const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (is_played[static_cast<std::size_t>(copy.source_role)]) continue;
    throw Error(ErrorCode::mismatch, "compile: no source rank plays a role that is read")
        .with("source role", copy.source_role)
        .with("target role", copy.target_role)
        .with("elements", to_string(copy.counts));
  }
}

void Compiler::require_whole(const Instance& source) {
  if (!whole_.emplace(source.layout_class, source.binding).second) return;
  const PlanClass whole = meet_whole(source_class(source.layout_class));
  require_played(roles_played(plan_.source, source), whole.copies);
}

void Compiler::require_holders(const Instance& source, const Instance& target, int plan_class) {
  if (!with_holders_.emplace(plan_class, source.binding, target.binding).second) return;
  const std::vector<bool> is_wanted = roles_played(plan_.target, target);
  std::vector<Copy> copies;
  for (const Copy& copy : plan_.classes[static_cast<std::size_t>(plan_class)].copies) {
    if (is_wanted[static_cast<std::size_t>(copy.target_role)]) copies.push_back(copy);
  }
  require_played(roles_played(plan_.source, source), copies);
}

// Runs of a sub-byte dtype must begin and end on bytes, on both sides.
void Compiler::require_bytes(const Instance& source, const Instance& target, int plan_class) {
  const DType dtype = source_class(source.layout_class).dtype;
  if (is_byte_sized(dtype)) return;
  const std::int64_t step = 8 / std::gcd(8, bit_size(dtype));
  const auto is_whole = [&](const Copy& copy, const View& view, std::int64_t offset) {
    const int last = copy.counts.size() - 1;
    if ((view.offset + offset) % step != 0) return false;
    if (last < 0 || view.strides[last] != 1 || copy.counts[last] % step != 0) return false;
    for (int d = 0; d < last; ++d) {
      if (view.strides[d] % step != 0) return false;
    }
    return true;
  };
  for (const Copy& copy : plan_.classes[static_cast<std::size_t>(plan_class)].copies) {
    if (is_whole(copy, copy.source, source.offset) && is_whole(copy, copy.target, target.offset)) {
      continue;
    }
    throw Error(ErrorCode::unsupported, "compile: a box of a sub-byte dtype splits a byte")
        .with("dtype", name_of(dtype))
        .with("source", to_string(StridedRegion{copy.counts, copy.source}))
        .with("target", to_string(StridedRegion{copy.counts, copy.target}));
  }
}

void Compiler::add(int target_instance) {
  const Instance& target = plan_.target.instances[static_cast<std::size_t>(target_instance)];
  const int source_instance = source_instance_of(target);
  const Instance& source = plan_.source.instances[static_cast<std::size_t>(source_instance)];
  PlanInstance instance{source_instance, target_instance, -1, target.opaque_reason >= 0};
  try {
    require_dtypes(plan_.source.tensors[static_cast<std::size_t>(source.tensor)], source, target);
    if (instance.opaque) {
      require_whole(source);
    } else {
      instance.plan_class = class_of(source.layout_class, target.layout_class);
      require_holders(source, target, instance.plan_class);
      require_bytes(source, target, instance.plan_class);
    }
  } catch (Error& error) {
    error.with("tensor", wanted_tensor(target).name);
    error.with("parameter",
               plan_.target.parameters[static_cast<std::size_t>(target.parameter)].name);
    throw;
  }
  plan_.instances.push_back(instance);
}

void Compiler::add_instances() {
  const int count = static_cast<int>(plan_.target.instances.size());
  plan_.instances.reserve(plan_.target.instances.size());
  for (int i = 0; i < count; ++i) add(i);
}

void Compiler::list_unused() {
  std::vector<bool> is_used(plan_.source.tensors.size(), false);
  for (const PlanInstance& instance : plan_.instances) {
    const auto i = static_cast<std::size_t>(instance.source_instance);
    is_used[static_cast<std::size_t>(plan_.source.instances[i].tensor)] = true;
  }
  std::unordered_map<std::string_view, std::string_view> why_of_name;
  for (const Unused& unused : plan_.target.unused) why_of_name.emplace(unused.name, unused.why);
  for (std::size_t t = 0; t < is_used.size(); ++t) {
    if (is_used[t]) continue;
    const std::string& name = plan_.source.tensors[t].name;
    const auto why = why_of_name.find(name);
    plan_.unused.push_back(
        {name, why == why_of_name.end() ? std::string(kUnwanted) : std::string(why->second)});
  }
}

}  // namespace

Plan compile(Layout source, Layout target) {
  if (source.model != target.model) {
    throw Error(ErrorCode::mismatch, "compile: the two sides speak of different models")
        .with("source model", source.model)
        .with("target model", target.model);
  }
  Plan plan;
  plan.source = std::move(source);
  plan.target = std::move(target);
  Compiler compiler(plan);
  compiler.match();
  compiler.add_instances();
  if (plan.instances.empty()) {
    throw Error(ErrorCode::invalid_argument, "compile: the target wants no tensor")
        .with("source tensors", plan.source.tensors.size())
        .with("target parameters", plan.target.parameters.size());
  }
  detail::prove_coverage(plan.target);
  compiler.list_unused();
  return plan;
}

}  // namespace crossmesh
