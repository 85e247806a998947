// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/verify/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "crossmesh/plan/testing.h"
#include "crossmesh/verify/detail/checks.h"
#include "crossmesh/verify/detail/trace.h"

namespace crossmesh {
namespace {

using testing::at;

// -- Every scalar of a plan ----------------------------------------------------------------------

// Calls `visit(name, value)` on each scalar of a value; the name says which field, without indices.
class Walk {
 public:
  using Visit =
      std::function<void(const std::string&, std::int64_t, std::function<void(std::int64_t)>)>;
  explicit Walk(Visit visit) : visit_(std::move(visit)) {}

  void plan(Plan& p) const {
    layout("source", p.source);
    layout("target", p.target);
    for (PlanClass& c : p.classes) {
      number("class.source_class", c.source_class);
      number("class.target_class", c.target_class);
      enumeration("class.conversion", c.conversion, 2);
      for (Copy& copy : c.copies) {
        number("copy.source_role", copy.source_role);
        number("copy.target_role", copy.target_role);
        numbers("copy.counts", copy.counts);
        view("copy.source", copy.source, copy.counts);
        view("copy.target", copy.target, copy.counts);
      }
      for (int& first : c.first_copy_of_target_role) number("class.first_copy", first);
      number("class.unique_elements", c.unique_elements);
    }
    for (PlanInstance& i : p.instances) {
      number("instance.source_instance", i.source_instance);
      number("instance.target_instance", i.target_instance);
      number("instance.plan_class", i.plan_class);
      visit_("instance.opaque", i.opaque, [&i](std::int64_t v) { i.opaque = v % 2 != 0; });
    }
    for (Unused& unused : p.unused) {
      text("unused.name", unused.name);
      text("unused.why", unused.why);
    }
    sizes("classes", p.classes);
    sizes("instances", p.instances);
    sizes("unused", p.unused);
    for (PlanClass& c : p.classes) {
      sizes("copies", c.copies);
      sizes("first_copies", c.first_copy_of_target_role);
    }
  }

