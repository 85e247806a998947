// SPDX-License-Identifier: Apache-2.0
// Faults that others have met where shards are uneven, empty, strided or lie in shared buffers.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "crossmesh/layout/spec.h"
#include "crossmesh/plan/plan.h"
#include "crossmesh/plan/testing.h"
#include "crossmesh/source/shard.h"
#include "tests/reports/moved.h"

namespace crossmesh::reports {
namespace {

using testing::hand_layout;
using testing::HandTensor;

constexpr const char* kName = "w";
constexpr const char* kSplit =
    "layers.0.self_attn.q_proj.weight";  // a tensor that tp cuts on dimension 0

Layout trainer(std::vector<std::int64_t> shape, const char* spec, const char* name = kName) {
  return shard({{{name, DType::bf16, std::move(shape)}}}, parse_spec(spec));
}

// A rank has its box, row-major.
Layout by_hand(std::vector<std::int64_t> shape, std::vector<std::vector<Box>> boxes_of_rank) {
  std::vector<int> roles;
  for (std::size_t r = 0; r < boxes_of_rank.size(); ++r) roles.push_back(static_cast<int>(r));
  return hand_layout(
      {{kName, {{kName, DType::bf16, Space::plain(shape), std::move(boxes_of_rank)}}, roles}});
}

// One contiguous parameter of its own shape, at strides, as one rank.
Layout strided(Shape shape, Strides strides) {
  Layout layout;
  layout.rank_count = 1;
  layout.replica_of_rank = {0};
  Interner interner(layout);
  Box box = whole(shape);
  const int binding = interner.binding({{0}});
  layout.tensors.push_back({kName, DType::bf16, {shape.begin(), shape.end()}});
  const int parameter_class = interner.parameter_class({DType::bf16, {shape}, {strides}, {}});
  const int layout_class = interner.layout_class(
      {Space::plain({shape.begin(), shape.end()}), DType::bf16, {{{box, {0, strides}}}}});
  layout.parameters.push_back({kName, parameter_class, binding, 0});
  layout.instances.push_back({0, 0, layout_class, binding, 0, -1});
  check(layout);
  return layout;
}

// Rows of a one-dimensional or row-split tensor on each rank: (first, count).
using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;
Rows rows_of(const Layout& layout, const char* name, std::int64_t row_elements = 1) {
  Rows rows;
  for (int rank = 0; rank < layout.rank_count; ++rank) {
    const Elements elements = held(layout, rank, name);
    const auto count = static_cast<std::int64_t>(elements.size()) / row_elements;
    rows.emplace_back(count == 0 ? -1 : elements[0] / row_elements, count);
    EXPECT_EQ(elements, counted(count == 0 ? 0 : elements[0],
                                (count == 0 ? 0 : elements[0]) + count * row_elements));
  }
  return rows;
}

TEST(Uneven, sizes_of_the_users_own_are_kept) {
  std::vector<std::vector<Box>> boxes;
  for (const auto& [first, count] : {std::pair{0, 2}, {2, 3}, {5, 4}, {9, 5}}) {
    boxes.push_back({{{0, first}, {3, count}}});
  }
  const Layout source = by_hand({3, 14}, boxes);
  EXPECT_EQ(moved(source, trainer({3, 14}, "fsdp=1"), 0, kName), counted(0, 42));
  const Layout rows = trainer({3, 14}, "fsdp=2");
  EXPECT_EQ(moved(source, rows, 0, kName), counted(0, 28));
  EXPECT_EQ(moved(source, rows, 1, kName), counted(28, 42));
}

TEST(Uneven, the_whole_size_is_not_made_from_one_rank) {
  const Layout layout = trainer({10}, "fsdp=4");
  EXPECT_EQ(rows_of(layout, kName), (Rows{{0, 3}, {3, 3}, {6, 3}, {9, 1}}));
  EXPECT_EQ(layout.tensors[0].shape, std::vector<std::int64_t>{10});
}

TEST(Uneven, two_dimensions_change_places_on_a_mesh) {
  // Ranks (i, j) of a 2 x 2 mesh: rows by i and columns by j, then rows by j and columns by i.
  std::vector<std::vector<Box>> before;
  std::vector<std::vector<Box>> after;
  const Box rows[] = {{{0}, {3}}, {{3}, {2}}};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      before.push_back({{{rows[i].origin[0], 2 * j}, {rows[i].shape[0], 2}}});
      after.push_back({{{rows[j].origin[0], 2 * i}, {rows[j].shape[0], 2}}});
    }
  }
  const Layout source = by_hand({5, 4}, before);
  const Layout target = by_hand({5, 4}, after);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(moved(source, target, rank, kName), held(target, rank, kName));
  }
  EXPECT_EQ(held(target, 1, kName), (Elements{12, 13, 16, 17}));
}

