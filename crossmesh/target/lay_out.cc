// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/mesh.h"
#include "crossmesh/target/detail/expand.h"
#include "crossmesh/target/family.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 2> kAxes = {"replicas", "tp"};
constexpr std::int64_t kVocabUnit = 64;

// What a rule's tensor gives to each rank of one instance. Consecutive ranks share a role.
struct Slices {
  int ranks_per_role = 1;
  std::vector<Box> box_of_role;  // may be empty: a rank that holds only padding
  Shape local_shape;             // what the rule takes in its parameter, padding included
};

struct Divided {
  std::string_view key;  // of the config, for the error
  std::int64_t extent;
};

std::int64_t divide(const Divided& divided, int tp) {
  if (divided.extent % tp != 0) {
    throw Error(ErrorCode::mismatch, "lay out: tp does not divide an extent")
        .with("axis", fmt::format("tp={}", tp))
        .with("extent", fmt::format("{}={}", divided.key, divided.extent));
  }
  return divided.extent / tp;
}

// Equal blocks of dimension `dim`, one for each of `count` roles; blocks past the tensor's end are
// cut off.
Slices cut_blocks(const Shape& shape, int dim, std::int64_t block, int count) {
  Slices slices;
  slices.local_shape = shape;
  slices.local_shape[dim] = block;
  for (int role = 0; role < count; ++role) {
    Box box = whole(shape);
    box.origin[dim] = std::min(role * block, shape[dim]);
    box.shape[dim] = std::min(block, shape[dim] - box.origin[dim]);
    slices.box_of_role.push_back(box);
  }
  return slices;
}

Slices cut_kv_heads(const Shape& shape, const ModelConfig& config, int tp) {
  if (tp <= config.kv_heads) {
    const std::int64_t heads = divide({"num_key_value_heads", config.kv_heads}, tp);
    return cut_blocks(shape, 0, heads * config.head_size, tp);
  }
  if (tp % config.kv_heads != 0) {
    throw Error(ErrorCode::mismatch, "lay out: the KV heads do not divide tp")
        .with("axis", fmt::format("tp={}", tp))
        .with("extent", fmt::format("num_key_value_heads={}", config.kv_heads));
  }
  const int count = static_cast<int>(config.kv_heads);
  Slices slices = cut_blocks(shape, 0, config.head_size, count);
  slices.ranks_per_role = tp / count;
  return slices;
}

Slices cut(const Rule& rule, const ModelConfig& config, int tp) {
  const std::vector<std::int64_t> extents = detail::shape_of(rule, config);
  const Shape shape(std::span<const std::int64_t>{extents});
  const auto divide_dim = [&](int dim) {
    return divide({detail::key_of(rule.shape[static_cast<std::size_t>(dim)]), shape[dim]}, tp);
  };
  switch (rule.cut) {
    case Cut::replicate:
      return {tp, {whole(shape)}, shape};
    case Cut::column:
      return cut_blocks(shape, 0, divide_dim(0), tp);
    case Cut::row:
      return cut_blocks(shape, 1, divide_dim(1), tp);
    case Cut::heads: {
      const std::int64_t heads = divide({"num_attention_heads", config.heads}, tp);
      return cut_blocks(shape, 0, heads * config.head_size, tp);
    }
    case Cut::kv_heads:
      return cut_kv_heads(shape, config, tp);
    case Cut::vocab: {
      const std::int64_t padded = round_up(shape[0], kVocabUnit);
      return cut_blocks(shape, 0, divide({"padded vocab_size", padded}, tp), tp);
    }
  }
  return {};
}

// A rule as it lies on every layer, and a parameter as all layers have it.
struct PreparedRule {
  const Rule* rule;
  Slices slices;
  int parameter;        // index of the prepared parameter
  std::int64_t offset;  // of the rule's rows in it
  int layout_class = -1;
  int binding = -1;
};

struct PreparedParameter {
  const Rule* rule;  // the first that feeds it
  Shape shape;
  std::vector<Reserve> reserves;  // by role, when there are any
  int parameter_class = -1;
  int binding = -1;
  int current = -1;  // index in the layout, of the layer that is being laid out
};

class Engine {
 public:
  Engine(const Family& family, const ModelConfig& config, const Mesh& mesh, DType dtype)
      : family_(family),
        config_(config),
        mesh_(mesh),
        tp_(size_of_axis(mesh, "tp")),
        dtype_(dtype),
        interner_(layout_) {}

