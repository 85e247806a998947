// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/cut.h"

#include <algorithm>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/target/detail/expand.h"

namespace crossmesh::detail {
namespace {

constexpr std::int64_t kVocabUnit = 64;

struct Divided {
  std::string_view key;  // of the config, for the error
  std::int64_t extent;
};

std::int64_t divide(const Divided& divided, const Cutters& cutters) {
  if (divided.extent % cutters.count != 0) {
    throw Error(ErrorCode::mismatch,
                fmt::format("lay out: {} does not divide an extent", cutters.axes))
        .with("axis", fmt::format("{}={}", cutters.axes, cutters.count))
        .with("extent", fmt::format("{}={}", divided.key, divided.extent));
  }
  return divided.extent / cutters.count;
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

Slices cut_kv_heads(const Shape& shape, const ModelConfig& config, const Cutters& cutters) {
  const int tp = cutters.count;
  if (tp <= config.kv_heads) {
    const std::int64_t heads = divide({"num_key_value_heads", config.kv_heads}, cutters);
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

Slices cut_elements(const Rule& rule, const ModelConfig& config, const Cutters& cutters) {
  const int count = cutters.count;
  std::vector<std::int64_t> extents;
  for (const Extent extent : rule.shape) extents.push_back(value_of(extent, config));
  const Shape shape(std::span<const std::int64_t>{extents});
  const auto divide_dim = [&](int dim) {
    return divide({key_of(rule.shape[static_cast<std::size_t>(dim)]), shape[dim]}, cutters);
  };
  switch (rule.cut) {
    case Cut::replicate:
      return {count, {whole(shape)}, shape};
    case Cut::column:
      return cut_blocks(shape, 0, divide_dim(0), count);
    case Cut::row:
      return cut_blocks(shape, 1, divide_dim(1), count);
    case Cut::heads: {
      const std::int64_t heads = divide({"num_attention_heads", config.heads}, cutters);
      return cut_blocks(shape, 0, heads * (shape[0] / config.heads), count);
    }
    case Cut::kv_heads:
      return cut_kv_heads(shape, config, cutters);
    case Cut::vocab: {
      const std::int64_t padded = round_up(shape[0], kVocabUnit);
      return cut_blocks(shape, 0, divide({"padded vocab_size", padded}, cutters), count);
    }
  }
  return {};
}

// The scales of the blocks that lie in a box of their weight.
Box scales_of(const Box& box, const Shape& weight, std::int64_t block) {
  Box scales = box;
  for (int d = 0; d < weight.size(); ++d) {
    const std::int64_t end = box.origin[d] + box.shape[d];
    const bool is_inside = box.origin[d] % block != 0 || (end % block != 0 && end != weight[d]);
    if (is_inside) {
      throw Error(ErrorCode::unsupported, "lay out: a cut falls inside a block of scales")
          .with("box", to_string(box))
          .with("weight", to_string(weight))
          .with("block", block);
    }
    scales.origin[d] = box.origin[d] / block;
    scales.shape[d] = ceil_div(end, block) - scales.origin[d];
  }
  return scales;
}

}  // namespace

Slices cut(const Rule& rule, const ModelConfig& config, const Cutters& cutters) {
  Slices slices = cut_elements(rule, config, cutters);
  if (!rule.holds_scales) return slices;
  Shape weight;
  for (const Extent extent : rule.shape) weight.push_back(value_of(extent, config));
  for (Box& box : slices.box_of_role) box = scales_of(box, weight, config.scale_block);
  for (std::int64_t& extent : slices.local_shape) extent = ceil_div(extent, config.scale_block);
  return slices;
}

}  // namespace crossmesh::detail
