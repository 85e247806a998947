// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/oracle.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace crossmesh::oracle {
namespace {

using Indices = std::vector<std::int64_t>;

Indices count_up(std::int64_t count) {
  Indices indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(i);
  return indices;
}

// torch.chunk(indices, chunks)[which]; nothing past the last chunk.
Indices chunk(const Indices& indices, int chunks, int which) {
  const std::size_t size =
      (indices.size() + static_cast<std::size_t>(chunks) - 1) / static_cast<std::size_t>(chunks);
  Indices part;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i / size == static_cast<std::size_t>(which)) part.push_back(indices[i]);
  }
  return part;
}

// Flat indices of the product of per-dimension lists, in row-major order.
Indices flatten(const std::vector<Indices>& lists, const std::vector<std::int64_t>& shape) {
  Indices flat = {0};
  for (std::size_t d = 0; d < lists.size(); ++d) {
    Indices longer;
    for (const std::int64_t before : flat) {
      for (const std::int64_t index : lists[d]) longer.push_back(before * shape[d] + index);
    }
    flat = longer;
  }
  return flat;
}

int axis_size(const std::vector<Axis>& axes, const std::string& name) {
  for (const Axis& axis : axes) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int axis_coordinate(const std::vector<Axis>& axes, const std::string& name, int rank) {
  for (std::size_t a = axes.size(); a-- > 0;) {
    if (axes[a].name == name) return rank % axes[a].size;
    rank /= axes[a].size;
  }
  return 0;
}

Elements elements_of(int tensor, const Indices& flat) {
  Elements elements;
  for (const std::int64_t index : flat) elements.push_back({tensor, index});
  return elements;
}

}  // namespace

Side shard_naive(const std::vector<Tensor>& tensors, const std::vector<Axis>& axes) {
  int ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  Side side;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Elements>& held = side.elements.emplace_back();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Tensor& tensor = tensors[t];
      std::vector<Indices> lists;
      for (const std::int64_t extent : tensor.shape) lists.push_back(count_up(extent));
      if (tensor.tp_dim >= 0) {
        Indices& list = lists[static_cast<std::size_t>(tensor.tp_dim)];
        list = chunk(list, axis_size(axes, "tp"), axis_coordinate(axes, "tp", rank));
      }
      if (!lists.empty()) {
        lists[0] = chunk(lists[0], axis_size(axes, "fsdp"), axis_coordinate(axes, "fsdp", rank));
      }
      held.push_back(elements_of(static_cast<int>(t), flatten(lists, tensor.shape)));
    }
  }
  return side;
}

void place(Elements& parameter, int tensor, const RefinedPiece& piece) {
  std::int64_t count = 1;
  for (const auto& factors : piece.factors_of_dim) {
    for (const std::int64_t factor : factors) count *= factor;
  }
  // A flat index's digits, last factor of the last dimension first, are those of the whole radix.
  std::vector<std::int64_t> radix;
  for (const auto& factors : piece.factors_of_dim) {
    radix.insert(radix.end(), factors.begin(), factors.end());
  }
  for (std::int64_t index = 0; index < count; ++index) {
    bool is_inside = true;
    std::int64_t at = piece.offset;
    std::int64_t rest = index;
    for (std::size_t d = radix.size(); d-- > 0;) {
      const std::int64_t step = rest % radix[d] - piece.origin[d];
      rest /= radix[d];
      is_inside = is_inside && 0 <= step && step < piece.extent[d];
      at += step * piece.stride[d];
    }
    if (!is_inside) continue;
    if (at < 0 || at >= static_cast<std::int64_t>(parameter.size())) {
      throw std::logic_error("a piece lies outside its parameter");
    }
    Element& element = parameter[static_cast<std::size_t>(at)];
    if (element.tensor >= 0) throw std::logic_error("two pieces lie on one element");
    element = {tensor, index};
  }
}

// -- Engines -------------------------------------------------------------------------------------