  Layout lay_out() {
    layout_.rank_count = mesh_.rank_count;
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      layout_.replica_of_rank.push_back(coordinate(mesh_, "replicas", rank));
    }
    for (const Rule& rule : family_.rules) {
      if (detail::applies(rule, config_) && !rule.parameter.empty()) place(rule);
    }
    for (PreparedParameter& parameter : parameters_) intern(parameter);
    for (PreparedRule& rule : rules_) intern(rule);
    detail::for_each_rule(family_, config_, [&](const Rule& rule, std::int64_t layer) {
      add(rule, detail::name_in_layer(rule.tensor, layer), layer);
    });
    return std::move(layout_);
  }

 private:
  // Gives the rule the next rows of its parameter.
  void place(const Rule& rule) {
    Slices slices = cut(rule, config_, tp_);
    auto at = std::ranges::find(parameters_, rule.parameter,
                                [](const PreparedParameter& p) { return p.rule->parameter; });
    if (at == parameters_.end()) {
      parameters_.push_back({&rule, slices.local_shape, {}});
      at = std::prev(parameters_.end());
      at->shape[0] = 0;
    }
    const std::int64_t row_elements = checked_product(at->shape.span().subspan(1));
    const std::int64_t offset = at->shape[0] * row_elements;
    if (rule.cut == Cut::vocab && rule.shares.empty()) at->reserves = padding_of(slices);
    at->shape[0] += slices.local_shape[0];
    assert(contiguous_strides(at->shape) == contiguous_strides(slices.local_shape));
    rules_.push_back(
        {&rule, std::move(slices), static_cast<int>(at - parameters_.begin()), offset});
  }

  static std::vector<Reserve> padding_of(const Slices& slices) {
    std::vector<Reserve> reserves;
    const Strides strides = contiguous_strides(slices.local_shape);
    for (std::size_t role = 0; role < slices.box_of_role.size(); ++role) {
      const std::int64_t rows = slices.box_of_role[role].shape[0];
      Shape shape = slices.local_shape;
      shape[0] -= rows;
      if (shape[0] == 0) continue;
      reserves.push_back({Reserve::Kind::fill,
                          static_cast<int>(role),
                          {shape, {rows * strides[0], strides}},
                          0,
                          "vocabulary padding"});
    }
    return reserves;
  }

  // Ranks whose share of a parameter differs in nothing are one role.
  void intern(PreparedParameter& parameter) {
    const int roles = parameter.reserves.empty() ? 1 : tp_;
    const auto count = static_cast<std::size_t>(roles);
    parameter.parameter_class = interner_.parameter_class(
        {dtype_, std::vector(count, parameter.shape),
         std::vector(count, contiguous_strides(parameter.shape)), std::move(parameter.reserves)});
    parameter.binding = binding_of(tp_ / roles);
  }

  void intern(PreparedRule& prepared) {
    if (!prepared.rule->shares.empty()) return;
    const Strides strides =
        contiguous_strides(parameters_[static_cast<std::size_t>(prepared.parameter)].shape);
    LayoutClass geometry{Space::plain(detail::shape_of(*prepared.rule, config_)), dtype_, {}};
    for (const Box& box : prepared.slices.box_of_role) {
      std::vector<Piece>& pieces = geometry.pieces_of_role.emplace_back();
      if (!is_empty(box)) pieces.push_back({box, {0, strides}});
    }
    prepared.layout_class = interner_.layout_class(std::move(geometry));
    prepared.binding = binding_of(prepared.slices.ranks_per_role);
  }

  int binding_of(int ranks_per_role) {
    Binding binding;
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      binding.role_of_rank.push_back(coordinate(mesh_, "tp", rank) / ranks_per_role);
    }
    return interner_.binding(std::move(binding));
  }

  void add(const Rule& rule, std::string name, std::int64_t layer) {
    if (rule.parameter.empty()) {
      layout_.unused.push_back({std::move(name), "the engine has no parameter for it"});
      return;
    }
    const auto prepared = std::ranges::find(rules_, &rule, &PreparedRule::rule);
    const int parameter = parameter_of(*prepared, layer);
    if (!rule.shares.empty()) {
      const std::string& owner =
          layout_
              .parameters[static_cast<std::size_t>(
                  layout_.parameters[static_cast<std::size_t>(parameter)].storage)]
              .name;
      layout_.unused.push_back(
          {std::move(name), fmt::format("tied: the engine reads it from {}", owner)});
      return;
    }
    layout_.tensors.push_back({std::move(name), dtype_, detail::shape_of(rule, config_)});
    layout_.instances.push_back({static_cast<int>(layout_.tensors.size()) - 1, parameter,
                                 prepared->layout_class, prepared->binding, prepared->offset, -1});
  }

  // The rule's parameter on this layer; the first rule that feeds it adds it.
  int parameter_of(const PreparedRule& rule, std::int64_t layer) {
    PreparedParameter& prepared = parameters_[static_cast<std::size_t>(rule.parameter)];
    if (prepared.rule != rule.rule) return prepared.current;
    prepared.current = static_cast<int>(layout_.parameters.size());
    int storage = prepared.current;
    if (!rule.rule->shares.empty()) {
      const auto owner =
          std::ranges::find(parameters_, rule.rule->shares,
                            [](const PreparedParameter& p) { return p.rule->parameter; });
      assert(owner != parameters_.end() && owner->current >= 0);
      storage = owner->current;
    }
    layout_.parameters.push_back({detail::name_in_layer(rule.rule->parameter, layer),
                                  prepared.parameter_class, prepared.binding, storage});
    return prepared.current;
  }

  const Family& family_;
  const ModelConfig& config_;
  const Mesh& mesh_;
  const int tp_;
  const DType dtype_;
  Layout layout_;
  Interner interner_;
  std::vector<PreparedParameter> parameters_;
  std::vector<PreparedRule> rules_;
};

}  // namespace

Layout lay_out(const Family& family, const ModelConfig& config, const Spec& engine,
               const EngineOptions& options) {
  const Mesh mesh = mesh_of(engine, {"engine", kAxes});
  return Engine(family, config, mesh, options.parameter_dtype.value_or(config.dtype)).lay_out();
}

}  // namespace crossmesh
