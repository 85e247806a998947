// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "crossmesh/base/error.h"
#include "crossmesh/plan/testing.h"

namespace crossmesh {
namespace {

using testing::at;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{} {}", name_of(error.code()), error.text());
  }
  return "no error";
}

std::vector<Box> row_shard(std::int64_t rows, std::int64_t columns, int part, int parts) {
  const std::int64_t chunk = (rows + parts - 1) / parts;
  const std::int64_t begin = std::min(rows, chunk * part);
  const std::int64_t end = std::min(rows, begin + chunk);
  if (begin == end) return {};
  return {{{begin, 0}, {end - begin, columns}}};
}

struct Sides {
  int fsdp = 1;
  int dp_replicate = 1;
  int tp = 1;
  int replicas = 1;
  int layers = 3;
};

struct Shape2 {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool by_column = false;  // how the engine cuts it
};

// A trainer of rows, replicated; an engine of rows or columns, with replicas.
Layout trainer(const Sides& sides, const std::vector<Shape2>& shapes) {
  std::vector<testing::HandParameter> parameters;
  for (const Shape2& s : shapes) {
    testing::HandParameter p{
        s.name, {{s.name, DType::bf16, testing::plain({s.rows, s.columns}), {}}}, {}};
    for (int f = 0; f < sides.fsdp; ++f) {
      p.tensors[0].boxes_of_role.push_back(row_shard(s.rows, s.columns, f, sides.fsdp));
    }
    for (int r = 0; r < sides.dp_replicate * sides.fsdp; ++r)
      p.role_of_rank.push_back(r % sides.fsdp);
    parameters.push_back(std::move(p));
  }
  return testing::hand_layout(parameters);
}

Layout engine(const Sides& sides, const std::vector<Shape2>& shapes) {
  std::vector<testing::HandParameter> parameters;
  for (const Shape2& s : shapes) {
    testing::HandParameter p{
        s.name, {{s.name, DType::bf16, testing::plain({s.rows, s.columns}), {}}}, {}};
    for (int t = 0; t < sides.tp; ++t) {
      if (s.by_column) {
        const std::int64_t width = s.columns / sides.tp;
        p.tensors[0].boxes_of_role.push_back({{{0, t * width}, {s.rows, width}}});
      } else {
        p.tensors[0].boxes_of_role.push_back(row_shard(s.rows, s.columns, t, sides.tp));
      }
    }
    for (int r = 0; r < sides.replicas * sides.tp; ++r) p.role_of_rank.push_back(r % sides.tp);
    parameters.push_back(std::move(p));
  }
  return testing::hand_layout(parameters);
}

std::vector<Shape2> model(int layers) {
  std::vector<Shape2> shapes{{"embed", 96, 8, false}};
  for (int l = 0; l < layers; ++l) {
    shapes.push_back({fmt::format("layers.{}.up", l), 48, 8, false});
    shapes.push_back({fmt::format("layers.{}.down", l), 8, 48, true});
  }
  shapes.push_back({"norm", 8, 4, true});
  return shapes;
}

Schedule schedule_of(const Sides& sides, const ScheduleOptions& options = {}) {
  const std::vector<Shape2> shapes = model(sides.layers);
  return arrange(compile(trainer(sides, shapes), engine(sides, shapes)), options);
}

// Marks random tensors opaque, all instances of a tensor or some.
Schedule random_schedule(std::uint64_t seed) {
  testing::RandomPair pair = testing::random_pair(seed);
  testing::Random random(seed ^ 0x5eed);
  pair.target.reasons = {"asked"};
  for (Instance& instance : pair.target.instances) {
    if (random.chance(25)) instance.opaque_reason = 0;
  }
  ScheduleOptions options;
  options.route = random.chance(50) ? Route::packed : Route::direct;
  return arrange(compile(pair.source, pair.target), options);
}

// -- Order and holders ---------------------------------------------------------------------------

TEST(Arrange, text) {
  EXPECT_EQ(explain(schedule_of({.fsdp = 2, .dp_replicate = 2, .tp = 2, .layers = 2})),
            "schedule of model: 4 groups, direct\n"
            "  before  1 instances\n"
            "  layers.0  2 instances\n"
            "  layers.1  2 instances\n"
            "  after  1 instances\n"
            "bytes: model 4672, unique 4672, needed 4672, by the fallback 0\n"
            "copies: 18\n"
            "egress: most 1184 bytes, 1.014 of the mean\n"
            "  rank 0  1184\n"
            "  rank 1  1152\n"
            "  rank 2  1152\n"
            "  rank 3  1184\n"
            "ingress: most 2336 bytes, 1.000 of the mean\n"
            "  rank 0  2336\n"
            "  rank 1  2336\n");
}

