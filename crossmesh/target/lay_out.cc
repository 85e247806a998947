// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cassert>
#include <compare>
#include <map>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/mesh.h"
#include "crossmesh/target/detail/cut.h"
#include "crossmesh/target/detail/expand.h"
#include "crossmesh/target/detail/experts.h"
#include "crossmesh/target/detail/stack.h"
#include "crossmesh/target/family.h"

namespace crossmesh {
namespace {

using detail::ExpertPlacement;
using detail::Site;
using detail::Slices;

constexpr std::array<std::string_view, 4> kAxes = {"replicas", "pp", "dp", "tp"};
constexpr std::string_view kExperts = "experts";
constexpr std::array<std::string_view, 1> kWords = {kExperts};
constexpr SideAxes kEngineAxes = {"engine", kAxes, kWords};

// A rule as it lies on every layer, and a parameter as all layers have it.
struct PreparedRule {
  const Rule* rule;
  Slices slices;
  int parameter;        // index of the prepared parameter
  std::int64_t offset;  // of the rule's rows in it, or in an expert's part of it
  int layout_class = -1;
  std::vector<std::vector<int>> stack_classes = {};  // of stacked experts: by placement
};

struct PreparedParameter {
  const Rule* rule;               // the first that feeds it
  Shape shape;                    // of one expert's part, where experts are stacked
  std::vector<Reserve> reserves;  // by role, when there are any
  int role_count = 1;
  int parameter_class = -1;
  int current = -1;  // index in the layout, of the layer that is being laid out
};

// The stages that have a layer's or a rule's parameters.
struct Stages {
  int first = 0;
  int second = 0;  // the first once more, unless there are two

  auto operator<=>(const Stages&) const = default;
};

// Which ranks of these stages play which role.
struct Cast {
  enum class Kind : std::uint8_t {
    tp_blocks,      // `number` neighbours along tp play one role
    expert_blocks,  // `number` neighbours along experts' coordinate play one role
    expert_rank,    // the ranks with experts' coordinate `number` play role 0
    slot_count,     // those with the most experts play role 0, those with one less role 1
  };
  Kind kind = Kind::tp_blocks;
  int number = 1;
  Stages stages;

  auto operator<=>(const Cast&) const = default;
};

class Engine {
 public:
  Engine(const Family& family, const ModelConfig& config, const Mesh& mesh, DType dtype)
      : family_(family),
        config_(config),
        mesh_(mesh),
        tp_(size_of_axis(mesh, "tp")),
        dp_(size_of_axis(mesh, "dp")),
        stage_count_(size_of_axis(mesh, "pp")),
        dtype_(dtype),
        prepared_of_rule_(family.rules.size(), -1),
        interner_(layout_) {
    for (std::size_t r = 0; r < family.rules.size() && first_layer_rule_ == nullptr; ++r) {
      if (detail::is_per_layer(family.rules[r])) first_layer_rule_ = &family.rules[r];
    }
  }

  void spread_experts(std::vector<ExpertPlacement> placements) {
    spreads_experts_ = true;
    placements_ = std::move(placements);
  }

  Layout lay_out() {
    layout_.rank_count = mesh_.rank_count;
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      layout_.replica_of_rank.push_back(coordinate(mesh_, "replicas", rank));
    }
    if (!spreads_experts_) placements_ = {detail::place_together(config_.experts)};
    for (const Rule& rule : family_.rules) {
      if (rule.parameter.empty() || !applies_anywhere(rule)) continue;
      try {
        place(rule);
      } catch (Error& error) {
        if (error.code() == ErrorCode::unsupported) error.with("tensor", rule.tensor);
        throw;
      }
    }
    for (PreparedParameter& parameter : parameters_) intern(parameter);
    for (PreparedRule& rule : rules_) intern(rule);
    detail::for_each_rule(family_, config_,
                          [&](const Rule& rule, const Site& site) { add(rule, site); });
    return std::move(layout_);
  }

 private:
  bool applies_anywhere(const Rule& rule) const {
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (detail::applies(rule, config_, layer)) return true;
    }
    return false;
  }

  DType dtype_of(const Rule& rule) const { return detail::dtype_of(rule, config_, dtype_); }

