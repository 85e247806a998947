// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/peer_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

// Headers older than the kernel lack it.
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ

std::int64_t file_bytes(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : 0;
}

Mapping map_whole(int fd, std::int64_t bytes) {
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) return {static_cast<std::byte*>(data), bytes};
  const int error = errno;
  const auto code = error == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::io_failed;
  throw Error(code, "map: the system refuses to map a peer's memory")
      .with("bytes", bytes)
      .with("system", std::generic_category().message(error));
}

// Looks up the pages that hold data. Holes stay holes: reading one would give it memory.
void look_up(int fd, const Mapping& mapping, std::int64_t begin, std::int64_t end) {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  while (begin < end) {
    const std::int64_t data = ::lseek(fd, begin, SEEK_DATA);
    if (data < 0 || data >= end) return;
    const std::int64_t hole = std::min<std::int64_t>(end, ::lseek(fd, data, SEEK_HOLE));
    if (hole <= data) return;
    const std::int64_t first = data / page * page;
    // A wish: without it the first transfer faults the pages in.
    ::madvise(mapping.data() + first, static_cast<std::size_t>(hole - first), kPopulateRead);
    begin = hole;
  }
}

}  // namespace

void PeerMemory::add_file(int file, FileDescriptor fd) {
  if (addresses_ == Addresses::shared) return;
  file_by_number_[file] = PeerFile{std::move(fd), Mapping()};
}

void PeerMemory::remove_file(int file) { file_by_number_.erase(file); }

void PeerMemory::add_region(Region region, PeerRegion where) {
  region_by_number_.erase(region);
  if (addresses_ == Addresses::shared) where.file = -1;
  if (where.file < 0 && addresses_ == Addresses::none) return;
  if (where.file >= 0) {
    const auto found = file_by_number_.find(where.file);
    if (found == file_by_number_.end()) return;
    PeerFile& file = found->second;
    const std::int64_t bytes = file_bytes(file.fd.get());
    if (where.offset_bytes < 0 || where.offset_bytes > bytes) return;
    where.size_bytes = std::clamp<std::int64_t>(where.size_bytes, 0, bytes - where.offset_bytes);
    const std::int64_t end = where.offset_bytes + where.size_bytes;
    if (end > file.mapping.bytes()) file.mapping = map_whole(file.fd.get(), bytes);
    look_up(file.fd.get(), file.mapping, where.offset_bytes, end);
  }
  region_by_number_[region] = where;
}

void PeerMemory::remove_region(Region region) { region_by_number_.erase(region); }

std::optional<PeerBytes> PeerMemory::find(Region region) const {
  const auto found = region_by_number_.find(region);
  if (found == region_by_number_.end()) return std::nullopt;
  const PeerRegion& where = found->second;
  if (where.file < 0) {
    return PeerBytes{where.address, where.size_bytes, addresses_ == Addresses::remote};
  }
  const Mapping& mapping = file_by_number_.at(where.file).mapping;
  return PeerBytes{mapping.data() + where.offset_bytes, where.size_bytes, false};
}

void PeerMemory::clear() {
  region_by_number_.clear();
  file_by_number_.clear();
}

}  // namespace crossmesh::detail