TEST(Uneven, strides_of_a_short_rank_are_its_own) {
  const Layout source = by_hand({3, 9}, {{{{0, 0}, {3, 5}}}, {{{0, 5}, {3, 4}}}});
  EXPECT_EQ(local_strides(source, 1, 0), (Strides{1}));
  EXPECT_EQ(source.classes[0].pieces_of_role[1][0].view.strides, (Strides{4, 1}));
  EXPECT_EQ(held(source, 1, kName), (Elements{5, 6, 7, 8, 14, 15, 16, 17, 23, 24, 25, 26}));
  EXPECT_EQ(moved(source, trainer({3, 9}, "fsdp=1"), 0, kName), counted(0, 27));
}

TEST(Uneven, a_narrowed_view_moves_its_own_elements) {
  const Layout source = strided({4, 31, 10}, {320, 10, 1});
  EXPECT_EQ(moved(source, trainer({4, 31, 10}, "fsdp=1"), 0, kName), counted(0, 1240));
  const Elements back = moved(trainer({4, 31, 10}, "fsdp=4"), source, 0, kName);
  EXPECT_EQ(back.size(), 1270u);
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Elements(back.begin() + 320 * i, back.begin() + 320 * i + 310),
              counted(310 * i, 310 * (i + 1)));
    if (i == 3) continue;
    EXPECT_EQ(Elements(back.begin() + 320 * i + 310, back.begin() + 320 * (i + 1)),
              Elements(10, kUntouched));
  }
}

TEST(Uneven, offsets_and_sizes_follow_one_rule) {
  EXPECT_EQ(rows_of(trainer({7}, "fsdp=3"), kName), (Rows{{0, 3}, {3, 3}, {6, 1}}));
}

TEST(Uneven, a_dimension_that_two_axes_split_composes_their_offsets) {
  EXPECT_EQ(rows_of(trainer({2}, "tp=2,fsdp=4", kSplit), kSplit),
            (Rows{{0, 1}, {-1, 0}, {-1, 0}, {-1, 0}, {1, 1}, {-1, 0}, {-1, 0}, {-1, 0}}));
  EXPECT_EQ(rows_of(trainer({10}, "tp=2,fsdp=4", kSplit), kSplit),
            (Rows{{0, 2}, {2, 2}, {4, 1}, {-1, 0}, {5, 2}, {7, 2}, {9, 1}, {-1, 0}}));
}

TEST(Uneven, a_shard_of_a_shard_is_cut_by_its_own_size) {
  EXPECT_EQ(rows_of(trainer({10}, "tp=2,fsdp=2", kSplit), kSplit),
            (Rows{{0, 3}, {3, 2}, {5, 3}, {8, 2}}));
}

TEST(Uneven, tensors_in_one_flat_buffer_have_boxes_of_their_own) {
  // A of 3 and B of 5 rows, padded to 10 and cut in two: A0 A1 A2 B0 B1 | B2 B3 B4 pad pad.
  const HandTensor a{"A", DType::bf16, testing::plain({3}), {{{{0}, {3}}}, {}}};
  const HandTensor b{"B", DType::bf16, testing::plain({5}), {{{{0}, {2}}}, {{{2}, {3}}}}};
  const Layout source = hand_layout({{"flat", {a, b}, {0, 1}}});
  const Layout target =
      shard({{{"A", DType::bf16, {3}}, {"B", DType::bf16, {5}}}}, parse_spec("fsdp=1"));
  EXPECT_EQ(moved(source, target, 0, "A"), counted(0, 3));
  EXPECT_EQ(moved(source, target, 0, "B"), counted(kTensorStride, kTensorStride + 5));
}

TEST(Uneven, tensor_parallelism_splits_first_and_data_parallelism_its_shards) {
  EXPECT_EQ(rows_of(trainer({5, 17}, "fsdp=4,tp=2", kSplit), kSplit, 17),
            (Rows{{0, 1}, {3, 1}, {1, 1}, {4, 1}, {2, 1}, {-1, 0}, {-1, 0}, {-1, 0}}));
}

TEST(Uneven, a_local_size_is_not_divided_again) {
  EXPECT_EQ(rows_of(trainer({8}, "fsdp=2"), kName), (Rows{{0, 4}, {4, 4}}));
}