  // Experts that spread are whole, and those that do not are cut by all ranks of a stage. Where
  // experts spread over dp and tp, the ranks of tp share out tokens before shared experts, and
  // each has these whole.
  Slices slices_of(const Rule& rule) const {
    const bool is_routed = detail::is_routed(rule);
    const bool deals_tokens = rule.when == When::shared_experts && dp_ > 1 && tp_ > 1;
    if (spreads_experts_ && (is_routed || deals_tokens)) {
      Slices slices = detail::cut(rule, config_, {});
      slices.ranks_per_role = tp_;
      return slices;
    }
    if (is_routed && dp_ > 1) return detail::cut(rule, config_, {"dp * tp", dp_ * tp_});
    return detail::cut(rule, config_, {"tp", tp_});
  }

  // Gives the rule the next rows of its parameter.
  void place(const Rule& rule) {
    Slices slices = slices_of(rule);
    auto at = std::ranges::find(parameters_, rule.parameter,
                                [](const PreparedParameter& p) { return p.rule->parameter; });
    if (at == parameters_.end()) {
      parameters_.push_back({&rule, slices.local_shape, {}});
      at = std::prev(parameters_.end());
      at->shape[0] = 0;
    }
    const std::int64_t row_elements = checked_product(at->shape.span().subspan(1));
    const std::int64_t offset = at->shape[0] * row_elements;
    if (rule.cut == Cut::vocab && rule.shares.empty()) {
      at->reserves = padding_of(slices);
      if (!at->reserves.empty()) at->role_count = tp_;
    }
    if (!rule.derived.empty()) {
      const Strides strides = contiguous_strides(slices.local_shape);
      at->reserves = {{Reserve::Kind::derived,
                       0,
                       {slices.local_shape, {0, strides}},
                       0,
                       std::string(rule.derived)}};
    }
    for (int part = 0; part < std::max(1, rule.stacked_parts); ++part) {
      require_whole_blocks(rule, *at);
      at->shape[0] += slices.local_shape[0];
    }
    assert(contiguous_strides(at->shape) == contiguous_strides(slices.local_shape));
    prepared_of_rule_[index_of(rule)] = static_cast<int>(rules_.size());
    rules_.push_back(
        {&rule, std::move(slices), static_cast<int>(at - parameters_.begin()), offset});
  }

  // The block of a fused tensor must not begin in the middle of one of its parameter.
  void require_whole_blocks(const Rule& rule, const PreparedParameter& before) const {
    const bool is_quantised = config_.scale_block > 0 && is_linear(rule);
    if (!is_quantised || before.shape[0] % config_.scale_block == 0) return;
    throw Error(ErrorCode::unsupported, "lay out: a fused weight begins inside a block of scales")
        .with("row", before.shape[0])
        .with("block", config_.scale_block);
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

  // Slots on a rank that has the most; ranks that differ have one less.
  std::int64_t slots_max() const { return std::ranges::max(placements_[0].slots_of_rank); }
  std::int64_t slots_min() const { return std::ranges::min(placements_[0].slots_of_rank); }

  // Ranks whose share of a parameter differs in nothing are one role.
  void intern(PreparedParameter& parameter) {
    std::vector<Shape> shapes(static_cast<std::size_t>(parameter.role_count), parameter.shape);
    if (detail::is_routed(*parameter.rule)) {
      const auto stacked = [&](std::int64_t slots) {
        Shape shape = {slots};
        for (const std::int64_t extent : parameter.shape) shape.push_back(extent);
        return shape;
      };
      shapes = {stacked(slots_max())};
      if (slots_min() < slots_max()) shapes.push_back(stacked(slots_min()));
      parameter.role_count = static_cast<int>(shapes.size());
    }
    parameter.parameter_class = interner_.parameter_class(
        {dtype_of(*parameter.rule), std::move(shapes), {}, std::move(parameter.reserves)});
  }

  void intern(PreparedRule& prepared) {
    if (!prepared.rule->shares.empty() || !prepared.rule->derived.empty()) return;
    if (prepared.rule->stacked_parts > 0) return intern_stack(prepared);
    const Strides strides =
        contiguous_strides(parameters_[static_cast<std::size_t>(prepared.parameter)].shape);
    LayoutClass geometry{
        Space::plain(detail::shape_of(*prepared.rule, config_)), dtype_of(*prepared.rule), {}};
    for (const Box& box : prepared.slices.box_of_role) {
      std::vector<Piece>& pieces = geometry.pieces_of_role.emplace_back();
      if (!is_empty(box)) pieces.push_back({box, {0, strides}});
    }
    prepared.layout_class = interner_.layout_class(std::move(geometry));
  }

  void intern_stack(PreparedRule& prepared) {
    const detail::Stack stack{detail::shape_of(*prepared.rule, config_), prepared.slices,
                              prepared.rule->stacked_parts, spreads_experts_};
    for (const ExpertPlacement& placement : placements_) {
      std::vector<int>& classes = prepared.stack_classes.emplace_back();
      for (auto& pieces_of_role : detail::pieces_of_stack(stack, placement)) {
        classes.push_back(interner_.layout_class(
            {Space::plain(stack.shape), dtype_of(*prepared.rule), std::move(pieces_of_role)}));
      }
    }
  }

  // -- Who takes part ----------------------------------------------------------------------------

  // An embedding that is tied is read by the last stage as well.
  Stages stages_of(const Rule& rule, std::int64_t layer) const {
    if (stage_count_ == 1) return {};
    const int last = stage_count_ - 1;
    if (detail::is_per_layer(rule)) {
      const int stage = stage_of_layer(layer, config_.layers, stage_count_);
      return {stage, stage};
    }
    if (&rule > first_layer_rule_) return {last, last};
    return {0, config_.tied_embeddings ? last : 0};
  }

  int role_of(const Cast& cast, int rank) const {
    const int stage = coordinate(mesh_, "pp", rank);
    if (stage != cast.stages.first && stage != cast.stages.second) return -1;
    const int tp = coordinate(mesh_, "tp", rank);
    const int expert_rank = coordinate(mesh_, "dp", rank) * tp_ + tp;
    switch (cast.kind) {
      case Cast::Kind::tp_blocks:
        return tp / cast.number;
      case Cast::Kind::expert_blocks:
        return expert_rank / cast.number;
      case Cast::Kind::expert_rank:
        return expert_rank == cast.number ? 0 : -1;
      case Cast::Kind::slot_count:
        return placements_[0].slots_of_rank[static_cast<std::size_t>(expert_rank)] == slots_max()
                   ? 0
                   : 1;
    }
    return -1;
  }

  int binding_of(const Cast& cast) {
    const auto known = binding_by_cast_.find(cast);
    if (known != binding_by_cast_.end()) return known->second;
    Binding binding;
    binding.role_of_rank.reserve(static_cast<std::size_t>(mesh_.rank_count));
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      binding.role_of_rank.push_back(role_of(cast, rank));
    }
    return binding_by_cast_[cast] = interner_.binding(std::move(binding));
  }

