// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/source/shard.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/mesh.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 6> kAxes = {"pp", "dp_replicate", "fsdp", "ep", "etp", "tp"};

// The dimension that tp splits (etp of an expert), by the end of a tensor's name; other tensors are
// replicated.
struct TpRule {
  std::string_view suffix;
  int dim;
};

constexpr int kWhole = -1;

constexpr TpRule kTpRules[] = {
    {"self_attn.q_proj.weight", 0},
    {"self_attn.k_proj.weight", 0},
    {"self_attn.v_proj.weight", 0},
    {"self_attn.q_proj.bias", 0},
    {"self_attn.k_proj.bias", 0},
    {"self_attn.v_proj.bias", 0},
    {"mlp.gate_proj.weight", 0},
    {"mlp.up_proj.weight", 0},
    {"mlp.gate_proj.bias", 0},
    {"mlp.up_proj.bias", 0},
    {"embed_tokens.weight", 0},
    {"lm_head.weight", 0},
    {"self_attn.o_proj.weight", 1},
    {"mlp.down_proj.weight", 1},
    // Latent attention and shared experts.
    {"self_attn.q_b_proj.weight", 0},
    {"self_attn.kv_b_proj.weight", 0},
    {"shared_experts.gate_proj.weight", 0},
    {"shared_experts.up_proj.weight", 0},
    {"shared_experts.down_proj.weight", 1},
};

constexpr TpRule kEtpRules[] = {
    {"gate_proj.weight", 0}, {"up_proj.weight", 0}, {"down_proj.weight", 1},
    {"w1.weight", 0},        {"w3.weight", 0},      {"w2.weight", 1},
};

// Of a tensor that stacks all experts of a layer on dimension 0.
constexpr TpRule kStackRules[] = {{"experts.gate_up_proj", 1}, {"experts.down_proj", 2}};

// Each expert's gate there lies above its up, and etp cuts both alike.
constexpr std::string_view kGateAndUp = "experts.gate_up_proj";

// A suffix counts only where a word of the name starts.
bool ends_with_words(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

int split_dim_of(const TensorInfo& tensor, std::span<const TpRule> rules) {
  for (const TpRule& rule : rules) {
    if (ends_with_words(tensor.name, rule.suffix)) {
      return rule.dim < static_cast<int>(tensor.shape.size()) ? rule.dim : kWhole;
    }
  }
  return kWhole;
}

constexpr std::int64_t kNone = -1;

// The number that a word of a name is, if it is one that may count layers or experts.
std::int64_t number_of(std::string_view word) {
  std::int64_t number = 0;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number);
  const bool is_number = error == std::errc() && at == end && number >= 0;
  return is_number && number < std::numeric_limits<int>::max() ? number : kNone;
}

// What a name says of a tensor's place in the model.
struct Place {
  std::int64_t layer = kNone;   // the first word that is a number
  std::int64_t expert = kNone;  // the number after the word `experts`
  bool is_stack = false;        // another word is after it, the last: of all experts
  bool is_embedding = false;    // a word begins with `embed`
};

Place place_of(std::string_view name) {
  Place place;
  std::string_view before;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (place.layer == kNone) place.layer = number_of(word);
    if (before == "experts" && place.expert == kNone) {
      place.expert = number_of(word);
      place.is_stack = place.expert == kNone && end == name.size();
    }
    if (word.starts_with("embed")) place.is_embedding = true;
    before = word;
    begin = end + 1;
  }
  return place;
}

// How the tensors of one geometry are split: over `fsdp_count` on dimension 0, before that over
// `tp_count` on `tp_dim`, each of `tp_parts` equal parts alone, and before that a stack of experts
// over `ep_count` on dimension 0. A count of 1 splits nothing.
struct Split {
  int fsdp_count = 1;
  int tp_count = 1;
  int tp_dim = kWhole;
  int tp_parts = 1;
  int ep_count = 1;

  int role_count() const { return ep_count * tp_count * fsdp_count; }
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

// A box for each of the parts. Roles count fsdp fastest, then tp.
std::vector<Box> boxes_of_role(const Shape& shape, const Split& split, int role) {
  const int fsdp = role % split.fsdp_count;
  const int tp = role / split.fsdp_count % split.tp_count;
  const int ep = role / split.fsdp_count / split.tp_count;
  std::vector<Box> boxes;
  for (int part = 0; part < split.tp_parts; ++part) {
    Box box = whole(shape);
    if (split.ep_count > 1) box = narrow(box, 0, split.ep_count, ep);
    if (split.tp_parts > 1) box = narrow(box, split.tp_dim, split.tp_parts, part);
    if (split.tp_count > 1) box = narrow(box, split.tp_dim, split.tp_count, tp);
    if (split.fsdp_count > 1) box = narrow(box, 0, split.fsdp_count, fsdp);
    boxes.push_back(box);
  }
  return boxes;
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
  Split split;
};

enum class Kind : std::uint8_t { plain, expert, stack };

// Orders tensors so that those of one geometry are equal.
struct Geometry {
  DType dtype;
  int tp_dim;
  int tp_parts;
  Kind kind;
  std::span<const std::int64_t> shape;