 private:
  template <typename Number>
  void number(const std::string& name, Number& value) const {
    visit_(name, static_cast<std::int64_t>(value),
           [&value](std::int64_t v) { value = static_cast<Number>(v); });
  }
  template <typename Enum>
  void enumeration(const std::string& name, Enum& value, int count) const {
    visit_(name, static_cast<std::int64_t>(value),
           [&value, count](std::int64_t v) { value = static_cast<Enum>((v + count) % count); });
  }
  void text(const std::string& name, std::string& value) const {
    const std::string before = value;
    visit_(name, 0, [&value, before](std::int64_t v) {
      value = v == 0 ? before : v > 0 ? before + "x" : before.substr(0, before.size() - 1);
    });
  }
  void numbers(const std::string& name, DimVector& values) const {
    for (std::int64_t& value : values) number(name, value);
  }
  // The stride of an extent of 1 leads nowhere.
  void view(const std::string& name, View& value, const Shape& shape) const {
    number(name + ".offset", value.offset);
    for (int d = 0; d < value.strides.size(); ++d) {
      number(name + (shape[d] == 1 ? ".idle_stride" : ".stride"), value.strides[d]);
    }
  }
  // One element fewer, and one twice.
  template <typename Values>
  void sizes(const std::string& name, Values& values) const {
    const Values before = values;
    if (before.empty()) return;
    visit_(name + ".size", 0, [&values, before](std::int64_t v) {
      values = before;
      if (v < 0) values.pop_back();
      if (v > 0) values.push_back(before.back());
    });
  }
  void layout(const std::string& side, Layout& l) const {
    text(side + ".model", l.model);
    number(side + ".rank_count", l.rank_count);
    for (int& replica : l.replica_of_rank) number(side + ".replica_of_rank", replica);
    std::set<const void*> opaque;
    for (const Instance& i : l.instances) {
      if (i.opaque_reason < 0) continue;
      opaque.insert(&l.tensors[at(i.tensor)]);
      opaque.insert(&l.classes[at(i.layout_class)]);
    }
    const auto prefix = [&](const void* part) {
      return opaque.contains(part) ? side + ".opaque" : side;
    };
    for (TensorInfo& t : l.tensors) {
      text(side + ".tensor.name", t.name);
      enumeration(prefix(&t) + ".tensor.dtype", t.dtype, kDTypeCount);
      for (std::int64_t& extent : t.shape) number(side + ".tensor.shape", extent);
    }
    for (LayoutClass& c : l.classes) {
      numbers(prefix(&c) + ".space.factors", c.space.factors);
      numbers(side + ".space.factor_count", c.space.factor_count);
      enumeration(prefix(&c) + ".class.dtype", c.dtype, kDTypeCount);
      for (auto& pieces : c.pieces_of_role) {
        for (Piece& piece : pieces) {
          const Shape shape = piece.box.shape;
          numbers(side + ".piece.origin", piece.box.origin);
          numbers(side + ".piece.shape", piece.box.shape);
          view(side + ".piece", piece.view, shape);
        }
      }
    }
    for (Binding& b : l.bindings) {
      for (int& role : b.role_of_rank) number(side + ".role_of_rank", role);
    }
    for (ParameterClass& c : l.parameter_classes) parameter_class(side, c);
    for (Parameter& p : l.parameters) {
      const bool is_twin = &p != &l.parameters[at(p.storage)];
      text(side + ".parameter.name", p.name);
      number(side + (is_twin ? ".twin" : ".parameter") + ".parameter_class", p.parameter_class);
      number(side + ".parameter.binding", p.binding);
      number(side + ".parameter.storage", p.storage);
    }
    for (Instance& i : l.instances) {
      number(side + ".instance.tensor", i.tensor);
      number(side + ".instance.parameter", i.parameter);
      number(side + ".instance.layout_class", i.layout_class);
      number(side + ".instance.binding", i.binding);
      number(side + ".instance.offset", i.offset);
      number(side + ".instance.opaque_reason", i.opaque_reason);
    }
    for (std::string& reason : l.reasons) text(side + ".reason", reason);
    for (Unused& unused : l.unused) {
      text(side + ".unused.name", unused.name);
      text(side + ".unused.why", unused.why);
    }
  }
  void parameter_class(const std::string& side, ParameterClass& c) const {
    enumeration(side + ".parameter_class.dtype", c.dtype, kDTypeCount);
    const std::vector<Shape> shapes = c.shape_of_role;
    for (Shape& shape : c.shape_of_role) numbers(side + ".parameter_class.shape", shape);
    for (std::size_t role = 0; role < c.strides_of_role.size(); ++role) {
      for (int d = 0; d < c.strides_of_role[role].size(); ++d) {
        number(side + (shapes[role][d] == 1 ? ".parameter_class.idle_stride"
                                            : ".parameter_class.stride"),
               c.strides_of_role[role][d]);
      }
    }
    for (Reserve& r : c.reserves) {
      enumeration(side + ".reserve.kind", r.kind, 3);
      number(side + ".reserve.role", r.role);
      const Shape shape = r.region.shape;
      numbers(side + ".reserve.shape", r.region.shape);
      view(side + ".reserve", r.region.view, shape);
      number(side + ".reserve.value", r.value_bits);
      text(side + ".reserve.reason", r.reason);
    }
  }

