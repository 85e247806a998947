// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/memory/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

static_assert(!std::is_copy_constructible_v<Mapping> && std::is_nothrow_move_assignable_v<Mapping>);
static_assert(!std::is_copy_constructible_v<FileDescriptor>);

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

bool all_zero(const Mapping& mapping) {
  return std::all_of(mapping.data(), mapping.data() + mapping.bytes(),
                     [](std::byte b) { return b == std::byte{0}; });
}

// Pages of `mapping` that have memory.
std::int64_t resident_pages(const Mapping& mapping) {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> states(static_cast<std::size_t>((mapping.bytes() + page - 1) / page));
  EXPECT_EQ(::mincore(mapping.data(), static_cast<std::size_t>(mapping.bytes()), states.data()), 0);
  return std::count_if(states.begin(), states.end(), [](auto state) { return (state & 1) != 0; });
}

// The exit status of a child that runs `body`; 200 when it died by a signal.
template <typename Body>
int status_of_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

template <typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.text();
  }
  return "no error";
}

TEST(ReservePrivate, is_zero_and_has_its_pages) {
  const Mapping mapping = reserve_private(3 * kMebibyte + 5);
  EXPECT_EQ(mapping.bytes(), 3 * kMebibyte + 5);
  EXPECT_EQ(resident_pages(mapping), 3 * kMebibyte / ::sysconf(_SC_PAGESIZE) + 1);
  EXPECT_TRUE(all_zero(mapping));
}

TEST(ReservePrivate, lazy_memory_has_no_pages_until_it_is_written) {
  const Mapping mapping = reserve_private(4 * kMebibyte, Pages::lazy);
  EXPECT_EQ(resident_pages(mapping), 0);
  mapping.data()[0] = std::byte{1};
  EXPECT_GT(resident_pages(mapping), 0);
}

TEST(ReservePrivate, nothing_is_a_mapping_of_nothing) {
  const Mapping mapping = reserve_private(0);
  EXPECT_EQ(mapping.data(), nullptr);
  EXPECT_EQ(mapping.bytes(), 0);
}

TEST(ReservePrivate, a_negative_size_is_refused) {
  EXPECT_EQ(error_text([] { reserve_private(-3); }),
            "invalid_argument: reserve: a size is negative\n  bytes  -3");
}

