// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/giver.h"

#include <algorithm>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/memory/slice.h"

namespace crossmesh {

Giver::Giver(Transport& transport, Moves moves, int first_target_rank, RegionBytes regions,
             GiverStaging staging)
    : transport_(transport),
      moves_(std::move(moves)),
      first_target_rank_(first_target_rank),
      regions_(std::move(regions)),
      staging_(staging) {
  for (const auto& [number, transfers] : moves_.transfers_of_peer) {
    Peer peer;
    peer.number = number;
    if (staging_.region >= 0) {
      const StagingShare& share = staging_.share;
      peer.staging_offset_bytes =
          static_cast<std::int64_t>(peers_.size()) * share.slot_bytes * share.slot_count;
      peer.chunks = stage(transfers, share.slot_bytes);
    }
    peers_.push_back(std::move(peer));
  }
}

std::int64_t Giver::staging_offset_bytes(int peer) const {
  const auto found =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.number == peer; });
  return found == peers_.end() ? 0 : found->staging_offset_bytes;
}

void Giver::begin(Attempt attempt) {
  attempt_ = attempt;
  staging_bytes_ = 0;
  for (Peer& peer : peers_) {
    peer.posted.clear();
    peer.next_chunk = 0;
    if (staging_.region < 0) post(peer, {}, moves_.transfers_of_peer.at(peer.number), 0);
  }
}

void Giver::post(Peer& peer, std::vector<Transfer> owned, std::span<const Transfer> transfers,
                 std::int64_t bytes) {
  Posted& posted = peer.posted.emplace_back();
  posted.transfers = std::move(owned);
  posted.bytes = bytes;
  Batch batch{first_target_rank_ + peer.number, Direction::give, attempt_, transfers};
  batch.is_lasting = posted.transfers.empty();
  if (!batch.is_lasting) batch.transfers = posted.transfers;
  posted.ticket = transport_.post(batch);
}

bool Giver::pack_into(Peer& peer) {
  bool changed = false;
  while (!peer.posted.empty() && transport_.progress(peer.posted.front().ticket).finished) {
    staging_bytes_ -= peer.posted.front().bytes;
    peer.posted.pop_front();
    changed = true;
  }
  const StagingShare& share = staging_.share;
  while (peer.next_chunk < peer.chunks.size() &&
         static_cast<std::int64_t>(peer.posted.size()) < share.slot_count) {
    const Chunk& chunk = peer.chunks[peer.next_chunk];
    const std::int64_t slot_offset =
        peer.staging_offset_bytes +
        static_cast<std::int64_t>(peer.next_chunk) % share.slot_count * share.slot_bytes;
    const std::vector<Transfer>& whole = moves_.transfers_of_peer.at(peer.number);
    std::vector<Transfer> packed;
    packed.reserve(chunk.slices.size());
    for (const StagedSlice& slice : chunk.slices) {
      Transfer transfer = whole[static_cast<std::size_t>(slice.transfer)];
      const std::int64_t at = slot_offset + slice.packed_offset_bytes;
      copy(regions_[static_cast<std::size_t>(transfer.source_region)] +
               transfer.source_offset_bytes + slice.source_offset_bytes,
           staging_.data + at, source_to_packed(slice.nest), StoreHint::cached);
      transfer.source_region = staging_.region;
      transfer.source_offset_bytes = at;
      transfer.nest = packed_to_target(slice.nest);
      packed.push_back(transfer);
    }
    staging_bytes_ += chunk.bytes;
    staging_bytes_peak_ = std::max(staging_bytes_peak_, staging_bytes_);
    post(peer, std::move(packed), {}, chunk.bytes);
    ++peer.next_chunk;
    changed = true;
  }
  return changed;
}

// A peer that has everything may go.
bool Giver::advance() {
  try {
    return transport_.advance(0);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    const std::vector<int> present = transport_.peers();
    for (const Peer& peer : peers_) {
      const int rank = first_target_rank_ + peer.number;
      if (std::ranges::find(present, rank) == present.end() && !has_all(peer)) throw;
    }
    return true;
  }
}

bool Giver::step() {
  bool changed = advance();
  if (staging_.region >= 0) {
    for (Peer& peer : peers_) changed |= pack_into(peer);
  }
  return changed;
}

bool Giver::has_all(const Peer& peer) const {
  return peer.next_chunk == peer.chunks.size() &&
         std::ranges::all_of(peer.posted, [&](const Posted& posted) {
           return transport_.progress(posted.ticket).finished;
         });
}

bool Giver::finished() const {
  return std::ranges::all_of(peers_, [&](const Peer& peer) { return has_all(peer); });
}

std::string Giver::waiting_for() const {
  std::string text;
  for (const Peer& peer : peers_) {
    for (const Posted& posted : peer.posted) {
      const Progress progress = transport_.progress(posted.ticket);
      if (progress.finished) continue;
      text += fmt::format("{}rank {}: {} of {} transfers acknowledged", text.empty() ? "" : "; ",
                          first_target_rank_ + peer.number, progress.done, posted.ticket.count);
      break;
    }
  }
  return text;
}

}  // namespace crossmesh
