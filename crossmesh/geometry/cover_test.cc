// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/geometry/cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace crossmesh {
namespace {

using Kind = CoverFault::Kind;

std::vector<std::int64_t> elements_of(const StridedRegion& region) {
  std::vector<std::int64_t> elements{region.view.offset};
  for (int d = 0; d < region.shape.size(); ++d) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t element : elements) {
      for (std::int64_t i = 0; i < region.shape[d]; ++i) {
        longer.push_back(element + i * region.view.strides[d]);
      }
    }
    elements = longer;
  }
  return elements;
}

std::string show(const std::vector<StridedRegion>& regions, std::int64_t storage_size) {
  std::string text = "storage " + std::to_string(storage_size);
  for (const StridedRegion& region : regions) text += "  " + to_string(region);
  return text;
}

std::int64_t times_in(const std::vector<std::int64_t>& elements, std::int64_t element) {
  return std::count(elements.begin(), elements.end(), element);
}

// What the fault claims must be so; `parts` are the regions' elements.
void expect_true_fault(const CoverFault& fault, const std::vector<std::vector<std::int64_t>>& parts,
                       std::int64_t storage_size) {
  const auto part = [&](int region) { return parts.at(static_cast<std::size_t>(region)); };
  std::int64_t holders = 0, total = 0, lowest_hole = -1;
  switch (fault.kind) {
    case Kind::outside:
      ASSERT_GE(times_in(part(fault.first), fault.element), 1);
      ASSERT_TRUE(fault.element < 0 || fault.element >= storage_size);
      break;
    case Kind::overlap:
      ASSERT_LE(fault.first, fault.second);
      ASSERT_GE(times_in(part(fault.first), fault.element), fault.first == fault.second ? 2 : 1);
      ASSERT_GE(times_in(part(fault.second), fault.element), 1);
      break;
    case Kind::hole:
      for (std::int64_t element = 0; element < storage_size && lowest_hole < 0; ++element) {
        holders = 0;
        for (const auto& elements : parts) holders += times_in(elements, element);
        if (holders == 0) lowest_hole = element;
      }
      for (const auto& elements : parts) total += static_cast<std::int64_t>(elements.size());
      ASSERT_EQ(fault.element, lowest_hole);
      ASSERT_EQ(fault.count, total);
      break;
    case Kind::intractable:
      FAIL() << "intractable";
  }
}

void expect_agrees(const std::vector<StridedRegion>& regions, std::int64_t storage_size) {
  std::vector<std::vector<std::int64_t>> parts;
  std::vector<std::int64_t> all;
  for (const StridedRegion& region : regions) {
    parts.push_back(elements_of(region));
    all.insert(all.end(), parts.back().begin(), parts.back().end());
  }
  std::sort(all.begin(), all.end());
  bool exact = static_cast<std::int64_t>(all.size()) == storage_size;
  for (std::size_t i = 0; exact && i < all.size(); ++i) {
    exact = all[i] == static_cast<std::int64_t>(i);
  }
  const auto fault = find_cover_fault(regions, storage_size);
  ASSERT_EQ(!fault.has_value(), exact) << show(regions, storage_size);
  if (fault) {
    expect_true_fault(*fault, parts, storage_size);
    if (::testing::Test::HasFatalFailure()) {
      FAIL() << show(regions, storage_size) << "  kind " << static_cast<int>(fault->kind)
             << "  element " << fault->element << "  first " << fault->first << "  second "
             << fault->second;
    }
  }
}

struct Pool {
  int dims;
  std::int64_t extent_max;
  std::int64_t stride_min;
  std::int64_t stride_max;
  std::int64_t offset_max;
};

