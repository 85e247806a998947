// SPDX-License-Identifier: Apache-2.0
// Memory that is really there: mapped, and touched or refused, before anything is written. It
// owns mappings and file descriptors, and does not hand out pieces of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace crossmesh {

// Owns an open file descriptor, or none (-1).
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return value_; }
  // Gives up ownership.
  int release();

 private:
  int value_ = -1;
};

// Owns mapped pages, or none (null, 0 bytes).
class Mapping {
 public:
  Mapping() = default;
  // Requires: the pages came from mmap with this size.
  Mapping(std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  // Starts on a page border.
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, static_cast<std::size_t>(bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// When pages get their memory.
enum class Pages {
  touched,  // at once: they are zero, and later writes neither fault nor fail
  lazy,     // at the first write
};

// Private zeroed memory, in huge pages where the system gives them.
// Throws: invalid_argument when `bytes` is negative; out_of_memory when the system refuses, or
// when touching would take more than it says is free.
Mapping reserve_private(std::int64_t bytes, Pages reserve = Pages::touched);

// Memory that other processes map through its descriptor.
struct SharedMemory {
  FileDescriptor fd;
  Mapping mapping;
};

// What holders of the descriptor may do. No one, its maker included, may change its size.
enum class PeerAccess {
  read_only,  // only the mapping of the maker writes
  read_write,
};

// Zeroed memory in a memfd, all of it reserved. `label` is shown in /proc/PID/maps.
// Throws: as reserve_private; io_failed when the system has no memfd or seals.
SharedMemory reserve_shared(std::string_view label, std::int64_t bytes,
                            PeerAccess access = PeerAccess::read_only);

enum class MapAccess { read_only, read_write };

// Maps the first `bytes` of a descriptor from a peer; its pages are looked up at once. The
// descriptor may be closed afterwards.
// Requires: the descriptor stays as large while it is mapped, which a seal from reserve_shared
// promises; is_size_sealed tells.
// Throws: mismatch when the file is smaller; out_of_memory, io_failed when the system refuses.
Mapping map_shared(int fd, std::int64_t bytes, MapAccess access);

// Whether the file's size cannot shrink any more, whoever holds it.
bool is_size_sealed(int fd);

// Memory that this process can still touch, as the system tells: the least of what is free and
// what its control group allows. No promise: others take memory too.
std::int64_t available_memory_bytes();

}  // namespace crossmesh
