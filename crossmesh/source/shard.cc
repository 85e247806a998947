// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/source/shard.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/mesh.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 3> kAxes = {"dp_replicate", "fsdp", "tp"};

// The dimension that tp splits, by the end of a tensor's name; other tensors are replicated.
struct TpRule {
  std::string_view suffix;
  int dim;
};

constexpr int kWhole = -1;

constexpr TpRule kTpRules[] = {
    {"self_attn.q_proj.weight", 0}, {"self_attn.k_proj.weight", 0}, {"self_attn.v_proj.weight", 0},
    {"self_attn.q_proj.bias", 0},   {"self_attn.k_proj.bias", 0},   {"self_attn.v_proj.bias", 0},
    {"mlp.gate_proj.weight", 0},    {"mlp.up_proj.weight", 0},      {"mlp.gate_proj.bias", 0},
    {"mlp.up_proj.bias", 0},        {"embed_tokens.weight", 0},     {"lm_head.weight", 0},
    {"self_attn.o_proj.weight", 1}, {"mlp.down_proj.weight", 1},
};

// A suffix counts only where a word of the name starts.
bool ends_with_words(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

int tp_dim_of(const TensorInfo& tensor) {
  for (const TpRule& rule : kTpRules) {
    if (ends_with_words(tensor.name, rule.suffix)) {
      return rule.dim < static_cast<int>(tensor.shape.size()) ? rule.dim : kWhole;
    }
  }
  return kWhole;
}

// How the tensors of one geometry are split: over `fsdp_count` on dimension 0, and over `tp_count`
// on `tp_dim` before that. A count of 1 splits nothing.
struct Split {
  int fsdp_count = 1;
  int tp_count = 1;
  int tp_dim = kWhole;

  int role_count() const { return fsdp_count * tp_count; }
};

struct Interval {
  std::int64_t begin;
  std::int64_t end;
};

// Chunk `index` of `count`, as torch.chunk cuts: equal chunks rounded up, the last ones short or
// empty.
Interval chunk(Interval whole, int count, int index) {
  const std::int64_t size = ceil_div(whole.end - whole.begin, count);
  const auto cut = [&](std::int64_t i) {
    return std::min(whole.end, checked_add(whole.begin, checked_mul(i, size)));
  };
  return {cut(index), cut(index + 1)};
}

Box narrow(Box box, int dim, int count, int index) {
  const Interval part = chunk({box.origin[dim], box.origin[dim] + box.shape[dim]}, count, index);
  box.origin[dim] = part.begin;
  box.shape[dim] = part.end - part.begin;
  return box;
}

// Roles count fsdp fastest.
Box box_of_role(const Shape& shape, const Split& split, int role) {
  Box box = whole(shape);
  if (split.tp_count > 1) box = narrow(box, split.tp_dim, split.tp_count, role / split.fsdp_count);
  if (split.fsdp_count > 1) box = narrow(box, 0, split.fsdp_count, role % split.fsdp_count);
  return box;
}

// Sub-byte elements may be cut only between bytes: where each dimension's cut starts and how much
// it takes must both fill bytes.
bool falls_on_bytes(const Shape& shape, DType dtype, const Box& box) {
  std::int64_t inner = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (box.shape[d] != shape[d] &&
        (!bytes_of(dtype, box.origin[d] * inner) || !bytes_of(dtype, box.shape[d] * inner))) {
      return false;
    }
    inner *= shape[d];
  }
  return true;
}

// What all tensors of one geometry share.
struct Shard {
  int layout_class;
  int parameter_class;
  int binding;
};

// Orders tensors so that those of one geometry are equal.
struct Geometry {
  DType dtype;
  int tp_dim;
  std::span<const std::int64_t> shape;

  bool operator<(const Geometry& other) const {
    if (dtype != other.dtype) return dtype < other.dtype;
    if (tp_dim != other.tp_dim) return tp_dim < other.tp_dim;
    return std::ranges::lexicographical_compare(shape, other.shape);
  }
};

