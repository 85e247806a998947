// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/batch_check.h"

#include <algorithm>

#include "crossmesh/transport/detail/bounds.h"
#include "crossmesh/transport/detail/pull_turn.h"

namespace crossmesh::detail {
namespace {

void check_transfer(const Roster& roster, const Connection& connection, const Batch& batch,
                    std::int64_t slot, const Transfer& transfer) {
  const bool gives = batch.direction == Direction::give;
  if (const std::string_view fault = describe_fault(transfer); !fault.empty()) {
    throw slot_error(ErrorCode::invalid_argument, fmt::format("post: {}", fault), roster, batch,
                     slot)
        .with("source_dtype", crossmesh::name_of(transfer.source_dtype))
        .with("target_dtype", crossmesh::name_of(transfer.target_dtype));
  }
  const Region region = gives ? transfer.source_region : transfer.target_region;
  const Buffer* buffer = roster.enrolment->find(region);
  if (buffer == nullptr) {
    throw slot_error(ErrorCode::invalid_argument, "post: no such region", roster, batch, slot)
        .with("region", region);
  }
  if (gives && !connection.is_local() && !roster.enrolment->is_reachable(region)) {
    throw slot_error(ErrorCode::unsupported, "post: peers cannot reach private memory", roster,
                     batch, slot)
        .with("region", region)
        .hint("enroll memory that a memfd holds, or allow another way");
  }
  const auto reach = reach_of(transfer, gives ? Side::source : Side::target);
  if (!reach || reach->begin_bytes < 0 || reach->end_bytes > buffer->size_bytes) {
    Error error = slot_error(ErrorCode::invalid_argument, "post: a transfer leaves its region",
                             roster, batch, slot)
                      .with("region", region)
                      .with("region_bytes", buffer->size_bytes);
    if (!reach) throw std::move(error).with("reach", "more than 63 bits");
    throw std::move(error).with("begin", reach->begin_bytes).with("end", reach->end_bytes);
  }
}

// Requires: the transfer is checked.
void add(BatchFacts& facts, const Roster& roster, const Connection& connection, const Batch& batch,
         const Transfer& transfer) {
  const std::int64_t bytes = element_count(transfer.nest) * transfer.nest.target_element_bytes;
  facts.bytes += std::min(bytes, kBytesCap - facts.bytes);
  if (batch.direction != Direction::give) return;
  const ShmWay way = way_of(*roster.enrolment, connection, transfer.source_region);
  if (way != ShmWay::automatic) facts.ways |= 1u << static_cast<std::uint32_t>(way);
  facts.packs |= way == ShmWay::ring;
}

}  // namespace

Error slot_error(ErrorCode code, std::string_view what, const Roster& roster, const Batch& batch,
                 std::int64_t slot) {
  return Error(code, std::string(what))
      .with("peer", batch.peer)
      .with("rank", roster.rank)
      .with("attempt", batch.attempt)
      .with("slot", slot);
}

BatchFacts BatchChecker::check(const Roster& roster, const Connection& connection,
                               const Batch& batch, std::int64_t first_slot) {
  const Key key{batch.peer, batch.direction, batch.transfers.data(), batch.transfers.size()};
  const Ground ground{roster.enrolment->changes(), connection.gives, connection.is_local()};
  if (batch.is_lasting) {
    const auto found = known_.find(key);
    if (found != known_.end() && found->second.ground == ground) return found->second.facts;
  }
  BatchFacts facts;
  for (const Transfer& transfer : batch.transfers) {
    check_transfer(roster, connection, batch, first_slot++, transfer);
    add(facts, roster, connection, batch, transfer);
  }
  if (batch.is_lasting) known_[key] = {ground, facts};
  return facts;
}

}  // namespace crossmesh::detail
