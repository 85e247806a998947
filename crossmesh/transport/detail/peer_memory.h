// SPDX-License-Identifier: Apache-2.0
// The regions of one peer as this process reads them: mapped read-only from the peer's files, or
// addresses of this process. Nothing here writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "crossmesh/memory/arena.h"
#include "crossmesh/transport/transport.h"

namespace crossmesh::detail {

// Where a peer says that a region lies.
struct PeerRegion {
  int file = -1;  // or -1 for an address
  std::int64_t offset_bytes = 0;
  std::int64_t size_bytes = 0;
  const std::byte* address = nullptr;
};

class PeerMemory {
 public:
  PeerMemory() = default;
  // `shares_addresses`: the peer is in this process, and its addresses are taken at its word.
  explicit PeerMemory(bool shares_addresses) : shares_addresses_(shares_addresses) {}

  void add_file(int file, FileDescriptor fd);
  void remove_file(int file);

  // Maps the region and looks its pages up, so that the first transfer does not.
  // A region that leaves its file ends where the file does.
  // Throws: out_of_memory when the system maps no more; io_failed.
  void add_region(Region region, PeerRegion where);
  void remove_region(Region region);

  // Nothing when the peer has no such region.
  std::optional<std::span<const std::byte>> find(Region region) const;

  // Unmaps everything.
  void clear();

 private:
  struct PeerFile {
    FileDescriptor fd;
    Mapping mapping;
  };

  bool shares_addresses_ = false;
  std::map<int, PeerFile> file_by_number_;
  std::map<Region, PeerRegion> region_by_number_;
};

}  // namespace crossmesh::detail