  // -- Layer by layer ----------------------------------------------------------------------------

  std::size_t index_of(const Rule& rule) const {
    return static_cast<std::size_t>(&rule - family_.rules.data());
  }

  void add(const Rule& rule, const Site& site) {
    const bool is_served = !detail::is_prediction(config_, site.layer);
    if (!rule.derived.empty()) {
      if (is_served) parameter_of(prepared(rule), site);
      return;
    }
    if (!is_served || rule.parameter.empty()) {
      layout_.unused.push_back({detail::name_at(rule.tensor, site),
                                is_served ? "the engine has no parameter for it"
                                          : "of a layer that predicts further tokens"});
      return;
    }
    const PreparedRule& prepared_rule = prepared(rule);
    const int parameter = parameter_of(prepared_rule, site);
    if (!rule.shares.empty()) {
      const auto owner =
          static_cast<std::size_t>(layout_.parameters[static_cast<std::size_t>(parameter)].storage);
      layout_.unused.push_back(
          {detail::name_at(rule.tensor, site),
           fmt::format("tied: the engine reads it from {}", layout_.parameters[owner].name)});
      return;
    }
    layout_.tensors.push_back(
        {detail::name_at(rule.tensor, site), dtype_of(rule), detail::shape_of(rule, config_)});
    add_instances(prepared_rule, site, parameter);
  }

