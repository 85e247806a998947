// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/put.h"

#include <cstring>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/geometry/loop_nest.h"
#include "crossmesh/memory/copy.h"

namespace crossmesh {
namespace {

template <typename Value>
const Value& at(const std::vector<Value>& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

int role_of(const Layout& layout, int binding, int rank) {
  return at(at(layout.bindings, binding).role_of_rank, rank);
}

void put_piece(const LayoutClass& c, const Piece& piece, const HeldTensor& held,
               std::byte* parameter, std::int64_t offset) {
  const std::int64_t source_bytes = byte_size(held.dtype);
  const std::int64_t target_bytes = byte_size(c.dtype);
  const ElementLoops loops{piece.box.shape, contiguous_strides(c.space.factors), piece.view.strides,
                           static_cast<std::int32_t>(source_bytes),
                           static_cast<std::int32_t>(target_bytes)};
  std::int64_t source = 0;
  for (int d = 0; d < loops.counts.size(); ++d) {
    source += piece.box.origin[d] * loops.source_strides[d];
  }
  convert(held.bytes + source * source_bytes,
          parameter + (offset + piece.view.offset) * target_bytes, coalesce(loops), held.dtype,
          c.dtype);
}

void fill(const StridedRegion& region, std::int64_t element_bytes, std::uint64_t value,
          std::byte* parameter) {
  const Shape& shape = region.shape;
  Index index = Index::filled(shape.size(), 0);
  for (std::int64_t left = volume(whole(shape)); left > 0; --left) {
    std::int64_t place = region.view.offset;
    for (int d = 0; d < shape.size(); ++d) place += index[d] * region.view.strides[d];
    std::memcpy(parameter + place * element_bytes, &value, static_cast<std::size_t>(element_bytes));
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

}  // namespace

Putter::Putter(const Layout& layout, int rank, std::vector<std::byte*> parameters)
    : layout_(layout),
      rank_(rank),
      parameters_(std::move(parameters)),
      instances_of_tensor_(layout.tensors.size()) {
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    const Instance& instance = layout.instances[i];
    if (instance.opaque_reason >= 0 || role_of(layout, instance.binding, rank) < 0) continue;
    instances_of_tensor_[static_cast<std::size_t>(instance.tensor)].push_back(static_cast<int>(i));
  }
}

void Putter::put(int tensor, const HeldTensor& held) const {
  const std::vector<int>& instances = at(instances_of_tensor_, tensor);
  for (const int i : instances) {
    const DType dtype = at(layout_.classes, at(layout_.instances, i).layout_class).dtype;
    if (held.dtype == dtype || is_castable(held.dtype, dtype)) continue;
    throw Error(ErrorCode::unsupported, "put: no conversion between the dtypes of a tensor")
        .with("tensor", at(layout_.tensors, tensor).name)
        .with("source dtype", name_of(held.dtype))
        .with("target dtype", name_of(dtype));
  }
  for (const int i : instances) {
    const Instance& instance = at(layout_.instances, i);
    const LayoutClass& c = at(layout_.classes, instance.layout_class);
    for (const Piece& piece : at(c.pieces_of_role, role_of(layout_, instance.binding, rank_))) {
      put_piece(c, piece, held, at(parameters_, instance.parameter), instance.offset);
    }
  }
}

void Putter::put_fills() const {
  for (std::size_t p = 0; p < layout_.parameters.size(); ++p) {
    const Parameter& parameter = layout_.parameters[p];
    const int role = role_of(layout_, parameter.binding, rank_);
    if (role < 0) continue;
    const ParameterClass& c = at(layout_.parameter_classes, parameter.parameter_class);
    for (const Reserve& reserve : c.reserves) {
      if (reserve.kind != Reserve::Kind::fill || reserve.role != role) continue;
      fill(reserve.region, byte_size(c.dtype), reserve.value_bits, parameters_[p]);
    }
  }
}

}  // namespace crossmesh