  bool operator<(const Geometry& other) const {
    const auto key = [](const Geometry& g) {
      return std::tuple(g.dtype, g.tp_dim, g.tp_parts, g.kind);
    };
    if (key(*this) != key(other)) return key(*this) < key(other);
    return std::ranges::lexicographical_compare(shape, other.shape);
  }
};

// Which ranks hold the shards of a tensor.
struct Holders {
  bool splits_fsdp;
  bool splits_tp;
  Kind kind;
  int ep = 0;  // an expert's coordinate
  int stage = 0;

  auto operator<=>(const Holders&) const = default;
};

// Where `index` of `count` lies when `parts` contiguous blocks share them, the first one more.
int block_of(std::int64_t index, std::int64_t count, int parts) {
  const std::int64_t fewer = count / parts;
  const std::int64_t longer = count % parts;
  const std::int64_t in_longer = longer * (fewer + 1);
  if (index < in_longer) return static_cast<int>(index / (fewer + 1));
  return static_cast<int>(longer + (index - in_longer) / fewer);
}

class Sharder {
 public:
  Sharder(const Mesh& mesh, const Catalog& catalog, Layout& layout)
      : mesh_(mesh), interner_(layout) {
    places_.reserve(catalog.tensors.size());
    for (const TensorInfo& tensor : catalog.tensors) {
      places_.push_back(place_of(tensor.name));
      const Place& place = places_.back();
      layer_count_ = std::max(layer_count_, place.layer + 1);
      if (place.expert == kNone) continue;
      std::int64_t& count = expert_count_of_layer_[place.layer];
      count = std::max(count, place.expert + 1);
    }
    require_layers();
  }

  // Adds the parameter and the instance of a tensor.
  void add(const TensorInfo& tensor, int index, Layout& layout) {
    const Place& place = places_[static_cast<std::size_t>(index)];
    const Geometry geometry = geometry_of(tensor, place);
    auto known = shards_.find(geometry);
    if (known == shards_.end()) known = shards_.emplace(geometry, make(tensor, geometry)).first;
    const Shard& shard = known->second;
    const int ep = geometry.kind == Kind::expert
                       ? block_of(place.expert, expert_count_of_layer_.at(place.layer),
                                  size_of_axis(mesh_, "ep"))
                       : 0;
    const int binding = binding_of(
        shard.split,
        {shard.split.fsdp_count > 1, shard.split.tp_count > 1, geometry.kind, ep, stage_of(place)});
    layout.parameters.push_back({tensor.name, shard.parameter_class, binding, index});
    layout.instances.push_back({index, index, shard.layout_class, binding, 0, -1});
  }

 private:
  static Geometry geometry_of(const TensorInfo& tensor, const Place& place) {
    if (place.expert != kNone) {
      return {tensor.dtype, split_dim_of(tensor, kEtpRules), 1, Kind::expert, tensor.shape};
    }
    if (!place.is_stack || tensor.shape.size() < 2) {
      return {tensor.dtype, split_dim_of(tensor, kTpRules), 1, Kind::plain, tensor.shape};
    }
    const int dim = split_dim_of(tensor, kStackRules);
    const bool is_packed = dim != kWhole && ends_with_words(tensor.name, kGateAndUp) &&
                           tensor.shape[static_cast<std::size_t>(dim)] % 2 == 0;
    return {tensor.dtype, dim, is_packed ? 2 : 1, Kind::stack, tensor.shape};
  }

  void require_layers() const {
    const int stages = size_of_axis(mesh_, "pp");
    if (stages == 1 || stages <= layer_count_) return;
    throw Error(ErrorCode::mismatch, "shard: fewer layers than stages")
        .with("axis", fmt::format("pp={}", stages))
        .with("layers", layer_count_);
  }

  int stage_of(const Place& place) const {
    const int stages = size_of_axis(mesh_, "pp");
    if (place.layer != kNone) return stage_of_layer(place.layer, layer_count_, stages);
    return place.is_embedding ? 0 : stages - 1;
  }