  Visit visit_;
};

// What a plan cannot be wrong about, because it is a claim of a layout that nothing else in the
// plan speaks of, and why.
const std::map<std::string, std::string>& beyond_the_plan() {
  static const std::map<std::string, std::string> reasons = {
      {"source.replica_of_rank", "a source has no replicas"},
      {"target.replica_of_rank", "what commits together moves the same bytes"},
      {"target.opaque.space.factors", "an opaque tensor goes whole, in whatever space it is told"},
      {"target.opaque.class.dtype", "an opaque tensor goes in the dtype of its source"},
      {"target.opaque.tensor.dtype", "an opaque tensor goes in the dtype of its source"},
      {"source.parameter.parameter_class", "a source parameter may be larger than what is read"},
      {"target.twin.parameter_class", "a tied name may be a smaller view"},
      {"source.role_of_rank", "one rank more may hold what another holds"},
      {"source.parameter.name", "a name, which is no place"},
      {"target.parameter.name", "a name, which is no place"},
      {"source.parameter.storage", "a source's names are not tied"},
      {"source.parameter_class.dtype", "views count in the dtype of the class"},
      {"target.parameter_class.dtype", "views count in the dtype of the class"},
      {"source.parameter_class.shape", "a source parameter may be larger than what is read"},
      {"source.parameter_class.stride", "a source parameter may be larger than what is read"},
      {"target.role_of_rank", "the rank wants what another role wants: a right plan of that world"},
      {"target.reason", "a text"},
      {"target.reserve.kind", "what a reserve holds is not copied"},
      {"target.reserve.value", "what a reserve holds is not copied"},
      {"target.reserve.reason", "a text"},
      {"source.piece.idle_stride", "the stride of one element"},
      {"target.piece.idle_stride", "the stride of one element"},
      {"source.parameter_class.idle_stride", "the stride of one element"},
      {"target.parameter_class.idle_stride", "the stride of one element"},
      {"target.reserve.idle_stride", "the stride of one element"},
  };
  return reasons;
}

struct Tally {
  std::map<std::string, int> tried;
  std::map<std::string, int> survived;
};

// Changes each scalar by one both ways, and lists the fields whose change passed.
Tally mutate_all(const Plan& plan) {
  Tally tally;
  std::size_t count = 0;
  Plan counted = plan;
  Walk([&](const auto&, std::int64_t, const auto&) { ++count; }).plan(counted);
  for (std::size_t target = 0; target < count; ++target) {
    for (const std::int64_t change : {-1, 1}) {
      Plan mutant = plan;
      std::size_t index = 0;
      std::string field;
      Walk([&](const std::string& name, std::int64_t value, const auto& set) {
        if (index++ != target) return;
        field = name;
        set(value + change);
      }).plan(mutant);
      if (mutant == plan) continue;
      ++tally.tried[field];
      if (verify(mutant).right()) ++tally.survived[field];
    }
  }
  return tally;
}

// -- Plans ---------------------------------------------------------------------------------------

// Fused q, k, v of query groups, interleaved gate and up, a cast, a fill, a hole that is kept, a
// transposed matrix, tied names, an opaque tensor, an unused one; some ranks without a part.
Plan rich_plan() {
  using testing::plain;
  const auto thirds = [](std::int64_t rows, std::int64_t columns) {
    std::vector<std::vector<Box>> boxes;
    const std::int64_t chunk = (rows + 2) / 3;
    for (int part = 0; part < 3; ++part) {
      const std::int64_t begin = std::min(rows, part * chunk);
      const std::int64_t end = std::min(rows, begin + chunk);
      boxes.push_back({});
      if (begin < end) boxes.back().push_back({{begin, 0}, {end - begin, columns}});
    }
    return boxes;
  };
  Layout source = testing::hand_layout({
      {"qkv", {{"l.0.qkv", DType::f32, plain({16, 3}), thirds(16, 3)}}, {0, 1, 2, -1}},
      {"gate_up", {{"l.0.gate_up", DType::bf16, plain({8, 2}), thirds(8, 2)}}, {2, 0, -1, 1}},
      {"down", {{"l.0.down", DType::bf16, plain({4, 6}), thirds(4, 6)}}, {-1, 0, 1, 2}},
      {"embed", {{"embed", DType::bf16, plain({5, 2}), thirds(5, 2)}}, {0, 1, 2, -1}},
      {"odd", {{"odd", DType::f16, plain({2, 2}), {{{{0, 0}, {2, 2}}}}}}, {-1, 0, -1, -1}},
      {"head", {{"head", DType::bf16, plain({5, 2}), thirds(5, 2)}}, {0, 1, 2, -1}},
      {"scalar", {{"scalar", DType::bf16, plain({}), {{{{}, {}}}}}}, {-1, -1, 0, -1}},
  });
  const Space groups{{4, 4, 3}, {2, 1}};
  const Space pairs{{4, 2, 2}, {2, 1}};
  Layout target = testing::hand_layout({
      // Two ranks with two groups each; q rows first, then k, then v.
      {"qkv",
       {{"l.0.qkv",
         DType::bf16,
         groups,
         {{{{0, 0, 0}, {2, 2, 3}}, {{0, 2, 0}, {2, 1, 3}}, {{0, 3, 0}, {2, 1, 3}}},
          {{{2, 0, 0}, {2, 2, 3}}, {{2, 2, 0}, {2, 1, 3}}, {{2, 3, 0}, {2, 1, 3}}}}}},
       {0, 1, -1}},
      {"gate_up",
       {{"l.0.gate_up", DType::bf16, pairs, {{{{0, 0, 0}, {4, 1, 2}}, {{0, 1, 0}, {4, 1, 2}}}}}},
       {0, 0, 0}},
      {"down",
       {{"l.0.down",
         DType::bf16,
         plain({4, 6}),
         {{{{0, 0}, {4, 3}}}, {{{0, 3}, {4, 3}}}},
         {{1, 0}, {1, 0}}}},
       {1, 0, -1}},
      {"embed", {{"embed", DType::bf16, plain({5, 2}), {{{{0, 0}, {5, 2}}}}}}, {0, -1, 0}},
      {"odd", {{"odd", DType::i32, plain({2, 2}), {{{{0, 0}, {2, 2}}}}}}, {0, 0, -1}},
      {"scalar", {{"scalar", DType::f32, plain({}), {{{{}, {}}}}}}, {-1, 0, 0}},
  });
  // The embedding is padded by two rows, and has a stride; one row is kept.
  ParameterClass& embed = target.parameter_classes[at(target.parameters[3].parameter_class)];
  embed.shape_of_role = {{8, 2}};
  embed.strides_of_role = {{3, 1}};
  embed.reserves = {{Reserve::Kind::fill, 0, {{2, 2}, {15, {3, 1}}}, 0, "padding"},
                    {Reserve::Kind::kept, 0, {{2}, {21, {1}}}, 0, "nothing feeds it"}};
  target.classes[at(target.instances[3].layout_class)].pieces_of_role[0][0].view.strides = {3, 1};
  target.parameters.push_back(target.parameters[3]);
  target.parameters.back().name = "lm_head";
  target.reasons = {"no conversion"};
  target.instances[4].opaque_reason = 0;
  target.unused = {{"head", "tied to embed"}};
  return compile(source, target);
}

TEST(Verify, a_plan_with_any_field_changed_is_caught) {
  const Plan plan = rich_plan();
  ASSERT_EQ(explain(verify(plan)), "right: 28 copies checked\n");
  const Tally tally = mutate_all(plan);
  int tried = 0;
  std::string survivors;
  for (const auto& [field, count] : tally.tried) tried += count;
  for (const auto& [field, count] : tally.survived) {
    if (beyond_the_plan().contains(field)) continue;
    survivors += fmt::format("{}: {} of {}\n", field, count, tally.tried.at(field));
  }
  fmt::print("{} changes of {} fields; beyond the plan are:\n", tried, tally.tried.size());
  for (const auto& [field, count] : tally.survived) {
    if (!beyond_the_plan().contains(field)) continue;
    fmt::print("  {}: {} of {} ({})\n", field, count, tally.tried.at(field),
               beyond_the_plan().at(field));
  }
  fmt::print("survivors: {}\n", survivors.empty() ? "none" : survivors);
  EXPECT_EQ(survivors, "");
  EXPECT_GT(tried, 1500);
}

TEST(Verify, no_field_of_the_plan_itself_is_beyond_it) {
  for (const auto& [field, why] : beyond_the_plan()) {
    EXPECT_TRUE(field.starts_with("source.") || field.starts_with("target.")) << field;
  }
}

// Whether each copy reads the same elements in both plans.
bool moves_the_same(const Plan& a, const Plan& b) {
  const auto read = [](const Plan& plan, const PlanClass& c, const Copy& copy) {
    std::map<std::int64_t, std::int64_t> held;
    for (const auto& [place, element] :
         testing::elements_of(plan.source.classes[at(c.source_class)], copy.source_role)) {
      held[place] = element;
    }
    std::vector<std::int64_t> elements;
    for (const std::int64_t place : testing::places_of(copy.counts, copy.source)) {
      elements.push_back(held.contains(place) ? held[place] : -1);
    }
    return elements;
  };
  for (std::size_t c = 0; c < a.classes.size(); ++c) {
    for (std::size_t k = 0; k < a.classes[c].copies.size(); ++k) {
      const auto elements = read(a, a.classes[c], a.classes[c].copies[k]);
      if (elements != read(b, b.classes[c], b.classes[c].copies[k])) return false;
    }
  }
  return true;
}

TEST(Verify, random_plans_are_right_and_their_mutants_are_caught) {
  std::map<std::string, int> survivors;
  int other_holders = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const testing::RandomPair pair = testing::random_pair(seed);
    const Plan plan = compile(pair.source, pair.target);
    ASSERT_EQ(explain(verify(plan)),
              fmt::format("right: {} copies checked\n", verify(plan).checked_copies))
        << seed;
    // One change of the plan itself, at a place that the seed picks.
    Plan mutant = plan;
    std::size_t count = 0;
    const auto is_own = [](const std::string& name) {
      return !name.starts_with("source.") && !name.starts_with("target.");
    };
    Walk([&](const std::string& name, auto, const auto&) { count += is_own(name); }).plan(mutant);
    if (count == 0) continue;
    testing::Random random(seed);
    const auto target = at(random.between(0, static_cast<int>(count) - 1));
    const std::int64_t change = random.chance(50) ? 1 : -1;
    std::size_t index = 0;
    std::string field;
    Walk([&](const std::string& name, std::int64_t value, const auto& set) {
      if (!is_own(name) || index++ != target) return;
      field = name;
      set(value + change);
    }).plan(mutant);
    if (mutant == plan || !verify(mutant).right()) continue;
    // Roles whose boxes overlap without being equal hold some elements at the same places.
    if (field == "copy.source_role" && moves_the_same(plan, mutant)) {
      ++other_holders;
      continue;
    }
    ++survivors[field];
  }
  fmt::print("{} mutants read the same elements from another role\n", other_holders);
  EXPECT_LT(other_holders, 5);
  EXPECT_EQ(survivors, (std::map<std::string, int>{}));
}

TEST(Verify, faults_say_where) {
  Plan plan = rich_plan();
  plan.classes[0].copies[0].source.offset += 1;
  plan.unused[0].why = "lost";
  EXPECT_EQ(explain(verify(plan)),
            "wrong: 2 faults, 28 copies checked\n"
            "  a copy moves other elements than are wanted; tensor l.0.qkv; parameter qkv; rank 0; "
            "role 0 <- 0, source [6]:[1]+1, target [6]:[1]+0, element 3 to the place of 2\n"
            "  the list of unused tensors is wrong; 1 listed, 1 unused\n");
}

TEST(Verify, at_most_so_many_faults_are_listed) {
  Plan plan = rich_plan();
  for (PlanClass& c : plan.classes) {
    for (Copy& copy : c.copies) copy.source_role = 99;
  }
  const Verdict verdict = verify(plan);
  EXPECT_EQ(verdict.faults.size(), at(kFaultsMax));
  EXPECT_EQ(explain(verdict).substr(0, 31), "wrong: at least 20 faults, 28 c");
}

// -- Parts ---------------------------------------------------------------------------------------

TEST(Trace, a_cut_lattice_numbers_the_elements) {
  // Every lattice over every small matrix, against a table of its places.
  int traced = 0;
  for (const Strides& strides : {Strides{4, 1}, Strides{1, 3}, Strides{7, 2}}) {
    const Piece piece{{{1, 0}, {3, 4}}, {5, strides}};
    if (strides[0] == 1 && strides[1] < 3) continue;
    const Space space{{5, 6}, {1, 1}};
    const auto digits = detail::digits_of(piece, space);
    ASSERT_TRUE(digits);
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> element_at;
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 4; ++c) {
        element_at[5 + r * strides[0] + c * strides[1]] = {(r + 1) * 6 + c, r * 4 + c};
      }
    }
    for (std::int64_t start = 0; start < 30; ++start) {
      for (std::int64_t stride = 1; stride < 9; ++stride) {
        for (std::int64_t count = 1; count < 8; ++count) {
          for (std::int64_t inner = 1; inner < 4; ++inner) {
            const detail::Lattice lattice{start, 0, {{count, stride, 100}, {inner, 1, 1}}};
            bool is_inside = true;
            for (std::int64_t i = 0; i < count; ++i) {
              for (std::int64_t j = 0; j < inner; ++j) {
                is_inside = is_inside && element_at.contains(start + i * stride + j);
              }
            }
            const auto parts = detail::cut(lattice, *digits, detail::End::source);
            if (!is_inside) {
              ASSERT_FALSE(parts);
              continue;
            }
            if (!parts) continue;  // Steps that no digits add up to.
            ++traced;
            std::set<std::int64_t> targets;
            for (const detail::Lattice& part : *parts) {
              const auto elements = detail::elements_along(part, *digits, detail::End::source);
              std::vector<std::array<std::int64_t, 4>> walk{
                  {part.source, part.target, elements.tensor, elements.piece}};
              for (std::size_t l = 0; l < part.loops.size(); ++l) {
                std::vector<std::array<std::int64_t, 4>> longer;
                for (const auto& [s, t, e, p] : walk) {
                  for (std::int64_t i = 0; i < part.loops[l].count; ++i) {
                    longer.push_back({s + i * part.loops[l].source, t + i * part.loops[l].target,
                                      e + i * elements.steps[l].tensor,
                                      p + i * elements.steps[l].piece});
                  }
                }
                walk = longer;
              }
              for (const auto& [s, t, e, p] : walk) {
                ASSERT_EQ(element_at.at(s), std::pair(e, p));
                ASSERT_EQ(s, start + t / 100 * stride + t % 100);
                ASSERT_TRUE(targets.insert(t).second);
              }
            }
            ASSERT_EQ(targets.size(), at(count * inner));
          }
        }
      }
    }
  }
  EXPECT_GT(traced, 100);
}