  void add_instances(const PreparedRule& prepared, const Site& site, int parameter) {
    const int tensor = static_cast<int>(layout_.tensors.size()) - 1;
    const Stages stages = stages_of(*prepared.rule, site.layer);
    const auto add_at = [&](const Cast& cast, std::int64_t offset) {
      layout_.instances.push_back(
          {tensor, parameter, prepared.layout_class, binding_of(cast), offset, -1});
    };
    if (prepared.rule->stacked_parts > 0) {
      const int binding = binding_of({Cast::Kind::expert_blocks, 1, stages});
      for (const int layout_class : prepared.stack_classes[placement_at(site.layer)]) {
        layout_.instances.push_back({tensor, parameter, layout_class, binding, 0, -1});
      }
      return;
    }
    const int neighbours = prepared.slices.ranks_per_role;
    if (!detail::is_per_expert(*prepared.rule)) {
      return add_at({Cast::Kind::tp_blocks, neighbours, stages}, prepared.offset);
    }
    const std::int64_t expert_elements =
        checked_product(parameters_[static_cast<std::size_t>(prepared.parameter)].shape.span());
    const auto expert = static_cast<std::size_t>(site.expert);
    for (const detail::Slot& slot : placements_[placement_at(site.layer)].slots_of_expert[expert]) {
      const Cast whole{Cast::Kind::expert_rank, slot.rank, stages};
      const Cast cut{Cast::Kind::expert_blocks, neighbours, stages};
      add_at(spreads_experts_ ? whole : cut,
             checked_add(prepared.offset, checked_mul(slot.index, expert_elements)));
    }
  }

  std::size_t placement_at(std::int64_t layer) const {
    if (placements_.size() == 1) return 0;
    const auto begin = config_.sparse_layer.begin();
    return static_cast<std::size_t>(std::count(begin, begin + layer, true));
  }

  const PreparedRule& prepared(const Rule& rule) const {
    return rules_[static_cast<std::size_t>(prepared_of_rule_[index_of(rule)])];
  }

  // The rule's parameter on this layer; the first rule that feeds it adds it.
  int parameter_of(const PreparedRule& rule, const Site& site) {
    PreparedParameter& prepared = parameters_[static_cast<std::size_t>(rule.parameter)];
    if (prepared.rule != rule.rule || site.expert > 0) return prepared.current;
    prepared.current = static_cast<int>(layout_.parameters.size());
    int storage = prepared.current;
    if (!rule.rule->shares.empty()) {
      const auto owner =
          std::ranges::find(parameters_, rule.rule->shares,
                            [](const PreparedParameter& p) { return p.rule->parameter; });
      assert(owner != parameters_.end() && owner->current >= 0);
      storage = owner->current;
    }
    Cast cast{Cast::Kind::tp_blocks, tp_ / prepared.role_count, stages_of(*rule.rule, site.layer)};
    if (detail::is_routed(*rule.rule) && spreads_experts_) {
      cast.kind = Cast::Kind::slot_count;
      cast.number = 0;
    }
    layout_.parameters.push_back({detail::name_at(rule.rule->parameter, site),
                                  prepared.parameter_class, binding_of(cast), storage});
    return prepared.current;
  }

  const Family& family_;
  const ModelConfig& config_;
  const Mesh& mesh_;
  const int tp_;
  const int dp_;
  const int stage_count_;
  const DType dtype_;
  const Rule* first_layer_rule_ = nullptr;
  bool spreads_experts_ = false;
  std::vector<ExpertPlacement> placements_;  // one, or one for each sparse layer
  std::vector<int> prepared_of_rule_;        // by the rule's place in the table, or -1
  std::vector<PreparedParameter> parameters_;
  std::vector<PreparedRule> rules_;
  std::map<Cast, int> binding_by_cast_;
  Layout layout_;
  Interner interner_;
};

std::string_view word_of(const Spec& spec, std::string_view name) {
  const auto at = std::ranges::find(spec.axes, name, &Axis::name);
  return at == spec.axes.end() ? std::string_view() : std::string_view(at->value);
}

}  // namespace

Layout lay_out(const Family& family, const ModelConfig& config, const Spec& spec,
               const EngineOptions& options) {
  const Mesh mesh = mesh_of(spec, kEngineAxes);
  const int stages = size_of_axis(mesh, "pp");
  if (stages > config.layers) {
    throw Error(ErrorCode::mismatch, "lay out: fewer layers than stages")
        .with("axis", fmt::format("pp={}", stages))
        .with("extent", fmt::format("num_hidden_layers={}", config.layers));
  }
  Engine engine(family, config, mesh, options.parameter_dtype.value_or(config.dtype));
  const std::string way(word_of(spec, kExperts));
  if (!way.empty()) {
    const int rank_count = size_of_axis(mesh, "dp") * size_of_axis(mesh, "tp");
    engine.spread_experts(detail::spread_experts(config, way, rank_count, options.expert_of_slot));
  } else if (!options.expert_of_slot.empty()) {
    throw Error(ErrorCode::invalid_argument, "lay out: experts have slots only where they spread")
        .with("spec", spec.text)
        .hint("write experts=linear");
  }
  return engine.lay_out();
}

}  // namespace crossmesh
