// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/numberer.h"

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

int Numberer::numbering_of(int layout_class, int role, int piece) {
  const auto [known, is_new] = of_piece_.try_emplace({layout_class, role, piece}, -1);
  if (!is_new) return known->second;
  const LayoutClass& geometry = plan_.target.classes[at(layout_class)];
  const Piece& p = geometry.pieces_of_role[at(role)][at(piece)];
  const Shape& factors = geometry.space.factors;
  const View in_tensor = restrict({0, contiguous_strides(factors)}, whole(factors), p.box);
  const auto width = static_cast<std::int32_t>(byte_size(geometry.dtype));
  const std::optional<Numbering> numbering = number(
      {p.box.shape, p.view.strides, in_tensor.strides, width, width}, in_tensor.offset * width);
  if (!numbering) return -1;
  numberings_.push_back(*numbering);
  return known->second = static_cast<int>(numberings_.size()) - 1;
}

TensorPart Numberer::part_of_whole(const Step& step, const TensorInfo& tensor, int tensor_index) {
  const std::int64_t bytes = byte_count(tensor);
  const auto [known, is_new] = of_whole_.try_emplace(bytes, static_cast<int>(numberings_.size()));
  if (is_new) numberings_.push_back({{}, {}, {}, bytes, 0});
  return {tensor_index, known->second, step.target.offset * byte_size(tensor.dtype)};
}

TensorPart Numberer::part_of(const Step& step, int target_rank) {
  const PlanInstance& instance = plan_.instances[at(step.instance)];
  const int tensor_index = plan_.source.instances[at(instance.source_instance)].tensor;
  const TensorInfo& tensor = plan_.source.tensors[at(tensor_index)];
  if (step.whole_tensor) return part_of_whole(step, tensor, tensor_index);
  const Instance& target = plan_.target.instances[at(instance.target_instance)];
  const int role = plan_.target.bindings[at(target.binding)].role_of_rank[at(target_rank)];
  const LayoutClass& geometry = plan_.target.classes[at(target.layout_class)];
  const auto& pieces = geometry.pieces_of_role[at(role)];
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::int64_t elements = step.target.offset - target.offset - pieces[p].view.offset;
    const std::int64_t place = elements * byte_size(geometry.dtype);
    const int numbering = numbering_of(target.layout_class, role, static_cast<int>(p));
    if (numbering < 0 || !is_place(numberings_[at(numbering)], place)) continue;
    return {tensor_index, numbering, place};
  }
  throw Error(ErrorCode::internal, "digest: a copy lies in no piece of its target")
      .with("tensor", tensor.name)
      .with("engine", target_rank)
      .with("offset", step.target.offset);
}

}  // namespace crossmesh::detail