TEST(Arrange, groups_keep_the_order_of_the_plan) {
  const std::vector<Shape2> shapes = {{"l.1.b", 2, 2}, {"e", 2, 2}, {"l.0.b", 2, 2},
                                      {"l.1.a", 2, 2}, {"h", 2, 2}, {"l.0.a", 2, 2}};
  const Schedule schedule = arrange(compile(trainer({}, shapes), engine({}, shapes)));
  EXPECT_EQ(schedule.groups, (std::vector<Group>{{"l.0", 0, 2}, {"l.1", 2, 4}, {"after", 4, 6}}));
  EXPECT_EQ(schedule.order, (std::vector<int>{2, 5, 0, 3, 1, 4}));
}

TEST(Arrange, replicas_share_the_egress) {
  for (const int dp_replicate : {1, 2, 3, 4, 8}) {
    for (const int replicas : {1, 2, 3, 5}) {
      for (const int tp : {1, 2, 4}) {
        for (const int fsdp : {1, 2, 4}) {
          const Totals sums = totals(schedule_of({.fsdp = fsdp,
                                                  .dp_replicate = dp_replicate,
                                                  .tp = tp,
                                                  .replicas = replicas,
                                                  .layers = 64}));
          const std::int64_t most =
              *std::max_element(sums.egress_bytes.begin(), sums.egress_bytes.end());
          const double mean = static_cast<double>(sums.bytes_needed) /
                              static_cast<double>(sums.egress_bytes.size());
          EXPECT_LE(static_cast<double>(most) / mean, 1.06)
              << "fsdp " << fsdp << " dp_replicate " << dp_replicate << " tp " << tp << " replicas "
              << replicas;
        }
      }
    }
  }
}

TEST(Arrange, holders_play_the_role) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Schedule schedule = random_schedule(seed);
    const Plan& plan = schedule.plan;
    for (const PlanInstance& instance : plan.instances) {
      if (instance.opaque) continue;
      const Instance& source = plan.source.instances[at(instance.source_instance)];
      const Instance& target = plan.target.instances[at(instance.target_instance)];
      for (const Copy& copy : plan.classes[at(instance.plan_class)].copies) {
        for (int rank = 0; rank < plan.target.rank_count; ++rank) {
          if (plan.target.bindings[at(target.binding)].role_of_rank[at(rank)] != copy.target_role) {
            continue;
          }
          const int holder = holder_of(schedule, instance, copy.source_role, rank);
          EXPECT_EQ(plan.source.bindings[at(source.binding)].role_of_rank[at(holder)],
                    copy.source_role);
        }
      }
    }
  }
}

// -- Expansion -----------------------------------------------------------------------------------

using Flat =
    std::tuple<int, int, int, int, Shape, std::int64_t, Strides, std::int64_t, Strides, bool>;

Flat flat(std::size_t group, const Step& s) {
  return {static_cast<int>(group), s.instance,      s.source_parameter,
          s.target_parameter,      s.counts,        s.source.offset,
          s.source.strides,        s.target.offset, s.target.strides,
          s.whole_tensor};
}

std::vector<Flat> steps_with(const RankPart& part, int peer) {
  std::vector<Flat> steps;
  for (std::size_t g = 0; g < part.steps_of_group.size(); ++g) {
    for (const Step& step : part.steps_of_group[g]) {
      if (step.peer == peer) steps.push_back(flat(g, step));
    }
  }
  return steps;
}

struct Parts {
  std::vector<RankPart> sources;
  std::vector<RankPart> targets;
};

Parts expand_all(const Schedule& schedule) {
  Parts parts;
  for (int r = 0; r < schedule.plan.source.rank_count; ++r) {
    parts.sources.push_back(expand(schedule, Side::source, r));
  }
  for (int r = 0; r < schedule.plan.target.rank_count; ++r) {
    parts.targets.push_back(expand(schedule, Side::target, r));
  }
  return parts;
}

