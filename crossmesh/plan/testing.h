// SPDX-License-Identifier: Apache-2.0
// Layouts for tests: small ones from boxes written by hand, and random ones. Pieces lie one after
// another in a flat parameter. Included by tests only.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh::testing {

inline std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

inline Space plain(std::vector<std::int64_t> shape) { return Space::plain(shape); }

// One tensor of a side. Each box is row-major, or has the axes in `axis_order`, outermost first.
struct HandTensor {
  std::string name;
  DType dtype = DType::bf16;
  Space space;
  std::vector<std::vector<Box>> boxes_of_role;
  std::vector<std::vector<int>> axis_orders = {};  // by box, counted over roles; {} is row-major
};

// Tensors that fill one parameter, one after another; the same ranks play the same roles in all.
struct HandParameter {
  std::string name;
  std::vector<HandTensor> tensors;
  std::vector<int> role_of_rank;
};

inline Strides strides_in_order(const Shape& shape, const std::vector<int>& order) {
  Strides strides = contiguous_strides(shape);
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<std::int64_t>(shape[order[i]], 1);
  }
  return strides;
}

inline Layout hand_layout(const std::vector<HandParameter>& parameters) {
  Layout layout;
  layout.rank_count = static_cast<int>(parameters.at(0).role_of_rank.size());
  layout.replica_of_rank.assign(at(layout.rank_count), 0);
  Interner interner(layout);
  for (const HandParameter& p : parameters) {
    const std::size_t role_count = p.tensors.at(0).boxes_of_role.size();
    const int binding = interner.binding({p.role_of_rank});
    std::vector<std::int64_t> used(role_count, 0);
    const int parameter = static_cast<int>(layout.parameters.size());
    for (const HandTensor& t : p.tensors) {
      std::vector<std::int64_t> shape;
      for (const std::int64_t extent : tensor_shape(t.space)) shape.push_back(extent);
      LayoutClass c{t.space, t.dtype, {}};
      const std::int64_t offset = used[0];
      std::size_t box_index = 0;
      for (std::size_t role = 0; role < role_count; ++role) {
        auto& pieces = c.pieces_of_role.emplace_back();
        for (const Box& box : t.boxes_of_role[role]) {
          const bool ordered = box_index < t.axis_orders.size();
          const Strides strides = ordered ? strides_in_order(box.shape, t.axis_orders[box_index])
                                          : contiguous_strides(box.shape);
          ++box_index;
          pieces.push_back({box, {used[role] - offset, strides}});
          used[role] += volume(box);
        }
      }
      const auto known = std::find_if(layout.tensors.begin(), layout.tensors.end(),
                                      [&](const TensorInfo& i) { return i.name == t.name; });
      const int tensor = static_cast<int>(known - layout.tensors.begin());
      if (known == layout.tensors.end()) layout.tensors.push_back({t.name, t.dtype, shape});
      layout.instances.push_back(
          {tensor, parameter, interner.layout_class(std::move(c)), binding, offset, -1});
    }
    ParameterClass parameter_class{p.tensors[0].dtype, {}, {}, {}};
    for (const std::int64_t size : used) {
      parameter_class.shape_of_role.push_back({size});
      parameter_class.strides_of_role.push_back({1});
    }
    layout.parameters.push_back(
        {p.name, interner.parameter_class(std::move(parameter_class)), binding, parameter});
  }
  return layout;
}

// -- Random sides --------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // Uniform in [low, high], nearly.
  int between(int low, int high) {
    // SplitMix64.
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return low + static_cast<int>(z % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::uint64_t state_;
};

// Some factors of each extent, or the extent itself.
inline Space random_space(Random& random, const std::vector<std::int64_t>& shape) {
  Space space;
  for (const std::int64_t extent : shape) {
    std::vector<std::int64_t> factors{extent};
    for (int tries = 0; tries < 2 && random.chance(35); ++tries) {
      const std::int64_t factor = random.between(2, 4);
      if (factors.back() == 0 || factors.back() % factor != 0) continue;
      factors.back() /= factor;
      factors.push_back(factor);
    }
    if (space.factors.size() + static_cast<int>(factors.size()) > 6) factors = {extent};
    for (const std::int64_t factor : factors) space.factors.push_back(factor);
    space.factor_count.push_back(static_cast<std::int64_t>(factors.size()));
  }
  return space;
}

// Boxes that tile the space: a grid of random cuts.
inline std::vector<Box> random_grid(Random& random, const Space& space) {
  std::vector<Box> boxes{Box{}};
  for (const std::int64_t extent : space.factors) {
    std::vector<std::int64_t> cuts{0, extent};
    for (int c = random.between(0, 2); c > 0 && extent > 1; --c) {
      cuts.push_back(random.between(0, static_cast<int>(extent)));
    }
    std::sort(cuts.begin(), cuts.end());
    std::vector<Box> finer;
    for (const Box& box : boxes) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        finer.push_back(box);
        finer.back().origin.push_back(cuts[i]);
        finer.back().shape.push_back(cuts[i + 1] - cuts[i]);
      }
    }
    if (finer.size() <= 12) {
      boxes = std::move(finer);
      continue;
    }
    for (Box& box : boxes) {
      box.origin.push_back(0);
      box.shape.push_back(extent);
    }
  }
  return boxes;
}

