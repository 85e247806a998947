// SPDX-License-Identifier: Apache-2.0
// For tests: replaces the global operator new of a test binary by one that counts. Include it in
// one source file of that binary.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace crossmesh::testing {

inline std::int64_t allocation_count = 0;
inline std::int64_t allocated_bytes = 0;

// Kept out of line, so that no compiler pairs the malloc of one with the delete of another.
[[gnu::noinline]] inline void* count_and_allocate(std::size_t size) {
  ++allocation_count;
  allocated_bytes += static_cast<std::int64_t>(size);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

[[gnu::noinline]] inline void release(void* memory) noexcept { std::free(memory); }

}  // namespace crossmesh::testing

[[gnu::noinline]] void* operator new(std::size_t size) {
  return crossmesh::testing::count_and_allocate(size);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return crossmesh::testing::count_and_allocate(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return crossmesh::testing::count_and_allocate(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  crossmesh::testing::release(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  crossmesh::testing::release(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  crossmesh::testing::release(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  crossmesh::testing::release(memory);
}