  Split split_of(const Geometry& geometry) const {
    Split split;
    const bool is_plain = geometry.kind == Kind::plain;
    const int expert_ranks = size_of_axis(mesh_, "ep") * size_of_axis(mesh_, "etp");
    if (!geometry.shape.empty()) {
      split.fsdp_count = size_of_axis(mesh_, "fsdp") * (is_plain ? expert_ranks : 1);
    }
    if (geometry.tp_dim != kWhole) split.tp_count = size_of_axis(mesh_, is_plain ? "tp" : "etp");
    if (geometry.kind == Kind::stack) split.ep_count = size_of_axis(mesh_, "ep");
    split.tp_dim = geometry.tp_dim;
    split.tp_parts = split.tp_count > 1 ? geometry.tp_parts : 1;
    return split;
  }

  Shard make(const TensorInfo& tensor, const Geometry& of) {
    const Split split = split_of(of);
    LayoutClass geometry{Space::plain(tensor.shape), tensor.dtype, {}};
    ParameterClass parameter{tensor.dtype, {}, {}, {}};
    const Shape shape(std::span<const std::int64_t>(tensor.shape));
    for (int role = 0; role < split.role_count(); ++role) {
      const std::vector<Box> boxes = boxes_of_role(shape, split, role);
      Shape local = boxes[0].shape;
      if (split.tp_parts > 1) local[split.tp_dim] *= split.tp_parts;
      const Strides strides = contiguous_strides(local);
      std::vector<Piece>& pieces = geometry.pieces_of_role.emplace_back();
      std::int64_t offset = 0;
      for (const Box& box : boxes) {
        if (is_empty(box)) continue;
        require_bytes(tensor, box);
        pieces.push_back({box, {offset, strides}});
        if (split.tp_parts > 1) offset += box.shape[split.tp_dim] * strides[split.tp_dim];
      }
      parameter.shape_of_role.push_back(local);
      parameter.strides_of_role.push_back(strides);
    }
    return {interner_.layout_class(std::move(geometry)),
            interner_.parameter_class(std::move(parameter)), split};
  }

  static void require_bytes(const TensorInfo& tensor, const Box& box) {
    const Shape shape(std::span<const std::int64_t>(tensor.shape));
    if (falls_on_bytes(shape, tensor.dtype, box)) return;
    throw Error(ErrorCode::unsupported, "shard: a cut falls inside a byte")
        .with("dtype", name_of(tensor.dtype))
        .with("shape", to_string(shape))
        .with("box", to_string(box));
  }

  // A rank's number among those that share dense tensors: fsdp, ep and etp in the order written.
  int data_coordinate(int rank) const {
    int number = 0;
    for (const MeshAxis& axis : mesh_.axes) {
      if (axis.name != "fsdp" && axis.name != "ep" && axis.name != "etp") continue;
      number = number * axis.size + rank / axis.stride % axis.size;
    }
    return number;
  }

  int role_of(const Split& split, const Holders& holders, int rank) const {
    if (coordinate(mesh_, "pp", rank) != holders.stage) return -1;
    const bool is_plain = holders.kind == Kind::plain;
    const int ep = coordinate(mesh_, "ep", rank);
    if (holders.kind == Kind::expert && ep != holders.ep) return -1;
    const int data = is_plain ? data_coordinate(rank) : coordinate(mesh_, "fsdp", rank);
    const int fsdp = holders.splits_fsdp ? data : 0;
    const int tp = holders.splits_tp ? coordinate(mesh_, is_plain ? "tp" : "etp", rank) : 0;
    const int block = holders.kind == Kind::stack ? ep : 0;
    return (block * split.tp_count + tp) * split.fsdp_count + fsdp;
  }

  int binding_of(const Split& split, const Holders& holders) {
    const auto known = bindings_.find(holders);
    if (known != bindings_.end()) return known->second;
    Binding binding;
    binding.role_of_rank.reserve(static_cast<std::size_t>(mesh_.rank_count));
    for (int rank = 0; rank < mesh_.rank_count; ++rank) {
      binding.role_of_rank.push_back(role_of(split, holders, rank));
    }
    return bindings_[holders] = interner_.binding(std::move(binding));
  }

  const Mesh& mesh_;
  Interner interner_;
  std::vector<Place> places_;  // by tensor
  std::int64_t layer_count_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> expert_count_of_layer_;
  std::map<Geometry, Shard> shards_;
  std::map<Holders, int> bindings_;
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

  Sharder sharder(mesh, catalog, layout);
  for (const TensorInfo& tensor : catalog.tensors) {
    try {
      sharder.add(tensor, static_cast<int>(layout.parameters.size()), layout);
    } catch (Error& error) {
      error.with("tensor", tensor.name);
      throw;
    }
  }
  return layout;
}

}  // namespace crossmesh