struct RandomSide {
  int role_count = 1;
  bool is_target = false;
  DType dtype = DType::bf16;
};

// A tensor of the side: a source holds all of it, some of it twice; a target wants some of it.
inline HandTensor random_tensor(Random& random, const TensorInfo& info, const RandomSide& side) {
  HandTensor tensor{info.name, side.dtype, random_space(random, info.shape), {}};
  tensor.boxes_of_role.resize(at(side.role_count));
  for (const Box& box : random_grid(random, tensor.space)) {
    const int role = random.between(0, side.role_count - 1);
    if (side.is_target && random.chance(10)) continue;
    tensor.boxes_of_role[at(role)].push_back(box);
    const int other = random.between(0, side.role_count - 1);
    if (other != role && random.chance(25)) tensor.boxes_of_role[at(other)].push_back(box);
  }
  for (const auto& boxes : tensor.boxes_of_role) {
    for (const Box& box : boxes) {
      std::vector<int> order(at(box.shape.size()));
      std::iota(order.begin(), order.end(), 0);
      if (random.chance(40))
        std::rotate(order.begin(), order.begin() + !order.empty(), order.end());
      tensor.axis_orders.push_back(order);
    }
  }
  return tensor;
}

// Every role is played by some rank; some ranks have no part, some roles have several.
inline std::vector<int> random_ranks(Random& random, int role_count, int rank_count) {
  std::vector<int> role_of_rank;
  for (int rank = 0; rank < rank_count; ++rank) {
    role_of_rank.push_back(rank < role_count ? rank : random.between(-1, role_count - 1));
  }
  std::rotate(role_of_rank.begin(), role_of_rank.begin() + random.between(0, rank_count - 1),
              role_of_rank.end());
  return role_of_rank;
}

struct RandomPair {
  Layout source;
  Layout target;
};

inline std::vector<TensorInfo> random_tensors(Random& random, int count, DType dtype) {
  std::vector<TensorInfo> tensors;
  for (int t = 0; t < count; ++t) {
    std::vector<std::int64_t> shape;
    for (int d = random.between(0, 3); d > 0; --d) {
      const int few = random.between(1, 8);
      shape.push_back(random.chance(4) ? 0 : random.chance(30) ? few * 2 : few);
    }
    tensors.push_back({"layers." + std::to_string(t / 2) + "." + std::to_string(t), dtype, shape});
  }
  return tensors;
}

// Two sides of the same few tensors, each with its own cuts, refinements and axis orders.
inline RandomPair random_pair(std::uint64_t seed) {
  Random random(seed);
  const DType source_dtype = random.chance(70) ? DType::bf16 : DType::f32;
  const std::vector<TensorInfo> tensors =
      random_tensors(random, random.between(1, 3), source_dtype);
  std::vector<HandParameter> source;
  std::vector<HandParameter> target;
  const int source_ranks = random.between(1, 4);
  const int target_ranks = random.between(1, 4);
  for (const TensorInfo& info : tensors) {
    const int source_roles = random.between(1, source_ranks);
    source.push_back({info.name,
                      {random_tensor(random, info, {source_roles, false, source_dtype})},
                      random_ranks(random, source_roles, source_ranks)});
  }
  int roles = random.between(1, target_ranks);
  for (const TensorInfo& info : tensors) {
    if (target.empty() || random.chance(50)) {
      roles = random.between(1, target_ranks);
      target.push_back({"p" + info.name, {}, random_ranks(random, roles, target_ranks)});
    }
    target.back().tensors.push_back(random_tensor(random, info, {roles, true, DType::bf16}));
  }
  return {hand_layout(source), hand_layout(target)};
}

// -- The oracle ----------------------------------------------------------------------------------

// Row-major element numbers of a tensor, at the place where each lies on a role: (place, element).
inline std::vector<std::pair<std::int64_t, std::int64_t>> elements_of(const LayoutClass& c,
                                                                      int role) {
  std::vector<std::pair<std::int64_t, std::int64_t>> elements;
  for (const Piece& piece : c.pieces_of_role[at(role)]) {
    if (is_empty(piece.box)) continue;
    Index i = Index::filled(piece.box.shape.size(), 0);
    for (bool more = true; more;) {
      std::int64_t place = piece.view.offset;
      std::int64_t element = 0;
      for (int d = 0; d < i.size(); ++d) {
        place += i[d] * piece.view.strides[d];
        element = element * c.space.factors[d] + piece.box.origin[d] + i[d];
      }
      elements.emplace_back(place, element);
      more = false;
      for (int d = i.size() - 1; d >= 0 && !more; --d) {
        more = ++i[d] < piece.box.shape[d];
        if (!more) i[d] = 0;
      }
    }
  }
  return elements;
}

// The places that a view visits, in row-major order of `counts`.
inline std::vector<std::int64_t> places_of(const Shape& counts, const View& view) {
  std::vector<std::int64_t> places{view.offset};
  for (int d = 0; d < counts.size(); ++d) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t place : places) {
      for (std::int64_t i = 0; i < counts[d]; ++i) longer.push_back(place + i * view.strides[d]);
    }
    places = std::move(longer);
  }
  return places;
}

}  // namespace crossmesh::testing
