// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/strided_tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

namespace crossmesh {
namespace {

std::vector<std::int64_t> places_of(const Shape& sizes, const Strides& strides,
                                    std::int64_t offset) {
  std::vector<std::int64_t> places{offset};
  for (int d = 0; d < sizes.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places) {
      for (std::int64_t i = 0; i < sizes[d]; ++i) next.push_back(place + i * strides[d]);
    }
    places = next;
  }
  return places;
}

// Whether some strides over `sizes` walk `places` in order; found from the places alone.
bool has_strides(const std::vector<std::int64_t>& places, const Shape& sizes) {
  Strides strides = Strides::filled(sizes.size(), 0);
  std::int64_t step = 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    if (sizes[d] > 1) {
      strides[d] = places[static_cast<std::size_t>(step)] - places.front();
    }
    step *= sizes[d];
  }
  return places_of(sizes, strides, places.front()) == places;
}

void for_each_sizes(std::int64_t count, int dims, const Shape& head,
                    const std::function<void(const Shape&)>& visit) {
  if (dims == 0) {
    if (count == 1) visit(head);
    return;
  }
  for (std::int64_t size = 1; size <= count; ++size) {
    if (count % size != 0) continue;
    Shape sizes = head;
    sizes.push_back(size);
    for_each_sizes(count / size, dims - 1, sizes, visit);
  }
}

TEST(StridedTensor, a_view_has_strides_exactly_where_some_exist) {
  std::array<int, 2> tally{};
  for (std::int64_t code = 0; code < 4 * 4 * 4 * 6 * 8; ++code) {
    const Shape shape{code % 4 + 1, code / 4 % 4 + 1, code / 16 % 4 + 1};
    const std::array<Index, 6> orders = {Index{0, 1, 2}, Index{0, 2, 1}, Index{1, 0, 2},
                                         Index{1, 2, 0}, Index{2, 0, 1}, Index{2, 1, 0}};
    StridedTensor tensor = fresh_tensor(DType::u8, shape.span());
    const std::int64_t narrowed = code / 384;
    for (int d = 0; d < 3; ++d) {
      if ((narrowed >> d & 1) != 0) tensor = narrow(tensor, d, 1, tensor.sizes[d] - 1);
    }
    if (element_count(tensor) == 0) continue;
    tensor = permute(tensor, orders[static_cast<std::size_t>(code / 64 % 6)].span());
    const auto places = places_of(tensor.sizes, tensor.strides, tensor.offset);
    for (int dims = 0; dims <= 3; ++dims) {
      for_each_sizes(element_count(tensor), dims, {}, [&](const Shape& sizes) {
        const std::optional<Strides> strides = view_strides(tensor, sizes);
        ASSERT_EQ(strides.has_value(), has_strides(places, sizes))
            << to_string(tensor) << to_string(sizes);
        ++tally[strides ? 1 : 0];
        if (!strides) return;
        ASSERT_EQ(places_of(sizes, *strides, tensor.offset), places);
      });
    }
  }
  EXPECT_GT(tally[0], 1000);
  EXPECT_GT(tally[1], 1000);
}

TEST(StridedTensor, prints_dtype_sizes_strides_and_offset) {
  const std::array<std::int64_t, 2> sizes = {4, 6};
  EXPECT_EQ(to_string(narrow(fresh_tensor(DType::bf16, sizes), 0, 2, 1)), "BF16[1, 6]:[6, 1]+12");
}

}  // namespace
}  // namespace crossmesh
