// SPDX-License-Identifier: Apache-2.0
// The regions of this rank, and what to tell peers about them. A file is told once however many
// regions lie in it.
#pragma once

#include <cstdint>
#include <vector>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/detail/wire.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// A message, and the descriptor to pass with it or -1. The enrolment owns the descriptor.
struct Announcement {
  Message message;
  int fd = -1;
};

class Enrolment {
 public:
  // `shares_addresses`: peers read at the address that this rank uses. `way`: how else.
  Enrolment(bool shares_addresses, ShmWay way) : shares_addresses_(shares_addresses), way_(way) {}

  // Throws: invalid_argument when the buffer is empty or its file is none.
  Region add(const Buffer& buffer);

  // Requires: the region is there.
  void remove(Region region);

  // Null when there is no such region, or it was removed.
  const Buffer* find(Region region) const;

  // Whether peers can take from the region.
  bool is_reachable(Region region) const;

  // Whether peers map the region's file.
  // Requires: there was such a region.
  bool is_mapped(Region region) const;

  // Grows with every region that is added or removed.
  std::int64_t changes() const { return changes_; }

  // What a present peer was told no word of yet; asking takes it.
  std::vector<Announcement> take_news();

  // What a new peer has to know.
  std::vector<Announcement> all() const;

 private:
  struct OwnFile {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    int use_count = 0;
    FileDescriptor fd;
  };
  struct OwnRegion {
    Buffer buffer;
    int file = -1;
    bool is_live = false;
  };

  bool shares_addresses_;
  ShmWay way_;
  std::int64_t changes_ = 0;
  std::vector<OwnFile> files_;
  std::vector<OwnRegion> regions_;
  std::vector<Announcement> news_;
};

}  // namespace crossmesh::detail
