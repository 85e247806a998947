// SPDX-License-Identifier: Apache-2.0
#include "tests/worlds/made.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "crossmesh/layout/interner.h"

namespace crossmesh::worlds {
namespace {

using oracle::Elements;
using oracle::RefinedPiece;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// SplitMix64: the same numbers on every machine and library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}

  // In [0, sides).
  std::int64_t roll(std::int64_t sides) {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return static_cast<std::int64_t>((x ^ (x >> 31)) % static_cast<std::uint64_t>(sides));
  }
  bool chance(int percent) { return roll(100) < percent; }
  // In [least, most].
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + roll(most - least + 1);
  }

 private:
  std::uint64_t state_;
};

using Factors = std::vector<std::vector<std::int64_t>>;

// Mostly extents up to 7; sometimes one that has factors which do not nest.
std::vector<std::int64_t> roll_shape(Dice& dice) {
  constexpr std::int64_t kComposite[] = {8, 9, 12, 16, 18, 24};
  std::vector<std::int64_t> shape;
  for (std::int64_t dims = dice.between(0, 3); dims > 0; --dims) {
    const bool is_composite = shape.empty() && dice.chance(35);
    const bool is_empty = dice.chance(3);
    shape.push_back(is_composite ? kComposite[dice.roll(6)]
                    : is_empty   ? 0
                                 : dice.between(1, dims > 2 ? 5 : 7));
  }
  return shape;
}

// Splits an extent into two or three factors where it has divisors.
std::vector<std::int64_t> roll_factors(Dice& dice, std::int64_t extent) {
  std::vector<std::int64_t> factors = {extent};
  for (int cuts = 0; cuts < 2 && dice.chance(60); ++cuts) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 2; d < factors.back(); ++d) {
      if (factors.back() % d == 0) divisors.push_back(d);
    }
    if (divisors.empty()) break;
    const std::int64_t inner = divisors[at(dice.roll(static_cast<int>(divisors.size())))];
    factors.back() /= inner;
    factors.push_back(inner);
  }
  return factors;
}

// A box of the refined space.
struct Cell {
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> extent;
};

std::vector<Cell> roll_partition(Dice& dice, const std::vector<std::int64_t>& radix, int cuts) {
  std::vector<Cell> cells = {{std::vector<std::int64_t>(radix.size(), 0), radix}};
  for (; cuts > 0 && !radix.empty(); --cuts) {
    const std::size_t chosen = at(dice.roll(static_cast<std::int64_t>(cells.size())));
    const std::size_t dim = at(dice.roll(static_cast<std::int64_t>(radix.size())));
    Cell rest = cells[chosen];
    if (rest.extent[dim] < 2) continue;
    const std::int64_t kept = dice.between(1, rest.extent[dim] - 1);
    cells[chosen].extent[dim] = kept;
    rest.origin[dim] += kept;
    rest.extent[dim] -= kept;
    cells.push_back(std::move(rest));
  }
  return cells;
}

// The cells of each role.
std::vector<std::vector<Cell>> deal(Dice& dice, const std::vector<std::int64_t>& radix,
                                    int role_count, bool is_target) {
  std::vector<std::vector<Cell>> cells_of_role(at(role_count));
  const int cuts = static_cast<int>(dice.between(0, 5));
  if (dice.chance(70)) {  // One partition; a cell may have several holders, on a target also none.
    for (const Cell& cell : roll_partition(dice, radix, cuts)) {
      const std::int64_t owner = dice.roll(role_count);
      for (int role = 0; role < role_count; ++role) {
        const bool is_owner = role == owner && !(is_target && dice.chance(10));
        if (is_owner || dice.chance(25)) cells_of_role[at(role)].push_back(cell);
      }
    }
    return cells_of_role;
  }
  for (int role = 0; role < role_count; ++role) {  // A partition of its own for each role.
    const bool is_all = is_target ? dice.chance(30) : role == 0;
    for (const Cell& cell : roll_partition(dice, radix, cuts)) {
      if (is_all || dice.chance(60)) cells_of_role[at(role)].push_back(cell);
    }
  }
  return cells_of_role;
}