void expect_both_ends_agree(const Schedule& schedule) {
  const Parts parts = expand_all(schedule);
  for (std::size_t s = 0; s < parts.sources.size(); ++s) {
    for (std::size_t t = 0; t < parts.targets.size(); ++t) {
      ASSERT_EQ(steps_with(parts.sources[s], static_cast<int>(t)),
                steps_with(parts.targets[t], static_cast<int>(s)));
    }
  }
}

TEST(Expand, both_ends_agree_on_every_step_and_its_order) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    ASSERT_NO_FATAL_FAILURE(expect_both_ends_agree(random_schedule(seed))) << seed;
  }
  for (const int dp_replicate : {1, 2, 3}) {
    for (const int replicas : {1, 2, 5}) {
      for (const int tp : {1, 2, 4}) {
        for (const int fsdp : {1, 3, 5}) {
          ASSERT_NO_FATAL_FAILURE(expect_both_ends_agree(schedule_of(
              {.fsdp = fsdp, .dp_replicate = dp_replicate, .tp = tp, .replicas = replicas})));
        }
      }
    }
  }
}

using Memory = std::map<std::int64_t, std::int64_t>;  // element by place

// The memory of a source rank's parameter: elements, tagged by the tensor's name.
std::map<std::pair<int, int>, Memory> source_memory(const Layout& layout) {
  std::map<std::pair<int, int>, Memory> memory;
  for (const Instance& i : layout.instances) {
    const std::int64_t tag = static_cast<std::int64_t>(
        std::hash<std::string>()(layout.tensors[at(i.tensor)].name) & 0xffffff);
    for (int rank = 0; rank < layout.rank_count; ++rank) {
      const int role = layout.bindings[at(i.binding)].role_of_rank[at(rank)];
      if (role < 0) continue;
      for (const auto& [place, element] :
           testing::elements_of(layout.classes[at(i.layout_class)], role)) {
        memory[{i.parameter, rank}][place + i.offset] = (tag << 32) + element;
      }
    }
  }
  return memory;
}

// Performs a target rank's steps, and compares what it then has with what its layout wants.
void expect_right_elements(const Schedule& schedule) {
  const Plan& plan = schedule.plan;
  const auto held = source_memory(plan.source);
  const auto all_wanted = source_memory(plan.target);
  for (int rank = 0; rank < plan.target.rank_count; ++rank) {
    std::map<int, Memory> parameters;
    std::map<std::string, Memory> fallbacks;
    for (const auto& steps : expand(schedule, Side::target, rank).steps_of_group) {
      for (const Step& step : steps) {
        const Instance& target = plan.target.instances[at(step.instance)];
        Memory& memory = step.whole_tensor ? fallbacks[plan.target.tensors[at(target.tensor)].name]
                                           : parameters[step.target_parameter];
        const auto read = testing::places_of(step.counts, step.source);
        const auto written = testing::places_of(step.counts, step.target);
        const Memory& source = held.at({step.source_parameter, step.peer});
        for (std::size_t k = 0; k < read.size(); ++k) {
          ASSERT_TRUE(memory.emplace(written[k], source.at(read[k])).second);
        }
      }
    }
    // What opaque instances want is not copied into parameters, but whole into the fallback.
    std::map<int, Memory> wanted;
    std::map<std::string, Memory> whole;
    for (const Instance& i : plan.target.instances) {
      const int role = plan.target.bindings[at(i.binding)].role_of_rank[at(rank)];
      if (role < 0) continue;
      const TensorInfo& tensor = plan.target.tensors[at(i.tensor)];
      if (i.opaque_reason >= 0) {
        const std::int64_t tag =
            static_cast<std::int64_t>(std::hash<std::string>()(tensor.name) & 0xffffff);
        std::int64_t size = 1;
        for (const std::int64_t extent : tensor.shape) size *= extent;
        for (std::int64_t e = 0; e < size; ++e) whole[tensor.name][e] = (tag << 32) + e;
        continue;
      }
      for (const auto& [place, element] :
           testing::elements_of(plan.target.classes[at(i.layout_class)], role)) {
        wanted[i.parameter][place + i.offset] =
            all_wanted.at({i.parameter, rank}).at(place + i.offset);
      }
    }
    ASSERT_EQ(parameters, wanted);
    ASSERT_EQ(fallbacks, whole);
  }
}

TEST(Expand, every_target_rank_gets_its_elements_once) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    ASSERT_NO_FATAL_FAILURE(expect_right_elements(random_schedule(seed))) << seed;
  }
}

