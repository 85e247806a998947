// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::string_view kMemoryHint =
    "free memory, raise the limit (ulimit -v, the control group's memory.max), or use more ranks";

std::string system_text(int error) { return std::generic_category().message(error); }

Error refused(std::string_view what, std::int64_t bytes, int error) {
  return Error(ErrorCode::out_of_memory, fmt::format("reserve: {}", what))
      .with("bytes", bytes)
      .with("system", system_text(error))
      .hint(kMemoryHint);
}

Error failed(std::string_view what, std::int64_t bytes, int error) {
  return Error(ErrorCode::io_failed, std::string(what))
      .with("bytes", bytes)
      .with("system", system_text(error));
}

bool is_memory_shortage(int error) {
  return error == ENOMEM || error == ENOSPC || error == EFBIG || error == EAGAIN;
}

void check_size(std::int64_t bytes) {
  if (bytes >= 0) return;
  throw Error(ErrorCode::invalid_argument, "reserve: a size is negative").with("bytes", bytes);
}

// Touching what is not there ends in the kernel's out-of-memory killer, not in an error.
void check_available(std::int64_t bytes) {
  const std::int64_t available = available_memory_bytes();
  if (bytes <= available) return;
  throw Error(ErrorCode::out_of_memory, "reserve: less memory is free than asked for")
      .with("bytes", bytes)
      .with("available", available)
      .hint(kMemoryHint);
}

// Nothing when the file is absent or holds no number (`max`).
std::optional<std::int64_t> number_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// What the control group at the root of this process's view leaves: containers see theirs there.
std::optional<std::int64_t> group_available_bytes() {
  struct Files {
    const char* limit;
    const char* used;
    const char* statistics;
  };
  constexpr Files kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat"},
  };
  for (const Files& files : kVersions) {
    const auto limit = number_in(files.limit, "");
    const auto used = number_in(files.used, "");
    if (!limit || !used) continue;
    const std::int64_t reclaimable = number_in(files.statistics, "inactive_file").value_or(0);
    return std::max<std::int64_t>(0, *limit - *used + reclaimable);
  }
  return std::nullopt;
}

// Gives every page its memory, each in its own way: one call where the kernel has it.
void touch(const Mapping& mapping) {
  if (mapping.bytes() == 0) return;
  const auto size = static_cast<std::size_t>(mapping.bytes());
  if (::madvise(mapping.data(), size, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw refused("the system gives no pages", mapping.bytes(), errno);
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  for (std::int64_t at = 0; at < mapping.bytes(); at += page) {
    static_cast<volatile std::byte*>(mapping.data())[at] = std::byte{0};
  }
}

Mapping map(int fd, std::int64_t bytes, int protection, int flags) {
  if (bytes == 0) return {};
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes), protection, flags, fd, 0);
  if (data != MAP_FAILED) return {static_cast<std::byte*>(data), bytes};
  const int error = errno;
  if (is_memory_shortage(error)) throw refused("the system maps no more memory", bytes, error);
  throw failed("map: cannot map memory", bytes, error);
}

void seal(int fd, std::int64_t bytes, PeerAccess access) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (access == PeerAccess::read_only) seals |= F_SEAL_FUTURE_WRITE;
  if (::fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) {
    throw failed("reserve: cannot seal shared memory", bytes, errno);
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) ::close(value_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : value_(other.release()) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(value_, other.value_);
  return *this;
}

int FileDescriptor::release() { return std::exchange(value_, -1); }

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping reserve_private(std::int64_t bytes, Pages reserve) {
  check_size(bytes);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (reserve == Pages::lazy) flags |= MAP_NORESERVE;
  Mapping mapping = map(-1, bytes, PROT_READ | PROT_WRITE, flags);
  if (bytes == 0) return mapping;
  // A wish: where there are no huge pages, small ones serve.
  ::madvise(mapping.data(), static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  if (reserve == Pages::lazy) return mapping;
  check_available(bytes);
  touch(mapping);
  return mapping;
}

SharedMemory reserve_shared(std::string_view label, std::int64_t bytes, PeerAccess access) {
  check_size(bytes);
  SharedMemory memory;
  memory.fd =
      FileDescriptor(::memfd_create(std::string(label).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.fd.get();
  if (fd < 0) throw failed("reserve: cannot make shared memory", bytes, errno);
  memory.mapping = map(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  check_available(bytes);
  if (bytes > 0 && ::fallocate(fd, 0, 0, bytes) != 0) {
    const int error = errno;
    if (is_memory_shortage(error)) throw refused("the system gives no pages", bytes, error);
    throw failed("reserve: cannot size shared memory", bytes, error);
  }
  touch(memory.mapping);
  // After mapping: the seal would refuse this process a writable mapping as well.
  seal(fd, bytes, access);
  return memory;
}

Mapping map_shared(int fd, std::int64_t bytes, MapAccess access) {
  check_size(bytes);
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw failed("map: cannot look at shared memory", bytes, errno);
  if (status.st_size < bytes) {
    throw Error(ErrorCode::mismatch, "map: shared memory is smaller than its owner says")
        .with("bytes", bytes)
        .with("file_bytes", static_cast<std::int64_t>(status.st_size));
  }
  const bool writes = access == MapAccess::read_write;
  Mapping mapping = map(fd, bytes, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED);
  // Only spares faults later; a kernel without it faults.
  if (bytes > 0) {
    ::madvise(mapping.data(), static_cast<std::size_t>(bytes),
              writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  return mapping;
}

bool is_size_sealed(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

std::int64_t available_memory_bytes() {
  constexpr std::int64_t kKibibyte = 1024;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (const auto free = number_in("/proc/meminfo", "MemAvailable:")) least = *free * kKibibyte;
  if (const auto group = group_available_bytes()) least = std::min(least, *group);
  return least;
}

}  // namespace crossmesh