bool has_elements(const Cell& cell) {
  return std::ranges::all_of(cell.extent, [](std::int64_t extent) { return extent > 0; });
}

// A cell as a piece at `offset`, its dimensions in any order, every stride times `spread`.
RefinedPiece lay(Dice& dice, const Factors& factors, const Cell& cell, std::int64_t spread) {
  RefinedPiece piece{factors, cell.origin, cell.extent,
                     std::vector<std::int64_t>(cell.extent.size(), 0), 0};
  std::vector<std::size_t> order(cell.extent.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (dice.chance(50)) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[at(dice.roll(static_cast<std::int64_t>(i)))]);
    }
  }
  std::int64_t running = spread;
  for (std::size_t i = order.size(); i-- > 0;) {
    piece.stride[order[i]] = running;
    running *= cell.extent[order[i]];
    if (dice.chance(8)) running += spread * dice.between(1, 2);
  }
  return piece;
}

std::int64_t end_of(const RefinedPiece& piece) {
  std::int64_t last = piece.offset;
  for (std::size_t d = 0; d < piece.extent.size(); ++d) {
    last += (piece.extent[d] - 1) * piece.stride[d];
  }
  return last + 1;
}

// Lays cells from `offset` on, and says where they end. Equal cells may lie interleaved.
std::int64_t lay_cells(Dice& dice, const Factors& factors, const std::vector<Cell>& cells,
                       std::int64_t offset, std::vector<RefinedPiece>& pieces) {
  for (std::size_t c = 0; c < cells.size();) {
    if (!has_elements(cells[c])) {
      ++c;
      continue;
    }
    std::size_t twins = 1;
    while (c + twins < cells.size() && cells[c + twins].extent == cells[c].extent) ++twins;
    if (dice.chance(50)) twins = 1;
    if (dice.chance(10)) offset += dice.between(1, 3);
    const RefinedPiece first = lay(dice, factors, cells[c], static_cast<std::int64_t>(twins));
    for (std::size_t twin = 0; twin < twins; ++twin) {
      RefinedPiece piece = first;
      piece.origin = cells[c + twin].origin;
      piece.offset = offset + static_cast<std::int64_t>(twin);
      pieces.push_back(std::move(piece));
    }
    offset = end_of(pieces.back());
    c += twins;
  }
  return offset;
}

// -- One side ------------------------------------------------------------------------------------

struct MadeTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct SideKind {
  bool is_target = false;
  DType dtype = DType::f32;
  int rank_count = 1;
};

class SideMaker {
 public:
  SideMaker(Dice& dice, const std::vector<MadeTensor>& tensors, const SideKind& kind)
      : dice_(dice), tensors_(tensors), kind_(kind), interner_(layout) {
    layout.rank_count = kind.rank_count;
    for (int rank = 0; rank < kind.rank_count; ++rank) {
      layout.replica_of_rank.push_back(kind.is_target ? rank % 2 : 0);
    }
    if (kind.is_target && kind.rank_count == 1) layout.replica_of_rank = {0};
    side.elements.resize(at(kind.rank_count));
    for (const MadeTensor& tensor : tensors) {
      layout.tensors.push_back({tensor.name, kind.dtype, tensor.shape});
    }
  }

  // One parameter that the tensors of these numbers feed.
  void add_parameter(const std::vector<int>& numbers);

  Layout layout;
  oracle::Side side;

 private:
  struct Fed {
    int tensor = 0;
    Factors factors;
    std::vector<std::vector<RefinedPiece>> pieces_of_role;
    bool is_opaque = false;
  };

  Fed lay_tensor(int tensor, std::vector<std::int64_t>& size_of_role);
  void add_instance(const Fed& fed, int parameter, int binding);
  Elements elements_of(const std::vector<Fed>& fed, int role, std::int64_t size) const;
  std::vector<Reserve> reserves_of(const std::vector<Fed>& fed, int role, std::int64_t size);
  std::vector<int> roll_roles(int role_count);

  Dice& dice_;
  const std::vector<MadeTensor>& tensors_;
  SideKind kind_;
  Interner interner_;
};