TEST(Expand, an_opaque_tensor_goes_once_to_each_rank_that_has_any_instance) {
  // Two instances of one tensor: ranks 0, 1 have the first, ranks 1, 2 the second.
  const Space space = testing::plain({6});
  const Layout source = testing::hand_layout(
      {{"t", {{"t", DType::f32, space, {{{{0}, {4}}}, {{{4}, {2}}}}}}, {0, 1}}});
  Layout target =
      testing::hand_layout({{"a", {{"t", DType::bf16, space, {{{{0}, {6}}}}}}, {0, 0, -1}},
                            {"b", {{"t", DType::bf16, space, {{{{0}, {6}}}}}}, {-1, 0, 0}}});
  target.reasons = {"asked"};
  for (Instance& instance : target.instances) instance.opaque_reason = 0;
  const Schedule schedule = arrange(compile(source, target));
  EXPECT_EQ(schedule.staging_slot_count, 64);
  EXPECT_EQ(schedule.staging_slot_bytes, 1 << 20);
  std::vector<std::vector<int>> instances_taken;
  for (int rank = 0; rank < 3; ++rank) {
    instances_taken.emplace_back();
    const RankPart part = expand(schedule, Side::target, rank);
    for (const Step& step : part.steps_of_group.at(0)) {
      EXPECT_TRUE(step.whole_tensor);
      instances_taken.back().push_back(step.instance);
    }
  }
  EXPECT_EQ(instances_taken, (std::vector<std::vector<int>>{{0, 0}, {0, 0}, {1, 1}}));
  const Totals expected{.bytes_model = 24,
                        .bytes_unique = 24,
                        .bytes_needed = 72,
                        .bytes_fallback = 72,
                        .egress_bytes = {48, 24},
                        .ingress_bytes = {24, 24, 24},
                        .copies = 6};
  EXPECT_EQ(totals(schedule), expected);
}

// -- Totals --------------------------------------------------------------------------------------

Totals summed(const Schedule& schedule) {
  const Plan& plan = schedule.plan;
  Totals sums;
  for (const TensorInfo& tensor : plan.source.tensors) {
    std::int64_t bytes = byte_size(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) bytes *= extent;
    sums.bytes_model += bytes;
  }
  std::map<std::string, std::set<std::int64_t>> distinct;
  const auto sizes = [&](const Step& step) {
    std::int64_t bytes = byte_size(source_dtype(plan, plan.instances[at(step.instance)]));
    for (const std::int64_t count : step.counts) bytes *= count;
    return bytes;
  };
  for (int rank = 0; rank < plan.target.rank_count; ++rank) {
    std::int64_t& ingress = sums.ingress_bytes.emplace_back(0);
    for (const auto& steps : expand(schedule, Side::target, rank).steps_of_group) {
      for (const Step& step : steps) {
        ingress += sizes(step);
        sums.bytes_needed += sizes(step);
        if (step.whole_tensor) sums.bytes_fallback += sizes(step);
        ++sums.copies;
      }
    }
  }
  for (int rank = 0; rank < plan.source.rank_count; ++rank) {
    std::int64_t& egress = sums.egress_bytes.emplace_back(0);
    for (const auto& steps : expand(schedule, Side::source, rank).steps_of_group) {
      for (const Step& step : steps) egress += sizes(step);
    }
  }
  for (const PlanInstance& i : plan.instances) {
    const Instance& target = plan.target.instances[at(i.target_instance)];
    auto& elements = distinct[plan.target.tensors[at(target.tensor)].name];
    const LayoutClass& source =
        plan.source.classes[at(plan.source.instances[at(i.source_instance)].layout_class)];
    const std::size_t before = elements.size();
    for (const int role : plan.target.bindings[at(target.binding)].role_of_rank) {
      if (role < 0) continue;
      if (i.opaque) {
        std::int64_t size = 1;
        for (const std::int64_t factor : source.space.factors) size *= factor;
        for (std::int64_t e = 0; e < size; ++e) elements.insert(e);
        continue;
      }
      for (const auto& [place, element] :
           testing::elements_of(plan.target.classes[at(target.layout_class)], role)) {
        elements.insert(element);
      }
    }
    sums.bytes_unique +=
        byte_size(source.dtype) * static_cast<std::int64_t>(elements.size() - before);
  }
  return sums;
}

