// SPDX-License-Identifier: Apache-2.0
#include "cli/move_trainer.h"

#include <cstring>

#include "cli/versions.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/loop_nest.h"
#include "crossmesh/session/place.h"

namespace crossmesh::cli {
namespace {

// Calls visit(source offset, target offset) for each run of the nest, in bytes.
template <typename Visit>
void for_each_run(const LoopNest& nest, const Visit& visit, int loop = 0, std::int64_t source = 0,
                  std::int64_t target = 0) {
  if (loop == nest.counts.size()) {
    visit(source, target);
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[loop]; ++i) {
    for_each_run(nest, visit, loop + 1, source + i * nest.source_strides[loop],
                 target + i * nest.target_strides[loop]);
  }
}

}  // namespace

MoveTrainer::MoveTrainer(const Model& model, const Layout& layout, int rank, ShmWay way)
    : model_(model), layout_(layout), rank_(rank) {
  const Placement placement = place_parameters(layout, rank);
  memory_.places = placement.places;
  bytes_held_ = placement.bytes_held;
  if (placement.bytes == 0) {
    memory_.buffers.push_back({});
    return;
  }
  if (way == ShmWay::attach || way == ShmWay::ring) {
    private_segment_ = reserve_private(placement.bytes);
    memory_.buffers.push_back({private_segment_.data(), placement.bytes, -1, 0});
    return;
  }
  segment_ = reserve_shared("crossmesh-trainer", placement.bytes);
  memory_.buffers.push_back({segment_.mapping.data(), placement.bytes, segment_.fd.get(), 0});
}

void MoveTrainer::write(std::uint64_t version) {
  bytes_read_ = 0;
  for (const Instance& instance : layout_.instances) {
    const Binding& binding = layout_.bindings[static_cast<std::size_t>(instance.binding)];
    const int role = binding.role_of_rank[static_cast<std::size_t>(rank_)];
    if (role < 0) continue;
    const LayoutClass& geometry = layout_.classes[static_cast<std::size_t>(instance.layout_class)];
    for (const Piece& piece : geometry.pieces_of_role[static_cast<std::size_t>(role)]) {
      write_piece(instance, piece, version);
    }
  }
}

void MoveTrainer::write_piece(const Instance& instance, const Piece& piece, std::uint64_t version) {
  const TensorInfo& tensor = layout_.tensors[static_cast<std::size_t>(instance.tensor)];
  const LayoutClass& geometry = layout_.classes[static_cast<std::size_t>(instance.layout_class)];
  const auto width = static_cast<std::int32_t>(byte_size(tensor.dtype));
  const View in_tensor = restrict({0, contiguous_strides(geometry.space.factors)},
                                  whole(geometry.space.factors), piece.box);
  const LoopNest nest =
      coalesce({piece.box.shape, in_tensor.strides, piece.view.strides, width, width});
  if (element_count(nest) == 0) return;
  const std::span<const std::byte> bytes = model_.checkpoint->bytes(tensor.name);
  const ParameterPlace& place = memory_.places[static_cast<std::size_t>(instance.parameter)];
  std::byte* parameter =
      memory_.buffers[0].data + place.offset_bytes + (instance.offset + piece.view.offset) * width;
  const std::int64_t run_bytes = nest.run_count * width;
  for_each_run(nest, [&](std::int64_t source, std::int64_t target) {
    const std::int64_t at = in_tensor.offset * width + source;
    std::memcpy(parameter + target, bytes.data() + at, static_cast<std::size_t>(run_bytes));
    apply_version(tensor.name, tensor.dtype, at / width,
                  {parameter + target, static_cast<std::size_t>(run_bytes)}, version);
    bytes_read_ += run_bytes;
  });
}

}  // namespace crossmesh::cli
