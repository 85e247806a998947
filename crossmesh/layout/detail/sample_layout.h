// SPDX-License-Identifier: Apache-2.0
// Layouts that this module's tests share: one that uses every part of the form, and one of any
// number of names and ranks.
#pragma once

#include <string>
#include <vector>

#include "crossmesh/layout/interner.h"
#include "crossmesh/layout/layout.h"

namespace crossmesh {

// Two replicas of two ranks. `w` interleaves its rows over the ranks, `q` and `k` share a
// parameter, `head` is tied to `embed`, whose last row on role 1 is padding, `odd` is opaque,
// `rope.inverse` takes no tensor.
inline Layout sample_layout() {
  Layout layout;
  layout.model = "main";
  layout.rank_count = 4;
  layout.replica_of_rank = {0, 0, 1, 1};
  layout.reasons = {"its loader sorts rows"};
  layout.unused = {{"lm_head.weight", "tied to embed.weight"}};
  Interner interner(layout);
  const int split = interner.binding({{0, 1, 0, 1}});
  const int first_only = interner.binding({{0, -1, 0, -1}});

  // Contiguous rows, `lead` of them on role 0.
  const auto rows = [](std::int64_t count, std::int64_t lead) {
    LayoutClass c{Space::plain(std::vector<std::int64_t>{count, 3}), DType::bf16, {}};
    c.pieces_of_role = {{{{{0, 0}, {lead, 3}}, {0, {3, 1}}}},
                        {{{{lead, 0}, {count - lead, 3}}, {0, {3, 1}}}}};
    return c;
  };
  const int embed_class = interner.layout_class(rows(5, 3));
  const int q_class = interner.layout_class(rows(4, 2));
  LayoutClass interleaved{{{2, 2, 3}, {2, 1}}, DType::bf16, {}};
  interleaved.pieces_of_role = {{{{{0, 0, 0}, {2, 1, 3}}, {0, {3, 3, 1}}}},
                                {{{{0, 1, 0}, {2, 1, 3}}, {0, {3, 3, 1}}}}};
  const int w_class = interner.layout_class(interleaved);
  LayoutClass odd{Space::plain(std::vector<std::int64_t>{4}), DType::f32, {}};
  odd.pieces_of_role = {{{{{0}, {1}}, {3, {1}}}, {{{1}, {3}}, {2, {-1}}}}, {}};
  const int odd_class = interner.layout_class(odd);

  const Reserve padding{
      Reserve::Kind::fill, 1, {{1, 3}, {6, {3, 1}}}, 0x3f80, "vocabulary padding"};
  const int embed_parameter =
      interner.parameter_class({DType::bf16, {{3, 3}, {3, 3}}, {}, {padding}});
  const int fused = interner.parameter_class({DType::bf16, {{4, 3}, {4, 3}}, {}, {}});
  const int rows_of_two = interner.parameter_class({DType::bf16, {{2, 3}, {2, 3}}, {}, {}});
  const int four = interner.parameter_class({DType::f32, {{4}}, {}, {}});

  layout.tensors.push_back({"embed.weight", DType::bf16, {5, 3}});
  layout.parameters.push_back({"embed.weight", embed_parameter, split, 0});
  layout.parameters.push_back({"head.weight", embed_parameter, split, 0});
  layout.instances.push_back({0, 0, embed_class, split, 0, -1});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    const int tensor = static_cast<int>(layout.tensors.size());
    const int parameter = static_cast<int>(layout.parameters.size());
    for (const char* name : {".q.weight", ".k.weight", ".w.weight"}) {
      layout.tensors.push_back({prefix + name, DType::bf16, {4, 3}});
    }
    layout.parameters.push_back({prefix + ".qk.weight", fused, split, parameter});
    layout.parameters.push_back({prefix + ".w.weight", rows_of_two, split, parameter + 1});
    layout.instances.push_back({tensor, parameter, q_class, split, 0, -1});
    layout.instances.push_back({tensor + 1, parameter, q_class, split, 6, -1});
    layout.instances.push_back({tensor + 2, parameter + 1, w_class, split, 0, -1});
  }
  const Reserve kept{Reserve::Kind::kept, 0, {{4}, {0, {1}}}, 0, "set by the engine"};
  const int kept_class = interner.parameter_class({DType::f32, {{4}}, {}, {kept}});
  const int kept_index = static_cast<int>(layout.parameters.size());
  layout.parameters.push_back({"rope.inverse", kept_class, first_only, kept_index});
  const int odd_index = static_cast<int>(layout.parameters.size());
  layout.parameters.push_back({"odd", four, first_only, odd_index});
  layout.instances.push_back(
      {static_cast<int>(layout.tensors.size()), odd_index, odd_class, first_only, 0, 0});
  layout.tensors.push_back({"odd", DType::f32, {7}});
  return layout;
}

// `name_count` tensors of one geometry, split by rows over 4 roles that all ranks play in turn.
inline Layout uniform_layout(int name_count, int rank_count) {
  Layout layout;
  layout.rank_count = rank_count;
  Interner interner(layout);
  Binding binding;
  for (int rank = 0; rank < rank_count; ++rank) {
    layout.replica_of_rank.push_back(rank / 4);
    binding.role_of_rank.push_back(rank % 4);
  }
  LayoutClass rows{Space::plain(std::vector<std::int64_t>{8, 16}), DType::bf16, {}};
  for (std::int64_t role = 0; role < 4; ++role) {
    rows.pieces_of_role.push_back({{{{2 * role, 0}, {2, 16}}, {0, {16, 1}}}});
  }
  const int b = interner.binding(binding);
  const int c = interner.layout_class(rows);
  const int p = interner.parameter_class({DType::bf16, std::vector<Shape>(4, {2, 16}), {}, {}});
  for (int name = 0; name < name_count; ++name) {
    const std::string text = "layers." + std::to_string(name) + ".weight";
    layout.tensors.push_back({text, DType::bf16, {8, 16}});
    layout.parameters.push_back({text, p, b, name});
    layout.instances.push_back({name, name, c, b, 0, -1});
  }
  return layout;
}

}  // namespace crossmesh