void expect_equal(const Totals& a, const Totals& b) {
  EXPECT_EQ(a.bytes_model, b.bytes_model);
  EXPECT_EQ(a.bytes_unique, b.bytes_unique);
  EXPECT_EQ(a.bytes_needed, b.bytes_needed);
  EXPECT_EQ(a.bytes_fallback, b.bytes_fallback);
  EXPECT_EQ(a.egress_bytes, b.egress_bytes);
  EXPECT_EQ(a.ingress_bytes, b.ingress_bytes);
  EXPECT_EQ(a.copies, b.copies);
}

TEST(Totals, equal_the_sums_over_expanded_parts) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Schedule schedule = random_schedule(seed);
    expect_equal(totals(schedule), summed(schedule));
    ASSERT_FALSE(HasFailure()) << seed;
  }
  for (const int dp_replicate : {1, 2, 3}) {
    for (const int replicas : {1, 2, 5}) {
      for (const int tp : {1, 2, 4}) {
        for (const int fsdp : {1, 3, 5}) {
          const Schedule schedule = schedule_of(
              {.fsdp = fsdp, .dp_replicate = dp_replicate, .tp = tp, .replicas = replicas});
          expect_equal(totals(schedule), summed(schedule));
        }
      }
    }
  }
}

// -- Bounds --------------------------------------------------------------------------------------

TEST(Arrange, staging_stays_within_its_bound) {
  for (const std::int64_t bytes_max : {128, 129, 1000, 65535, 65536, 1 << 20, 5 << 20, 1 << 30}) {
    const Schedule schedule =
        schedule_of({}, {.route = Route::packed, .staging_bytes_max = bytes_max});
    EXPECT_LE(schedule.staging_slot_bytes * schedule.staging_slot_count, bytes_max);
    EXPECT_GE(schedule.staging_slot_bytes, 64);
    EXPECT_GE(schedule.staging_slot_count, 2);
    EXPECT_EQ(schedule.staging_slot_bytes % 16, 0);
  }
  const Schedule direct = schedule_of({});
  EXPECT_EQ(direct.staging_slot_bytes * direct.staging_slot_count, 0);
  EXPECT_EQ(error_of([] { schedule_of({}, {.route = Route::packed, .staging_bytes_max = 127}); }),
            "limit_exceeded arrange: the staging bound is too small\n"
            "  staging_bytes_max  127\n"
            "  needed  128");
}

TEST(Arrange, the_fallback_holds_the_largest_opaque_tensor) {
  const std::vector<Shape2> shapes = model(1);
  Layout target = engine({}, shapes);
  target.reasons = {"asked"};
  target.instances[0].opaque_reason = 0;
  target.instances[1].opaque_reason = 0;
  const Plan plan = compile(trainer({}, shapes), target);
  EXPECT_EQ(arrange(plan, {.fallback_bytes_max = 96 * 8 * 2}).earlier_opaque,
            (std::vector<int>{-1, -1, -1, -1}));
  EXPECT_EQ(error_of([&] { arrange(plan, {.fallback_bytes_max = 96 * 8 * 2 - 1}); }),
            "limit_exceeded arrange: an opaque tensor is larger than the fallback\n"
            "  tensor  embed\n"
            "  tensor bytes  1536\n"
            "  fallback_bytes_max  1535\n"
            "  hint  set fallback_bytes_max to the tensor's bytes or more");
}

TEST(Schedule, every_part_is_in_the_fingerprint) {
  const Schedule schedule = schedule_of({.dp_replicate = 2});
  EXPECT_EQ(fingerprint(schedule), fingerprint(schedule_of({.dp_replicate = 2})));
  const auto differs = [&](const std::function<void(Schedule&)>& change) {
    Schedule other = schedule;
    change(other);
    return fingerprint(other) != fingerprint(schedule);
  };
  EXPECT_TRUE(differs([](Schedule& s) { s.plan.unused = {{"a", "b"}}; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.options.route = Route::packed; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.options.staging_bytes_max = 1; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.options.fallback_bytes_max = 1; }));
  EXPECT_TRUE(differs([](Schedule& s) { std::swap(s.order[0], s.order[1]); }));
  EXPECT_TRUE(differs([](Schedule& s) { s.groups[0].name = "other"; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.groups[0].last = 0; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.staging_slot_bytes = 16; }));
  EXPECT_TRUE(differs([](Schedule& s) { s.staging_slot_count = 1; }));
  EXPECT_TRUE(differs([](Schedule& s) { ++s.rotation[0]; }));
}

}  // namespace
}  // namespace crossmesh
