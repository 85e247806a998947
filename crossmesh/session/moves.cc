// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/moves.h"

#include <algorithm>

#include "crossmesh/base/error.h"
#include "crossmesh/session/detail/numberer.h"

namespace crossmesh {
namespace {

struct Ends {
  RegionPlace source;
  RegionPlace target;
};

std::int32_t element_bytes(DType dtype, const TensorInfo& tensor) {
  if (!is_byte_sized(dtype)) {
    throw Error(ErrorCode::unsupported, "move: elements do not fill whole bytes")
        .with("tensor", tensor.name)
        .with("dtype", name_of(dtype))
        .hint("view the tensor as U8");
  }
  return static_cast<std::int32_t>(byte_size(dtype));
}

Transfer transfer_of(const Schedule& schedule, const Step& step, const Ends& ends) {
  const Plan& plan = schedule.plan;
  const PlanInstance& instance = plan.instances[static_cast<std::size_t>(step.instance)];
  const Instance& source =
      plan.source.instances[static_cast<std::size_t>(instance.source_instance)];
  const TensorInfo& tensor = plan.source.tensors[static_cast<std::size_t>(source.tensor)];
  Transfer transfer;
  transfer.source_dtype = source_dtype(plan, instance);
  transfer.target_dtype = step.whole_tensor ? transfer.source_dtype : target_dtype(plan, instance);
  const std::int32_t source_bytes = element_bytes(transfer.source_dtype, tensor);
  const std::int32_t target_bytes = element_bytes(transfer.target_dtype, tensor);
  transfer.source_region = ends.source.region;
  transfer.target_region = ends.target.region;
  transfer.source_offset_bytes = ends.source.offset_bytes + step.source.offset * source_bytes;
  transfer.target_offset_bytes = ends.target.offset_bytes + step.target.offset * target_bytes;
  transfer.nest =
      coalesce({step.counts, step.source.strides, step.target.strides, source_bytes, target_bytes});
  return transfer;
}

int tensor_of(const Plan& plan, const Step& step) {
  const PlanInstance& instance = plan.instances[static_cast<std::size_t>(step.instance)];
  return plan.source.instances[static_cast<std::size_t>(instance.source_instance)].tensor;
}

// Adds the steps of one batch. Both ends see a pair's steps in the same order, so their slots
// agree.
template <typename EndsOf, typename PartOf>
void add_batch(Moves& moves, const Schedule& schedule, MoveBatch batch,
               std::span<const Step* const> steps, const EndsOf& ends_of, const PartOf& part_of) {
  if (steps.empty()) return;
  std::map<int, MoveRange> range_of_peer;
  for (const Step* step : steps) {
    std::vector<Transfer>& transfers = moves.transfers_of_peer[step->peer];
    const auto at = static_cast<std::int64_t>(transfers.size());
    MoveRange& range =
        range_of_peer.try_emplace(step->peer, MoveRange{step->peer, at, at}).first->second;
    const Transfer& added = transfers.emplace_back(transfer_of(schedule, *step, ends_of(*step)));
    moves.parts_of_peer[step->peer].push_back(part_of(*step));
    range.last = at + 1;
    const std::int64_t bytes = element_count(added.nest) * added.nest.source_element_bytes;
    moves.bytes += bytes;
    if (batch.opaque_tensor >= 0) moves.bytes_fallback += bytes;
  }
  for (const auto& [peer, range] : range_of_peer) batch.ranges.push_back(range);
  moves.batches.push_back(std::move(batch));
}

// A group's direct steps come first, then its opaque tensors one by one.
template <typename EndsOf>
Moves build(const Schedule& schedule, Side side, int rank, const EndsOf& ends_of) {
  const RankPart part = expand(schedule, side, rank);
  Moves moves;
  detail::Numberer numberer(schedule.plan, moves.numberings);
  const auto part_of = [&](const Step& step) {
    return numberer.part_of(step, side == Side::target ? rank : step.peer);
  };
  for (std::size_t g = 0; g < part.steps_of_group.size(); ++g) {
    std::vector<const Step*> direct, opaque;
    for (const Step& step : part.steps_of_group[g])
      (step.whole_tensor ? opaque : direct).push_back(&step);
    const int group = static_cast<int>(g);
    add_batch(moves, schedule, {group, -1, {}}, direct, ends_of, part_of);
    std::stable_sort(opaque.begin(), opaque.end(), [&](const Step* a, const Step* b) {
      return tensor_of(schedule.plan, *a) < tensor_of(schedule.plan, *b);
    });
    for (auto first = opaque.begin(); first != opaque.end();) {
      const int tensor = tensor_of(schedule.plan, **first);
      const auto last = std::find_if(first, opaque.end(), [&](const Step* step) {
        return tensor_of(schedule.plan, *step) != tensor;
      });
      add_batch(moves, schedule, {group, tensor, {}}, std::span(first, last), ends_of, part_of);
      first = last;
    }
  }
  return moves;
}

}  // namespace

Moves moves_of_source(const Schedule& schedule, int rank, const std::vector<RegionPlace>& places) {
  return build(schedule, Side::source, rank, [&](const Step& step) {
    return Ends{places[static_cast<std::size_t>(step.source_parameter)], RegionPlace{}};
  });
}

Moves moves_of_target(const Schedule& schedule, int rank, const std::vector<RegionPlace>& places,
                      Region fallback_region, const std::map<int, SourcePlaces>& sources) {
  return build(schedule, Side::target, rank, [&](const Step& step) {
    const SourcePlaces& source = sources.at(step.peer);
    return Ends{source.parameters[static_cast<std::size_t>(step.source_parameter)],
                step.whole_tensor ? RegionPlace{fallback_region, 0}
                                  : places[static_cast<std::size_t>(step.target_parameter)]};
  });
}

}  // namespace crossmesh