TEST(ReservePrivate, more_than_is_free_is_an_error_and_not_a_kill) {
  // The address space is there, the memory is not.
  const std::int64_t bytes = available_memory_bytes() + (std::int64_t{1} << 40);
  try {
    reserve_private(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(error.text().find("\n  bytes  " + std::to_string(bytes) + "\n"), std::string::npos)
        << error.text();
  }
}

constexpr std::string_view kRefusedText =
    "out_of_memory: reserve: the system maps no more memory\n"
    "  bytes  1073741824\n"
    "  system  Cannot allocate memory\n"
    "  hint  free memory, raise the limit (ulimit -v, the control group's memory.max), or use more "
    "ranks";

// 0 when each call fails with kRefusedText under a limit on address space.
int reserve_under_limit() {
  const rlimit limit{512 * kMebibyte, 512 * kMebibyte};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
  if (error_text([] { reserve_private(1024 * kMebibyte); }) != kRefusedText) return 2;
  if (error_text([] { reserve_shared("limit", 1024 * kMebibyte); }) != kRefusedText) return 3;
  return 0;
}

TEST(Pages, past_the_limit_on_address_space_is_an_error) {
  const std::string_view sanitizer = CROSSMESH_SANITIZER;
  if (!sanitizer.empty()) GTEST_SKIP() << "a sanitizer needs the whole address space";
  EXPECT_EQ(status_of_child(reserve_under_limit), 0);
}

TEST(ReserveShared, a_peer_sees_what_the_maker_writes_later) {
  const SharedMemory memory = reserve_shared("test", kMebibyte);
  EXPECT_EQ(resident_pages(memory.mapping), kMebibyte / ::sysconf(_SC_PAGESIZE));
  EXPECT_TRUE(all_zero(memory.mapping));
  const Mapping peer = map_shared(memory.fd.get(), kMebibyte, MapAccess::read_only);
  std::memset(memory.mapping.data(), 7, kMebibyte);
  EXPECT_TRUE(std::equal(peer.data(), peer.data() + kMebibyte, memory.mapping.data()));
}

TEST(ReserveShared, outlives_its_descriptor_and_its_maker) {
  Mapping peer;
  {
    const SharedMemory memory = reserve_shared("test", 4096);
    memory.mapping.data()[9] = std::byte{42};
    peer = map_shared(memory.fd.get(), 4096, MapAccess::read_only);
  }
  EXPECT_EQ(peer.data()[9], std::byte{42});
}

TEST(ReserveShared, its_size_cannot_change) {
  const SharedMemory memory = reserve_shared("test", 8192);
  EXPECT_TRUE(is_size_sealed(memory.fd.get()));
  EXPECT_EQ(::ftruncate(memory.fd.get(), 4096), -1);
  EXPECT_EQ(::ftruncate(memory.fd.get(), 16384), -1);
}

TEST(ReserveShared, a_reader_gets_no_writable_mapping) {
  const SharedMemory memory = reserve_shared("test", 4096);
  EXPECT_EQ(error_text([&] { map_shared(memory.fd.get(), 4096, MapAccess::read_write); }),
            "io_failed: map: cannot map memory\n  bytes  4096\n  system  Operation not permitted");
  EXPECT_EQ(::write(memory.fd.get(), "x", 1), -1);
}

TEST(ReserveShared, a_writer_gets_one_when_the_maker_allows_it) {
  const SharedMemory memory = reserve_shared("test", 4096, PeerAccess::read_write);
  const Mapping peer = map_shared(memory.fd.get(), 4096, MapAccess::read_write);
  peer.data()[4095] = std::byte{5};
  EXPECT_EQ(memory.mapping.data()[4095], std::byte{5});
}

TEST(ReserveShared, a_forked_writer_is_seen) {
  const SharedMemory memory = reserve_shared("test", 4096);
  EXPECT_EQ(status_of_child([&] {
              memory.mapping.data()[1] = std::byte{3};
              return 0;
            }),
            0);
  EXPECT_EQ(memory.mapping.data()[1], std::byte{3});
}

TEST(ReserveShared, nothing_is_a_sealed_file_of_nothing) {
  const SharedMemory memory = reserve_shared("test", 0);
  EXPECT_EQ(memory.mapping.data(), nullptr);
  EXPECT_TRUE(is_size_sealed(memory.fd.get()));
  EXPECT_EQ(map_shared(memory.fd.get(), 0, MapAccess::read_only).data(), nullptr);
}

TEST(MapShared, more_than_the_file_has_is_refused) {
  const SharedMemory memory = reserve_shared("test", 4096);
  EXPECT_EQ(error_text([&] { map_shared(memory.fd.get(), 4097, MapAccess::read_only); }),
            "mismatch: map: shared memory is smaller than its owner says\n"
            "  bytes  4097\n"
            "  file_bytes  4096");
}

TEST(MapShared, a_closed_descriptor_is_refused) {
  EXPECT_EQ(error_text([] { map_shared(-1, 1, MapAccess::read_only); }),
            "io_failed: map: cannot look at shared memory\n"
            "  bytes  1\n"
            "  system  Bad file descriptor");
}

TEST(MapShared, an_unsealed_file_is_told_apart) {
  const FileDescriptor fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_FALSE(is_size_sealed(fd.get()));
}

TEST(Mapping, moves_leave_nothing_behind) {
  Mapping first = reserve_private(4096);
  std::byte* const data = first.data();
  Mapping second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(second.data(), data);
  Mapping third;
  third = std::move(second);
  EXPECT_EQ(third.span().data(), data);
  EXPECT_EQ(third.span().size(), 4096u);
}

TEST(FileDescriptor, closes_what_it_owns) {
  int fd = -1;
  {
    const FileDescriptor owner(::memfd_create("test", MFD_CLOEXEC));
    fd = owner.get();
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace crossmesh
