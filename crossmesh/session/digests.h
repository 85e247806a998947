// SPDX-License-Identifier: Apache-2.0
// What a trainer rank gives and an engine rank takes, digested tensor by tensor for each pair of
// ranks. They are computed here and compared elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "crossmesh/base/fingerprint.h"
#include "crossmesh/memory/digest.h"
#include "crossmesh/session/digest_mode.h"
#include "crossmesh/session/giver.h"
#include "crossmesh/session/moves.h"

namespace crossmesh {

// By tensor of the source layout: what of it went from one rank to another.
using TensorDigests = std::map<int, Digest>;

// Ensures: differs when any digest does.
Fingerprint fingerprint(const TensorDigests& digests);

// What digesting cost.
struct DigestCost {
  double seconds = 0;
  std::int64_t bytes = 0;
};

// A trainer rank's. What several engine ranks get alike is digested once.
class GivenDigests {
 public:
  // Requires: `moves` outlives it.
  GivenDigests(const Moves& moves, RegionBytes regions, DigestMode mode);

  // Starts over, for the weights of `version`.
  void begin(std::int64_t version);

  // Digests about `bytes` more. Requires: not finished().
  void step(std::int64_t bytes);
  bool finished() const { return next_ == pending_.size(); }

  // Requires: finished().
  TensorDigests of_peer(int peer) const;
  std::vector<int> peers() const;

  const DigestCost& cost() const { return cost_; }

 private:
  struct Source {
    const Transfer* transfer = nullptr;
    TensorPart part;
    Digest digest;
  };

  const Moves& moves_;
  RegionBytes regions_;
  std::vector<Source> sources_;
  std::map<int, std::vector<std::size_t>> sources_of_peer_;
  std::vector<std::size_t> pending_;  // into sources_: those of this version
  std::size_t next_ = 0;
  DigestMode mode_;
  std::int64_t version_ = 0;
  DigestCost cost_;
};

// An engine rank's, while the bytes arrive.
class TakenDigests {
 public:
  // Requires: `moves` outlives it.
  explicit TakenDigests(const Moves& moves);
  ~TakenDigests();

  void begin(DigestMode mode, std::int64_t version);

  // Who looks at what comes from the peer; null when nothing is digested.
  Witness* witness_of(int peer);

  const TensorDigests& of_peer(int peer) const;
  std::vector<int> peers() const;

  DigestCost cost() const;

 private:
  class PeerWitness;
  std::map<int, std::unique_ptr<PeerWitness>> witness_of_peer_;
  DigestMode mode_ = DigestMode::off;
};

}  // namespace crossmesh