TEST(Uneven, neither_side_has_to_divide) {
  const Layout source = trainer({5}, "fsdp=2", kSplit);
  const Layout target = trainer({5}, "tp=3", kSplit);
  // Source rank, target rank, where there and where here, elements.
  using Region = std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t>;
  std::vector<Region> regions;
  const Schedule schedule = arrange(compile(source, target));
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& steps : expand(schedule, Side::target, rank).steps_of_group) {
      for (const Step& step : steps) {
        regions.emplace_back(step.peer, rank, step.source.offset, step.target.offset,
                             step.counts.empty() ? 1 : step.counts[0]);
      }
    }
  }
  EXPECT_EQ(regions, (std::vector<Region>{
                         {0, 0, 0, 0, 2}, {0, 1, 2, 0, 1}, {1, 1, 0, 1, 1}, {1, 2, 1, 0, 1}}));
}

TEST(Uneven, equal_weights_arrive_equal_however_they_are_sharded) {
  const Layout target = trainer({7, 3}, "fsdp=2");
  for (const char* spec : {"fsdp=2", "fsdp=8", "fsdp=2", "fsdp=8"}) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(moved(trainer({7, 3}, spec), target, rank, kName), held(target, rank, kName));
    }
  }
}

// -- Empty shards --------------------------------------------------------------------------------

TEST(Empty, a_rank_without_rows_takes_part_and_gives_nothing) {
  const Layout source = trainer({20, 2}, "fsdp=8");
  EXPECT_EQ(rows_of(source, kName, 2),
            (Rows{{0, 3}, {3, 3}, {6, 3}, {9, 3}, {12, 3}, {15, 3}, {18, 2}, {-1, 0}}));
  const Schedule schedule = arrange(compile(source, trainer({20, 2}, "fsdp=1")));
  EXPECT_EQ(moved(schedule, 0, kName), counted(0, 40));
  EXPECT_EQ(totals(schedule).egress_bytes,
            (std::vector<std::int64_t>{12, 12, 12, 12, 12, 12, 8, 0}));
  for (const auto& steps : expand(schedule, Side::source, 7).steps_of_group) {
    EXPECT_TRUE(steps.empty());
  }
}

TEST(Empty, a_tensor_without_rows_keeps_its_shape_and_moves_nothing) {
  const Catalog catalog{{{"none", DType::bf16, {0, 4}}, {"some", DType::bf16, {18}}}};
  const Schedule schedule =
      arrange(compile(shard(catalog, parse_spec("fsdp=8")), shard(catalog, parse_spec("fsdp=2"))));
  EXPECT_EQ(schedule.plan.source.tensors[0], catalog.tensors[0]);
  EXPECT_EQ(rows_of(trainer({18}, "fsdp=8"), kName),
            (Rows{{0, 3}, {3, 3}, {6, 3}, {9, 3}, {12, 3}, {15, 3}, {-1, 0}, {-1, 0}}));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(moved(schedule, rank, "none"), Elements{});
    EXPECT_EQ(moved(schedule, rank, "some"),
              counted(kTensorStride + 9 * rank, kTensorStride + 9 * (rank + 1)));
    for (const auto& steps : expand(schedule, Side::target, rank).steps_of_group) {
      // Steps of no elements would reach the transport with no address.
      for (const Step& step : steps) {
        for (const std::int64_t count : step.counts) EXPECT_GT(count, 0);
      }
    }
  }
}

TEST(Empty, an_owner_of_nothing_gives_nothing) {
  const std::vector<Box> all = {{{0}, {4}}};
  const HandTensor tensor{kName, DType::bf16, testing::plain({4}), {all}};
  const Layout source = hand_layout({{kName, {tensor}, {-1, 0, -1}}});
  const Schedule schedule = arrange(compile(source, trainer({4}, "fsdp=2")));
  EXPECT_EQ(totals(schedule).egress_bytes, (std::vector<std::int64_t>{0, 8, 0}));
  EXPECT_EQ(moved(schedule, 0, kName), counted(0, 2));
  EXPECT_EQ(moved(schedule, 1, kName), counted(2, 4));
}

TEST(Empty, a_rank_without_elements_has_a_local_size_of_none) {
  const Layout layout = trainer({5}, "fsdp=4");
  EXPECT_EQ(rows_of(layout, kName), (Rows{{0, 2}, {2, 2}, {4, 1}, {-1, 0}}));
  ASSERT_TRUE(has_parameter(layout, 3, 0));
  EXPECT_EQ(local_shape(layout, 3, 0), (Shape{0}));
}

TEST(Empty, more_ranks_than_rows_after_a_change_of_size) {
  const Layout few = trainer({6, 2}, "fsdp=2");
  const Layout many = trainer({6, 2}, "fsdp=8");
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(moved(few, many, rank, kName),
              rank < 6 ? counted(2 * rank, 2 * rank + 2) : Elements{});
  }
  EXPECT_EQ(moved(many, few, 1, kName), counted(6, 12));
}

}  // namespace
}  // namespace crossmesh::reports