class Sharder {
 public:
  Sharder(const Mesh& mesh, Layout& layout) : mesh_(mesh), interner_(layout) {}

  Shard shard_of(const TensorInfo& tensor) {
    const Geometry geometry{tensor.dtype, tp_dim_of(tensor), tensor.shape};
    const auto known = shards_.find(geometry);
    if (known != shards_.end()) return known->second;
    return shards_.emplace(geometry, make(tensor, geometry.tp_dim)).first->second;
  }

 private:
  Shard make(const TensorInfo& tensor, int tp_dim) {
    Split split;
    if (!tensor.shape.empty()) split.fsdp_count = size_of_axis(mesh_, "fsdp");
    if (tp_dim != kWhole) split.tp_count = size_of_axis(mesh_, "tp");
    split.tp_dim = tp_dim;

    LayoutClass geometry{Space::plain(tensor.shape), tensor.dtype, {}};
    ParameterClass parameter{tensor.dtype, {}, {}, {}};
    const Shape shape(std::span<const std::int64_t>(tensor.shape));
    for (int role = 0; role < split.role_count(); ++role) {
      const Box box = box_of_role(shape, split, role);
      const Strides strides = contiguous_strides(box.shape);
      std::vector<Piece>& pieces = geometry.pieces_of_role.emplace_back();
      if (!is_empty(box)) pieces.push_back({box, {0, strides}});
      if (!is_empty(box) && !falls_on_bytes(shape, tensor.dtype, box)) {
        throw Error(ErrorCode::unsupported, "shard: a cut falls inside a byte")
            .with("dtype", name_of(tensor.dtype))
            .with("shape", to_string(shape))
            .with("box", to_string(box));
      }
      parameter.shape_of_role.push_back(box.shape);
      parameter.strides_of_role.push_back(strides);
    }
    return {interner_.layout_class(std::move(geometry)),
            interner_.parameter_class(std::move(parameter)), binding_of(split)};
  }

  int binding_of(const Split& split) {
    const auto key = std::pair(split.fsdp_count > 1, split.tp_count > 1);
    const auto known = bindings_.find(key);
    if (known != bindings_.end()) return known->second;
    Binding binding;
    binding.role_of_rank.reserve(static_cast<std::size_t>(mesh_.rank_count));
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      const int fsdp = split.fsdp_count > 1 ? coordinate(mesh_, "fsdp", rank) : 0;
      const int tp = split.tp_count > 1 ? coordinate(mesh_, "tp", rank) : 0;
      binding.role_of_rank.push_back(tp * split.fsdp_count + fsdp);
    }
    return bindings_[key] = interner_.binding(std::move(binding));
  }

  const Mesh& mesh_;
  Interner interner_;
  std::map<Geometry, Shard> shards_;
  std::map<std::pair<bool, bool>, int> bindings_;
};

}  // namespace

Layout shard(const Catalog& catalog, const Spec& spec) {
  const Mesh mesh = mesh_of(spec, {"trainer", kAxes});
  Layout layout;
  layout.rank_count = mesh.rank_count;
  layout.replica_of_rank.assign(static_cast<std::size_t>(mesh.rank_count), 0);
  layout.tensors = catalog.tensors;
  layout.parameters.reserve(catalog.tensors.size());
  layout.instances.reserve(catalog.tensors.size());

  Sharder sharder(mesh, layout);
  for (const TensorInfo& tensor : catalog.tensors) {
    try {
      const Shard shard = sharder.shard_of(tensor);
      const int index = static_cast<int>(layout.parameters.size());
      layout.parameters.push_back({tensor.name, shard.parameter_class, shard.binding, index});
      layout.instances.push_back({index, index, shard.layout_class, shard.binding, 0, -1});
    } catch (Error& error) {
      error.with("tensor", tensor.name);
      throw;
    }
  }
  return layout;
}

}  // namespace crossmesh