std::vector<StridedRegion> all_regions(const Pool& pool) {
  std::vector<StridedRegion> regions{{{}, {0, {}}}};
  for (int d = 0; d < pool.dims; ++d) {
    std::vector<StridedRegion> longer;
    for (const StridedRegion& region : regions) {
      for (std::int64_t n = 0; n <= pool.extent_max; ++n) {
        for (std::int64_t s = pool.stride_min; s <= pool.stride_max; ++s) {
          longer.push_back(region);
          longer.back().shape.push_back(n);
          longer.back().view.strides.push_back(s);
        }
      }
    }
    regions = longer;
  }
  std::vector<StridedRegion> placed;
  for (const StridedRegion& region : regions) {
    for (std::int64_t offset = 0; offset <= pool.offset_max; ++offset) {
      placed.push_back(region);
      placed.back().view.offset = offset;
    }
  }
  return placed;
}

TEST(Cover, every_small_region_alone_agrees_with_counting) {
  for (std::int64_t size = 0; size < 20; ++size) expect_agrees({}, size);
  for (const Pool& pool : {Pool{1, 6, -3, 7, 6}, Pool{2, 4, -2, 5, 4}, Pool{3, 3, 0, 4, 1}}) {
    for (const StridedRegion& region : all_regions(pool)) {
      for (const std::int64_t size : {1, 4, 6, 8, 12}) {
        expect_agrees({region}, size);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Cover, every_small_pair_agrees_with_counting) {
  const auto lines = all_regions({1, 4, -2, 4, 7});
  const auto planes = all_regions({2, 2, 1, 4, 3});
  for (const StridedRegion& a : lines) {
    for (const StridedRegion& b : lines) expect_agrees({a, b}, 8);
    for (const StridedRegion& b : planes) expect_agrees({a, b}, 8);
    if (HasFatalFailure()) return;
  }
  for (const StridedRegion& a : planes) {
    for (const StridedRegion& b : planes) expect_agrees({a, b}, 7);
    if (HasFatalFailure()) return;
  }
}

TEST(Cover, every_small_triple_agrees_with_counting) {
  std::vector<StridedRegion> lines;
  for (const StridedRegion& region : all_regions({1, 3, 1, 3, 6})) {
    if (region.shape[0] != 0) lines.push_back(region);
  }
  for (const StridedRegion& a : lines) {
    for (const StridedRegion& b : lines) {
      for (const StridedRegion& c : lines) expect_agrees({a, b, c}, 7);
      if (HasFatalFailure()) return;
    }
  }
}

// Splits a region along one dimension into two, or into its even and odd steps.
void cut_once(std::vector<StridedRegion>& regions, std::mt19937& random) {
  StridedRegion& region = regions[random() % regions.size()];
  const int d = static_cast<int>(random() % static_cast<unsigned>(region.shape.size()));
  const std::int64_t n = region.shape[d], stride = region.view.strides[d];
  if (n < 2) return;
  StridedRegion rest = region;
  if (random() % 2 == 0) {
    const std::int64_t at = 1 + static_cast<std::int64_t>(random()) % (n - 1);
    region.shape[d] = at;
    rest.shape[d] = n - at;
    rest.view.offset += at * stride;
  } else {
    region.shape[d] = (n + 1) / 2;
    rest.shape[d] = n / 2;
    rest.view.offset += stride;
    region.view.strides[d] = rest.view.strides[d] = 2 * stride;
  }
  regions.push_back(rest);
}

TEST(Cover, random_cuts_of_a_storage_cover_it_and_any_nudge_is_found) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape{1 + static_cast<std::int64_t>(random() % 6),
                      1 + static_cast<std::int64_t>(random() % 6),
                      1 + static_cast<std::int64_t>(random() % 6)};
    const std::int64_t size = shape[0] * shape[1] * shape[2];
    std::vector<StridedRegion> regions{{shape, {0, contiguous_strides(shape)}}};
    for (unsigned cut = random() % 12; cut > 0; --cut) cut_once(regions, random);
    ASSERT_EQ(find_cover_fault(regions, size), std::nullopt) << show(regions, size);
    StridedRegion& region = regions[random() % regions.size()];
    const int d = static_cast<int>(random() % 3);
    switch (random() % 4) {
      case 0:
        region.view.offset += random() % 2 == 0 ? 1 : -1;
        break;
      case 1:
        region.shape[d] += 1;
        break;
      case 2:
        region.shape[d] -= 1;
        break;
      default:
        region.view.strides[d] += 1;
    }
    expect_agrees(regions, size);
    if (HasFatalFailure()) return;
  }
}

TEST(Cover, a_thousand_row_and_column_blocks_of_a_huge_storage) {
  const std::int64_t rows = 1 << 20, columns = 1000 * 16;
  std::vector<StridedRegion> regions;
  for (std::int64_t b = 0; b < 1000; ++b) {
    regions.push_back({{rows / 2, 16}, {b * 16, {columns, 1}}});
    regions.push_back({{rows / 2, 16}, {rows / 2 * columns + b * 16, {columns, 1}}});
  }
  EXPECT_EQ(find_cover_fault(regions, rows * columns), std::nullopt);
  EXPECT_EQ(find_cover_fault(regions, rows * columns + 5),
            (CoverFault{Kind::hole, -1, -1, rows * columns, rows * columns}));
  regions[1500].view.offset += 1;
  EXPECT_EQ(find_cover_fault(regions, rows * columns),
            (CoverFault{Kind::overlap, 1500, 1502, 750 * 16 + 16, 0}));
  regions[1500].view.offset -= 1;
  regions.erase(regions.begin() + 1500);
  EXPECT_EQ(find_cover_fault(regions, rows * columns),
            (CoverFault{Kind::hole, -1, -1, 750 * 16, rows * columns - rows / 2 * 16}));
}

TEST(Cover, interleaved_rows_of_a_huge_storage) {
  const std::int64_t rows = 3 << 20, columns = 5000;
  std::vector<StridedRegion> regions;
  for (std::int64_t r = 0; r < 3; ++r) {
    regions.push_back({{rows / 3, columns}, {r * columns, {3 * columns, 1}}});
  }
  EXPECT_EQ(find_cover_fault(regions, rows * columns), std::nullopt);
}

TEST(Cover, strides_that_do_not_nest_are_walked_while_they_are_few) {
  // Every second row of one half and every third of the other.
  const std::int64_t columns = 1 << 20;
  const auto rows = [&](std::int64_t first, std::int64_t step, std::int64_t count) {
    return StridedRegion{{count, columns}, {first * columns, {step * columns, 1}}};
  };
  const std::vector<StridedRegion> few{rows(0, 2, 30), rows(1, 2, 30), rows(60, 3, 20),
                                       rows(61, 3, 20), rows(62, 3, 20)};
  EXPECT_EQ(find_cover_fault(few, 120 * columns), std::nullopt);
  const std::int64_t n = 1 << 24;
  const std::vector<StridedRegion> many{{{n}, {0, {2}}}, {{n}, {1, {2}}}, {{n}, {2 * n, {3}}}};
  EXPECT_EQ(find_cover_fault(many, 6 * n), (CoverFault{Kind::intractable, 2, -1, 2 * n, 0}));
}

TEST(Cover, faults_outside_come_first_even_where_numbers_overflow) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(find_cover_fault(std::vector<StridedRegion>{{{4}, {0, {huge}}}}, 10),
            (CoverFault{Kind::outside, 0, -1, INT64_MAX, 0}));
  EXPECT_EQ(find_cover_fault(std::vector<StridedRegion>{{{4}, {0, {-1}}}}, 10),
            (CoverFault{Kind::outside, 0, -1, -3, 0}));
}

TEST(Cover, an_empty_storage_is_covered_by_nothing) {
  EXPECT_EQ(find_cover_fault({}, 0), std::nullopt);
  EXPECT_EQ(find_cover_fault(std::vector<StridedRegion>{{{0, 3}, {5, {3, 1}}}}, 0), std::nullopt);
  EXPECT_EQ(find_cover_fault(std::vector<StridedRegion>{{{}, {0, {}}}}, 1), std::nullopt);
}

}  // namespace
}  // namespace crossmesh