TEST(Trace, strides_that_do_not_nest_are_refused) {
  const Space space{{2, 3}, {1, 1}};
  EXPECT_TRUE(detail::digits_of({{{0, 0}, {2, 3}}, {0, {3, 1}}}, space));
  EXPECT_FALSE(detail::digits_of({{{0, 0}, {2, 3}}, {0, {3, 2}}}, space));
  EXPECT_FALSE(detail::digits_of({{{0, 0}, {2, 3}}, {0, {0, 1}}}, space));
}

TEST(CountUnion, agrees_with_a_walk) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    testing::Random random(seed);
    std::vector<Box> boxes;
    std::set<std::pair<std::int64_t, std::int64_t>> elements;
    for (int b = random.between(0, 6); b > 0; --b) {
      const Box box{{random.between(0, 5), random.between(0, 5)},
                    {random.between(0, 4), random.between(0, 4)}};
      boxes.push_back(box);
      for (std::int64_t r = 0; r < box.shape[0]; ++r) {
        for (std::int64_t c = 0; c < box.shape[1]; ++c) {
          elements.emplace(box.origin[0] + r, box.origin[1] + c);
        }
      }
    }
    EXPECT_EQ(detail::count_union(boxes), static_cast<std::int64_t>(elements.size()));
  }
}

}  // namespace
}  // namespace crossmesh
