// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/digests.h"

#include <algorithm>
#include <chrono>

namespace crossmesh {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t target_bytes(const Transfer& transfer) {
  return element_count(transfer.nest) * transfer.nest.target_element_bytes;
}

// All that the digest of a transfer depends on at its source.
std::vector<std::int64_t> key_of(const Transfer& transfer, const TensorPart& part) {
  const LoopNest& nest = transfer.nest;
  std::vector<std::int64_t> key = {
      part.tensor, transfer.source_region, transfer.source_offset_bytes,
      static_cast<std::int64_t>(transfer.target_dtype), nest.run_count};
  key.insert(key.end(), nest.counts.begin(), nest.counts.end());
  key.insert(key.end(), nest.source_strides.begin(), nest.source_strides.end());
  return key;
}

}  // namespace

Fingerprint fingerprint(const TensorDigests& digests) {
  FingerprintBuilder builder;
  for (const auto& [tensor, digest] : digests) {
    builder.add(std::int64_t{tensor});
    for (const std::uint64_t sum : digest.sums) builder.add(static_cast<std::int64_t>(sum));
    builder.add(digest.bytes);
  }
  return builder.finish();
}

// -- Given ---------------------------------------------------------------------------------------

GivenDigests::GivenDigests(const Moves& moves, RegionBytes regions, DigestMode mode)
    : moves_(moves), regions_(std::move(regions)), mode_(mode) {
  if (mode == DigestMode::off) return;
  std::map<std::vector<std::int64_t>, std::size_t> source_of_key;
  for (const auto& [peer, transfers] : moves.transfers_of_peer) {
    const std::vector<TensorPart>& parts = moves.parts_of_peer.at(peer);
    std::vector<std::size_t>& sources = sources_of_peer_[peer];
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const auto [known, is_new] =
          source_of_key.try_emplace(key_of(transfers[i], parts[i]), sources_.size());
      if (is_new) sources_.push_back({&transfers[i], parts[i], {}});
      sources.push_back(known->second);
    }
  }
}

void GivenDigests::begin(std::int64_t version) {
  version_ = version;
  pending_.clear();
  next_ = 0;
  cost_ = {};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (is_digested(mode_, sources_[i].part.tensor, version)) pending_.push_back(i);
  }
}

void GivenDigests::step(std::int64_t bytes) {
  const Clock::time_point begin = Clock::now();
  for (; bytes > 0 && !finished(); ++next_) {
    Source& source = sources_[pending_[next_]];
    const Transfer& transfer = *source.transfer;
    const Numbering& numbering = moves_.numberings[static_cast<std::size_t>(source.part.numbering)];
    source.digest = digest(
        regions_[static_cast<std::size_t>(transfer.source_region)] + transfer.source_offset_bytes,
        {&numbering, source.part.place_bytes}, transfer.nest, transfer.source_dtype,
        transfer.target_dtype);
    bytes -= target_bytes(transfer);
    cost_.bytes += target_bytes(transfer);
  }
  cost_.seconds += seconds_since(begin);
}

TensorDigests GivenDigests::of_peer(int peer) const {
  TensorDigests digests;
  for (const std::size_t i : sources_of_peer_.at(peer)) {
    const Source& source = sources_[i];
    if (!is_digested(mode_, source.part.tensor, version_)) continue;
    digests[source.part.tensor] += source.digest;
  }
  return digests;
}

std::vector<int> GivenDigests::peers() const {
  std::vector<int> peers;
  for (const auto& [peer, sources] : sources_of_peer_) peers.push_back(peer);
  return peers;
}

// -- Taken ---------------------------------------------------------------------------------------

class TakenDigests::PeerWitness final : public Witness {
 public:
  PeerWitness(const Moves& moves, int peer)
      : moves_(moves),
        transfers_(moves.transfers_of_peer.at(peer)),
        parts_(moves.parts_of_peer.at(peer)) {}

  // A tensor of which nothing arrives counts all the same.
  void begin(DigestMode mode, std::int64_t version) {
    mode_ = mode;
    version_ = version;
    digests_.clear();
    cost_ = {};
    for (const TensorPart& part : parts_) {
      if (is_digested(mode, part.tensor, version)) digests_.try_emplace(part.tensor);
    }
  }

  bool watches(const Transfer& transfer) const override {
    return is_digested(mode_, part_of(transfer).tensor, version_);
  }

  void moved(const Transfer& transfer, const Part& seen) override {
    const Clock::time_point begin = Clock::now();
    const TensorPart& part = part_of(transfer);
    const Numbering& numbering = moves_.numberings[static_cast<std::size_t>(part.numbering)];
    const NumberedPlace place{&numbering, part.place_bytes + seen.target_offset_bytes};
    const Digest added =
        seen.source != nullptr
            ? digest(seen.source, place, seen.nest, transfer.source_dtype, transfer.source_dtype)
            : digest_written(seen.target, place, seen.nest);
    digests_[part.tensor] += added;
    cost_.bytes += added.bytes;
    cost_.seconds += seconds_since(begin);
  }

  const TensorDigests& digests() const { return digests_; }
  const DigestCost& cost() const { return cost_; }

 private:
  const TensorPart& part_of(const Transfer& transfer) const {
    return parts_[static_cast<std::size_t>(&transfer - transfers_.data())];
  }

  const Moves& moves_;
  const std::vector<Transfer>& transfers_;
  const std::vector<TensorPart>& parts_;
  DigestMode mode_ = DigestMode::off;
  std::int64_t version_ = 0;
  TensorDigests digests_;
  DigestCost cost_;
};

TakenDigests::TakenDigests(const Moves& moves) {
  for (const auto& [peer, transfers] : moves.transfers_of_peer) {
    witness_of_peer_.emplace(peer, std::make_unique<PeerWitness>(moves, peer));
  }
}

TakenDigests::~TakenDigests() = default;

void TakenDigests::begin(DigestMode mode, std::int64_t version) {
  mode_ = mode;
  for (const auto& [peer, witness] : witness_of_peer_) witness->begin(mode, version);
}

Witness* TakenDigests::witness_of(int peer) {
  return mode_ == DigestMode::off ? nullptr : witness_of_peer_.at(peer).get();
}

const TensorDigests& TakenDigests::of_peer(int peer) const {
  return witness_of_peer_.at(peer)->digests();
}

std::vector<int> TakenDigests::peers() const {
  std::vector<int> peers;
  for (const auto& [peer, witness] : witness_of_peer_) peers.push_back(peer);
  return peers;
}

DigestCost TakenDigests::cost() const {
  DigestCost sum;
  for (const auto& [peer, witness] : witness_of_peer_) {
    sum.seconds += witness->cost().seconds;
    sum.bytes += witness->cost().bytes;
  }
  return sum;
}

}  // namespace crossmesh
