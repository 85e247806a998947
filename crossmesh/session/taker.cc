// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/taker.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

// Batches that are posted ahead of the one being completed, so that a slow source of one group does
// not idle the others.
constexpr std::size_t kLookahead = 4;

// Bytes moved between two looks at the control plane: a millisecond or two.
constexpr std::int64_t kAdvanceBytes = std::int64_t{8} << 20;

}  // namespace

Taker::Taker(Transport& transport, Moves moves, std::function<void(int)> load)
    : transport_(transport), moves_(std::move(moves)), load_(std::move(load)) {}

void Taker::begin(Attempt attempt, std::function<Witness*(int)> watch) {
  attempt_ = attempt;
  watch_ = std::move(watch);
  tickets_of_batch_.assign(moves_.batches.size(), {});
  posted_ = completed_ = 0;
  touched_ = false;
}

// One opaque tensor at a time may lie in the fallback buffer.
bool Taker::may_post_next() const {
  if (posted_ == moves_.batches.size() || posted_ - completed_ >= kLookahead) return false;
  if (moves_.batches[posted_].opaque_tensor < 0) return true;
  for (std::size_t b = completed_; b < posted_; ++b) {
    if (moves_.batches[b].opaque_tensor >= 0) return false;
  }
  return true;
}

void Taker::post_next() {
  for (const MoveRange& range : moves_.batches[posted_].ranges) {
    const std::span<const Transfer> all = moves_.transfers_of_peer.at(range.peer);
    Batch batch{range.peer, Direction::take, attempt_,
                all.subspan(static_cast<std::size_t>(range.first),
                            static_cast<std::size_t>(range.last - range.first))};
    batch.witness = watch_ ? watch_(range.peer) : nullptr;
    batch.is_lasting = true;
    tickets_of_batch_[posted_].push_back(transport_.post(batch));
  }
  ++posted_;
}

bool Taker::complete_next() {
  if (completed_ == posted_) return false;
  for (const Ticket& ticket : tickets_of_batch_[completed_]) {
    if (!transport_.progress(ticket).finished) return false;
  }
  const MoveBatch& batch = moves_.batches[completed_];
  if (batch.opaque_tensor >= 0) load_(batch.opaque_tensor);
  ++completed_;
  return true;
}

bool Taker::step() {
  bool changed = false;
  while (may_post_next()) {
    post_next();
    changed = true;
  }
  if (transport_.advance(kAdvanceBytes)) changed = touched_ = true;
  changed |= complete_next();
  return changed;
}

std::string Taker::waiting_for() const {
  std::string text;
  for (std::size_t b = completed_; b < posted_; ++b) {
    for (const Ticket& ticket : tickets_of_batch_[b]) {
      const Progress progress = transport_.progress(ticket);
      if (progress.finished) continue;
      text += fmt::format("{}rank {}: {} of {} transfers", text.empty() ? "" : "; ", ticket.peer,
                          progress.done, ticket.count);
    }
    if (!text.empty()) break;
  }
  return text;
}

}  // namespace crossmesh