std::vector<int> SideMaker::roll_roles(int role_count) {
  std::vector<int> role_of_rank;
  const bool is_sparse = dice_.chance(15);
  for (int rank = 0; rank < kind_.rank_count; ++rank) {
    role_of_rank.push_back(rank < role_count ? rank : static_cast<int>(dice_.roll(role_count)));
    if (is_sparse && rank > 0)
      role_of_rank.back() = static_cast<int>(dice_.roll(role_count + 1)) - 1;
  }
  for (std::size_t i = role_of_rank.size(); i > 1; --i) {
    std::swap(role_of_rank[i - 1], role_of_rank[at(dice_.roll(static_cast<std::int64_t>(i)))]);
  }
  return role_of_rank;
}

SideMaker::Fed SideMaker::lay_tensor(int tensor, std::vector<std::int64_t>& size_of_role) {
  Fed fed{tensor, {}, {}, kind_.is_target && dice_.chance(7)};
  std::vector<std::int64_t> radix;
  for (const std::int64_t extent : tensors_[at(tensor)].shape) {
    fed.factors.push_back(roll_factors(dice_, extent));
    radix.insert(radix.end(), fed.factors.back().begin(), fed.factors.back().end());
  }
  const int role_count = static_cast<int>(size_of_role.size());
  for (const auto& cells : deal(dice_, radix, role_count, kind_.is_target)) {
    std::int64_t& size = size_of_role[fed.pieces_of_role.size()];
    size = lay_cells(dice_, fed.factors, cells, size, fed.pieces_of_role.emplace_back());
  }
  return fed;
}

void SideMaker::add_instance(const Fed& fed, int parameter, int binding) {
  LayoutClass geometry;
  geometry.dtype = kind_.dtype;
  for (const auto& factors : fed.factors) {
    geometry.space.factor_count.push_back(static_cast<std::int64_t>(factors.size()));
    for (const std::int64_t factor : factors) geometry.space.factors.push_back(factor);
  }
  // What all views have in common becomes the instance's offset.
  std::int64_t common = std::int64_t{1} << 40;
  for (const auto& pieces : fed.pieces_of_role) {
    for (const RefinedPiece& piece : pieces) common = std::min(common, piece.offset);
  }
  if (common == std::int64_t{1} << 40 || dice_.chance(30)) common = 0;
  for (const auto& pieces : fed.pieces_of_role) {
    std::vector<Piece>& role = geometry.pieces_of_role.emplace_back();
    for (const RefinedPiece& piece : pieces) {
      role.push_back({{DimVector(piece.origin), DimVector(piece.extent)},
                      {piece.offset - common, DimVector(piece.stride)}});
    }
  }
  Instance instance;
  instance.tensor = fed.tensor;
  instance.parameter = parameter;
  instance.layout_class = interner_.layout_class(std::move(geometry));
  instance.binding = binding;
  instance.offset = common;
  if (fed.is_opaque) {
    if (layout.reasons.empty()) layout.reasons.push_back("its loader is a black box");
    instance.opaque_reason = 0;
  }
  layout.instances.push_back(instance);
}

Elements SideMaker::elements_of(const std::vector<Fed>& fed, int role, std::int64_t size) const {
  Elements elements(at(size));
  for (const Fed& each : fed) {
    if (each.is_opaque) continue;
    for (const RefinedPiece& piece : each.pieces_of_role[at(role)]) {
      oracle::place(elements, each.tensor, piece);
    }
  }
  return elements;
}

// Whatever no piece covers, run by run.
std::vector<Reserve> SideMaker::reserves_of(const std::vector<Fed>& fed, int role,
                                            std::int64_t size) {
  Elements covered(at(size));
  for (const Fed& each : fed) {
    for (const RefinedPiece& piece : each.pieces_of_role[at(role)]) {
      oracle::place(covered, each.tensor, piece);
    }
  }
  std::vector<Reserve> reserves;
  for (std::int64_t begin = 0; begin < size;) {
    std::int64_t end = begin;
    while (end < size && covered[at(end)].tensor < 0) ++end;
    if (end > begin) {
      const auto kind = static_cast<Reserve::Kind>(dice_.roll(3));
      reserves.push_back({kind, role, {{end - begin}, {begin, {1}}}, 0, "nothing feeds it"});
    }
    begin = std::max(end, begin + 1);
  }
  return reserves;
}

