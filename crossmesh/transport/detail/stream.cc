// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/stream.h"

#include <algorithm>
#include <cassert>

namespace crossmesh::detail {
std::int64_t Stream::append(Attempt attempt, std::span<const Transfer> transfers,
                            std::int64_t bytes, Witness* witness) {
  assert(attempt >= attempt_);
  if (attempt != attempt_) {
    assert(is_idle());
    attempt_ = attempt;
    posted_ = done_ = bytes_ = 0;
    stopped_ = false;
    parts_.clear();
  }
  const std::int64_t first_slot = posted_;
  posted_ += static_cast<std::int64_t>(transfers.size());
  if (!transfers.empty()) parts_.push_back({posted_, transfers, witness});
  bytes_ += std::min(bytes, kBytesCap - bytes_);
  return first_slot;
}

const Stream::Part& Stream::part_of(std::int64_t slot) const {
  const auto part =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return slot < p.end_slot; });
  assert(part != parts_.end());
  return *part;
}

const Transfer& Stream::at(std::int64_t slot) const {
  const Part& part = part_of(slot);
  const std::int64_t from_end = part.end_slot - slot;
  return part.transfers[part.transfers.size() - static_cast<std::size_t>(from_end)];
}

Witness* Stream::witness_of(std::int64_t slot) const {
  Witness* witness = part_of(slot).witness;
  return witness != nullptr && witness->watches(at(slot)) ? witness : nullptr;
}

bool Stream::finish(std::int64_t done) {
  if (stopped_) return false;
  done_ = std::max(done_, std::min(done, posted_));
  bool whole_batch = false;
  while (!parts_.empty() && parts_.front().end_slot <= done_) {
    parts_.pop_front();
    whole_batch = true;
  }
  return whole_batch;
}

void Stream::stop(Attempt attempt) {
  if (attempt < attempt_ || stopped_) return;
  if (done_ < posted_) stopped_attempt_ = attempt_;
  stopped_ = true;
  parts_.clear();
}

Progress Stream::progress(const Ticket& ticket) const {
  if (ticket.attempt != attempt_) {
    // An attempt is followed by another once it is done, or stopped.
    const bool finished = ticket.attempt < attempt_ && ticket.attempt > stopped_attempt_;
    return {finished ? ticket.count : 0, finished};
  }
  const std::int64_t done = std::clamp<std::int64_t>(done_ - ticket.first_slot, 0, ticket.count);
  return {done, done == ticket.count};
}

bool Stream::names(Region region, bool source) const {
  for (const Part& part : parts_) {
    const std::int64_t first = part.end_slot - static_cast<std::int64_t>(part.transfers.size());
    const auto skip = static_cast<std::size_t>(std::max<std::int64_t>(0, done_ - first));
    for (const Transfer& t : part.transfers.subspan(skip)) {
      if ((source ? t.source_region : t.target_region) == region) return true;
    }
  }
  return false;
}

}  // namespace crossmesh::detail