namespace {

// Builds one engine rank; tensors and parameters are numbered as they are first named.
class RankBuilder {
 public:
  RankBuilder(Engine& engine, std::vector<Elements>& held) : engine_(engine), held_(held) {}

  int tensor(const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto found = std::ranges::find(engine_.tensors, name);
    if (found != engine_.tensors.end()) return static_cast<int>(found - engine_.tensors.begin());
    engine_.tensors.push_back(name);
    engine_.tensor_shapes.push_back(shape);
    return static_cast<int>(engine_.tensors.size()) - 1;
  }

  // `element_at(row, column)` says what each element is.
  void parameter(const std::string& name, std::int64_t rows, std::int64_t columns,
                 const std::function<Element(std::int64_t, std::int64_t)>& element_at) {
    if (held_.size() == engine_.parameters.size()) engine_.parameters.push_back(name);
    Elements& elements = held_.emplace_back();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        elements.push_back(element_at(row, column));
      }
    }
  }

  void whole_vector(const std::string& name, std::int64_t size) {
    const int number = tensor(name, {size});
    parameter(name, size, 1, [=](std::int64_t row, std::int64_t) { return Element{number, row}; });
  }

 private:
  Engine& engine_;
  std::vector<Elements>& held_;
};

struct Place {
  int tp = 1;
  int rank = 0;
};

void build_vocabulary(RankBuilder& builder, const std::string& name, const SmallModel& model,
                      Place place) {
  std::int64_t padded = model.vocabulary;
  while (padded % 64 != 0) ++padded;
  const std::int64_t rows = padded / place.tp;
  const int tensor = builder.tensor(name, {model.vocabulary, model.hidden});
  builder.parameter(name, rows, model.hidden, [&](std::int64_t row, std::int64_t column) {
    const std::int64_t word = place.rank * rows + row;
    return word < model.vocabulary ? Element{tensor, word * model.hidden + column} : Element{};
  });
}

// Weights for columns > 1, biases for columns == 1: both go by heads.
void build_qkv(RankBuilder& builder, const std::string& prefix, const std::string& kind,
               std::int64_t columns, const SmallModel& model, Place place) {
  const std::int64_t size = model.head_size;
  const auto shape = [&](std::int64_t heads) {
    return kind == "bias" ? std::vector{heads * size} : std::vector{heads * size, columns};
  };
  const int q = builder.tensor(prefix + "q_proj." + kind, shape(model.heads));
  const int k = builder.tensor(prefix + "k_proj." + kind, shape(model.kv_heads));
  const int v = builder.tensor(prefix + "v_proj." + kind, shape(model.kv_heads));
  const std::int64_t heads = model.heads / place.tp;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.kv_heads / place.tp);
  const std::int64_t first_kv_head = place.rank * model.kv_heads / place.tp;
  const auto element_at = [&](std::int64_t row, std::int64_t column) {
    const std::int64_t slot = row / size;
    int tensor = q;
    std::int64_t head = place.rank * heads + slot;
    if (slot >= heads) {
      tensor = slot < heads + kv_heads ? k : v;
      head = first_kv_head + (slot - heads) % kv_heads;
    }
    return Element{tensor, (head * size + row % size) * columns + column};
  };
  builder.parameter(prefix + "qkv_proj." + kind, (heads + 2 * kv_heads) * size, columns,
                    element_at);
}

void build_gate_up(RankBuilder& builder, const std::string& prefix, const std::string& kind,
                   std::int64_t columns, const SmallModel& model, Place place) {
  const auto shape =
      kind == "bias" ? std::vector{model.intermediate} : std::vector{model.intermediate, columns};
  const int gate = builder.tensor(prefix + "gate_proj." + kind, shape);
  const int up = builder.tensor(prefix + "up_proj." + kind, shape);
  const std::int64_t half = model.intermediate / place.tp;
  builder.parameter(prefix + "gate_up_proj." + kind, 2 * half, columns,
                    [&](std::int64_t row, std::int64_t column) {
                      const std::int64_t unit = place.rank * half + row % half;
                      return Element{row < half ? gate : up, unit * columns + column};
                    });
}