void SideMaker::add_parameter(const std::vector<int>& numbers) {
  const int role_count =
      static_cast<int>(dice_.between(1, kind_.rank_count + (dice_.chance(5) ? 1 : 0)));
  std::vector<std::int64_t> size_of_role(at(role_count), 0);
  std::vector<Fed> fed;
  for (const int number : numbers) fed.push_back(lay_tensor(number, size_of_role));
  for (std::int64_t& size : size_of_role) size += dice_.chance(10) ? dice_.between(1, 3) : 0;

  ParameterClass parameter_class{kind_.dtype, {}, {}, {}};
  for (int role = 0; role < role_count; ++role) {
    parameter_class.shape_of_role.push_back({size_of_role[at(role)]});
    if (!kind_.is_target) continue;
    for (Reserve& reserve : reserves_of(fed, role, size_of_role[at(role)])) {
      parameter_class.reserves.push_back(std::move(reserve));
    }
  }
  const std::vector<int> role_of_rank = roll_roles(role_count);
  const int binding = interner_.binding({role_of_rank});
  const int index = static_cast<int>(layout.parameters.size());
  const int class_index = interner_.parameter_class(std::move(parameter_class));
  layout.parameters.push_back({fmt::format("parameter.{}", index), class_index, binding, index});
  for (const Fed& each : fed) add_instance(each, index, binding);
  for (int rank = 0; rank < kind_.rank_count; ++rank) {
    const int role = role_of_rank[at(rank)];
    side.elements[at(rank)].push_back(role < 0 ? Elements{}
                                               : elements_of(fed, role, size_of_role[at(role)]));
  }
  if (!dice_.chance(8)) return;
  layout.parameters.push_back(
      {fmt::format("parameter.{}.twin", index), class_index, binding, index});
  for (auto& parameters : side.elements) parameters.emplace_back();
}

// -- A world -------------------------------------------------------------------------------------

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr DType kOthers[] = {DType::u8, DType::i64, DType::f8_e4m3, DType::f64};

// A box of the plain space as a parameter of its own.
struct StridedRole {
  Cell cell;
  RefinedPiece piece;
  Shape shape;
  Strides strides;
};

StridedRole roll_strided_role(Dice& dice, const Factors& factors, const Cell& cell) {
  StridedRole role{cell, {factors, cell.origin, cell.extent, {}, 0}, {}, {}};
  std::vector<std::size_t> order(cell.extent.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::rotate(order.begin(), order.begin() + dice.roll(static_cast<std::int64_t>(order.size())),
              order.end());
  role.piece.stride.resize(order.size());
  std::vector<std::int64_t> strides(order.size());
  std::int64_t running = dice.chance(15) ? 2 : 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[i] = role.piece.stride[order[i]] = running;
    running = running * cell.extent[order[i]] + (dice.chance(40) ? dice.between(1, 3) : 0);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    role.shape.push_back(cell.extent[order[i]]);
    role.strides.push_back(strides[i]);
  }
  return role;
}

