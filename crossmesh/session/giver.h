// SPDX-License-Identifier: Apache-2.0
// A trainer rank's part of an update: offers its transfers, packs where the route is packed, and
// is done when every peer has acknowledged every byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "crossmesh/session/moves.h"
#include "crossmesh/session/staging.h"

namespace crossmesh {

// The source bytes behind each region, by region number.
using RegionBytes = std::vector<std::byte*>;

struct GiverStaging {
  Region region = -1;
  std::byte* data = nullptr;
  StagingShare share;
};

class Giver {
 public:
  // `rank_of_peer(t)` is rank `first_target_rank + t` of the transport. `staging.region` is -1 for
  // the direct route.
  Giver(Transport& transport, Moves moves, int first_target_rank, RegionBytes regions,
        GiverStaging staging);

  const Moves& moves() const { return moves_; }

  // Where the slots of each peer start in the staging region.
  std::int64_t staging_offset_bytes(int peer) const;

  // Offers everything of this attempt; the weights must stay as they are until finished().
  void begin(Attempt attempt);

  // Packs and posts what has room. Returns whether anything changed.
  bool step();
  bool finished() const;

  std::int64_t staging_bytes_peak() const { return staging_bytes_peak_; }

  // `rank 3: 2 of 7 transfers acknowledged` for each peer that is not done.
  std::string waiting_for() const;

 private:
  struct Posted {
    Ticket ticket;
    std::int64_t bytes = 0;
    std::vector<Transfer> transfers;  // of a chunk; they must outlive the ticket
  };
  struct Peer {
    int number = 0;  // among target ranks
    std::int64_t staging_offset_bytes = 0;
    std::vector<Chunk> chunks;  // of the packed route
    std::size_t next_chunk = 0;
    std::deque<Posted> posted;
  };

  bool advance();
  bool has_all(const Peer& peer) const;
  bool pack_into(Peer& peer);
  void post(Peer& peer, std::vector<Transfer> owned, std::span<const Transfer> transfers,
            std::int64_t bytes);

  Transport& transport_;
  Moves moves_;
  int first_target_rank_;
  RegionBytes regions_;
  GiverStaging staging_;
  std::vector<Peer> peers_;
  Attempt attempt_ = 0;
  std::int64_t staging_bytes_ = 0;
  std::int64_t staging_bytes_peak_ = 0;
};

}  // namespace crossmesh
