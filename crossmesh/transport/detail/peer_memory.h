// SPDX-License-Identifier: Apache-2.0
// The regions of one peer as this process reads them: mapped read-only from the peer's files, at
// addresses of this process, or at addresses of the peer's. Nothing here writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

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

// A region as it is found. Where `is_remote`, `address` is one of the peer's process.
struct PeerBytes {
  const std::byte* address = nullptr;
  std::int64_t size_bytes = 0;
  bool is_remote = false;
};

// Whose addresses a region without a file has.
enum class Addresses {
  none,    // such a region is not known
  shared,  // the peer is in this process: no file is mapped, its addresses are taken at its word
  remote,  // the peer's process
};

class PeerMemory {
 public:
  PeerMemory() = default;
  explicit PeerMemory(Addresses addresses) : addresses_(addresses) {}

  void add_file(int file, FileDescriptor fd);
  void remove_file(int file);

  // Maps the region and looks its pages up, so that the first transfer does not.
  // A region that leaves its file ends where the file does.
  // Throws: out_of_memory when the system maps no more; io_failed.
  void add_region(Region region, PeerRegion where);
  void remove_region(Region region);

  // Nothing when the peer has no such region.
  std::optional<PeerBytes> find(Region region) const;

  // Unmaps everything.
  void clear();

 private:
  struct PeerFile {
    FileDescriptor fd;
    Mapping mapping;
  };

  Addresses addresses_ = Addresses::none;
  std::map<int, PeerFile> file_by_number_;
  std::map<Region, PeerRegion> region_by_number_;
};

}  // namespace crossmesh::detail