// A matrix whose input columns are split.
void build_row_parallel(RankBuilder& builder, const std::string& name, std::int64_t rows,
                        std::int64_t columns, Place place) {
  const int tensor = builder.tensor(name, {rows, columns});
  const std::int64_t local = columns / place.tp;
  builder.parameter(name, rows, local, [&](std::int64_t row, std::int64_t column) {
    return Element{tensor, row * columns + place.rank * local + column};
  });
}

void build_layer(RankBuilder& builder, const std::string& prefix, const SmallModel& model,
                 Place place) {
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  build_qkv(builder, attention, "weight", model.hidden, model, place);
  if (model.qkv_bias) build_qkv(builder, attention, "bias", 1, model, place);
  build_row_parallel(builder, attention + "o_proj.weight", model.hidden,
                     model.heads * model.head_size, place);
  if (model.o_bias) builder.whole_vector(attention + "o_proj.bias", model.hidden);
  if (model.qk_norm) {
    builder.whole_vector(attention + "q_norm.weight", model.head_size);
    builder.whole_vector(attention + "k_norm.weight", model.head_size);
  }
  build_gate_up(builder, mlp, "weight", model.hidden, model, place);
  if (model.mlp_bias) build_gate_up(builder, mlp, "bias", 1, model, place);
  build_row_parallel(builder, mlp + "down_proj.weight", model.hidden, model.intermediate, place);
  if (model.mlp_bias) builder.whole_vector(mlp + "down_proj.bias", model.hidden);
  builder.whole_vector(prefix + "input_layernorm.weight", model.hidden);
  builder.whole_vector(prefix + "post_attention_layernorm.weight", model.hidden);
}

}  // namespace

Engine engine_naive(const SmallModel& model, const EngineMesh& mesh) {
  Engine engine;
  for (int rank = 0; rank < mesh.replicas * mesh.tp; ++rank) {
    RankBuilder builder(engine, engine.side.elements.emplace_back());
    const Place place{mesh.tp, rank % mesh.tp};
    build_vocabulary(builder, "model.embed_tokens.weight", model, place);
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      build_layer(builder, "model.layers." + std::to_string(layer) + ".", model, place);
    }
    builder.whole_vector("model.norm.weight", model.hidden);
    if (!model.tied) build_vocabulary(builder, "lm_head.weight", model, place);
  }
  return engine;
}

// -- Moving --------------------------------------------------------------------------------------

Side move_naive(const Side& source, const Side& target) {
  // holder[tensor][index]: the first place on any source rank.
  std::vector<std::vector<const Element*>> holder;
  for (const auto& held : source.elements) {
    for (const Elements& parameter : held) {
      for (const Element& element : parameter) {
        if (element.tensor < 0) continue;
        const auto tensor = static_cast<std::size_t>(element.tensor);
        const auto index = static_cast<std::size_t>(element.index);
        if (holder.size() <= tensor) holder.resize(tensor + 1);
        if (holder[tensor].size() <= index) holder[tensor].resize(index + 1, nullptr);
        if (holder[tensor][index] == nullptr) holder[tensor][index] = &element;
      }
    }
  }
  Side moved = target;
  for (auto& held : moved.elements) {
    for (Elements& parameter : held) {
      for (Element& element : parameter) {
        if (element.tensor < 0) continue;
        const auto tensor = static_cast<std::size_t>(element.tensor);
        const auto index = static_cast<std::size_t>(element.index);
        const bool is_held = tensor < holder.size() && index < holder[tensor].size() &&
                             holder[tensor][index] != nullptr;
        element = is_held ? *holder[tensor][index] : Element{};
      }
    }
  }
  return moved;
}

}  // namespace crossmesh::oracle