void add_strided_side(Dice& dice, const MadeTensor& tensor, const SideKind& kind, Layout& layout,
                      oracle::Side& side) {
  Factors factors;
  for (const std::int64_t extent : tensor.shape) factors.push_back({extent});
  const std::vector<Cell> cells =
      roll_partition(dice, tensor.shape, static_cast<int>(dice.between(0, 3)));
  const auto role_count = static_cast<std::int64_t>(cells.size());
  // A source has a rank for each box, so that all are held.
  const std::int64_t ranks =
      kind.is_target ? kind.rank_count : std::max<std::int64_t>(role_count, kind.rank_count);
  layout.rank_count = static_cast<int>(ranks);
  layout.replica_of_rank.assign(at(ranks), 0);
  layout.tensors.push_back({tensor.name, kind.dtype, tensor.shape});
  LayoutClass geometry{Space::plain(tensor.shape), kind.dtype, {}};
  ParameterClass parameter{kind.dtype, {}, {}, {}};
  std::vector<StridedRole> roles;
  for (const Cell& cell : cells) {
    const StridedRole& role = roles.emplace_back(roll_strided_role(dice, factors, cell));
    geometry.pieces_of_role.push_back(
        {{{DimVector(cell.origin), DimVector(cell.extent)}, {0, DimVector(role.piece.stride)}}});
    parameter.shape_of_role.push_back(role.shape);
    parameter.strides_of_role.push_back(role.strides);
  }
  Binding binding;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const bool is_first = !kind.is_target && rank < role_count;
    const std::int64_t role = is_first ? rank : dice.roll(role_count);
    binding.role_of_rank.push_back(static_cast<int>(role));
    const StridedRole& played = roles[at(role)];
    std::int64_t size = has_elements(played.cell) ? 1 : 0;
    for (int d = 0; size > 0 && d < played.shape.size(); ++d) {
      size += (played.shape[d] - 1) * played.strides[d];
    }
    Elements elements(at(size));
    oracle::place(elements, 0, played.piece);
    side.elements.push_back({elements});
  }
  Interner interner(layout);
  const int binding_index = interner.binding(std::move(binding));
  const int class_index = interner.layout_class(std::move(geometry));
  const int parameter_class = interner.parameter_class(std::move(parameter));
  layout.parameters.push_back({"strided", parameter_class, binding_index, 0});
  layout.instances.push_back({0, 0, class_index, binding_index, 0, -1});
}

}  // namespace

World make_strided_world(std::uint64_t number) {
  Dice dice(number);
  World world;
  world.tensors = {"tensor.0"};
  MadeTensor tensor{world.tensors[0], {}};
  for (std::int64_t dims = dice.between(1, 3); dims > 0; --dims) {
    tensor.shape.push_back(dice.between(1, 7));
  }
  const auto ranks = [&] { return static_cast<int>(dice.between(1, 4)); };
  add_strided_side(dice, tensor, {false, kFloats[dice.roll(3)], ranks()}, world.source, world.held);
  add_strided_side(dice, tensor, {true, kFloats[dice.roll(3)], ranks()}, world.target,
                   world.wanted);
  return world;
}

World make_world(std::uint64_t number) {
  Dice dice(number);
  World world;
  std::vector<MadeTensor> tensors;
  const std::int64_t tensor_count = dice.chance(30) ? dice.between(2, 3) : 1;
  for (std::int64_t t = 0; t < tensor_count; ++t) {
    world.tensors.push_back(fmt::format("tensor.{}", t));
    // Equal shapes share classes.
    tensors.push_back(
        {world.tensors.back(), t > 0 && dice.chance(40) ? tensors.back().shape : roll_shape(dice)});
  }
  SideKind source_kind{false, kFloats[dice.roll(3)], static_cast<int>(dice.between(1, 4))};
  SideKind target_kind{true, kFloats[dice.roll(3)], static_cast<int>(dice.between(1, 4))};
  if (dice.chance(30)) source_kind.dtype = target_kind.dtype = kOthers[dice.roll(4)];
  for (const SideKind& kind : {source_kind, target_kind}) {
    SideMaker maker(dice, tensors, kind);
    std::vector<std::vector<int>> numbers_of_parameter(1);
    for (int t = 0; t < static_cast<int>(tensor_count); ++t) {
      if (dice.chance(40)) numbers_of_parameter.emplace_back();
      numbers_of_parameter[at(dice.roll(static_cast<std::int64_t>(numbers_of_parameter.size())))]
          .push_back(t);
    }
    // A tensor may feed a second parameter.
    if (kind.is_target && dice.chance(15)) {
      numbers_of_parameter.push_back({static_cast<int>(dice.roll(tensor_count))});
    }
    for (const auto& numbers : numbers_of_parameter) {
      if (!numbers.empty()) maker.add_parameter(numbers);
    }
    (kind.is_target ? world.target : world.source) = std::move(maker.layout);
    (kind.is_target ? world.wanted : world.held) = std::move(maker.side);
  }
  return world;
}

}  // namespace crossmesh::worlds
