// SPDX-License-Identifier: Apache-2.0
// Who is let in and who is not: other sessions, other users, noise, peers that lie, and peers that
// do not come. Both back-ends are driven from one thread, and the wire is spoken by hand.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <set>

#include "crossmesh/transport/conformance.h"
#include "crossmesh/transport/detail/control_page.h"
#include "crossmesh/transport/detail/wire.h"

namespace crossmesh::conformance {
namespace {

using detail::Access;
using detail::Hello;
using detail::Message;
using detail::MessageKind;
using detail::Packet;
using detail::Received;
using detail::Verdict;

constexpr auto kGive = Direction::give;
constexpr auto kTake = Direction::take;
const std::string kOtherSession(32, 'f');

// Two ranks that this thread drives; 0 gives and 1 takes.
class Duo : public testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<Transport> make(int rank, const std::string& session_name = kSession) {
    if (GetParam() == Way::inproc_threads) {
      return make_inproc({.hub = &hub_, .session_name = session_name, .rank = rank});
    }
    return make_shm({.session_name = session_name, .rank = rank, .way = shm_way_of(GetParam())});
  }
  void SetUp() override {
    const std::string why = why_not_here(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  // Requires: low's rank is smaller than high's.
  static void connect(Transport& low, int low_rank, Transport& high, int high_rank) {
    std::thread dialer([&] { high.connect(low_rank, low.address(), soon()); });
    low.connect(high_rank, high.address(), soon());
    dialer.join();
  }
  // One giver, one taker, each with a region of `size_bytes`.
  void open(std::int64_t size_bytes) {
    source = std::make_unique<Memory>(size_bytes, 9);
    target = std::make_unique<Memory>(size_bytes, 0);
    giver = make(0);
    taker = make(1);
    giver->enroll(source->buffer());
    taker->enroll(target->buffer());
    connect(*giver, 0, *taker, 1);
  }

  InprocHub hub_;
  std::unique_ptr<Memory> source;
  std::unique_ptr<Memory> target;
  std::unique_ptr<Transport> giver;
  std::unique_ptr<Transport> taker;
};

INSTANTIATE_TEST_SUITE_P(Ways, Duo, testing::ValuesIn(kThreadWays),
                         [](const auto& way) { return name_of(way.param); });

void settle(Transport& transport) {
  while (transport.advance(std::int64_t{1} << 20)) {
  }
}

bool is_woken(Transport& transport) {
  pollfd ready{transport.wake_fds().at(0), POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

// Drives `transport` until the other end of the pipe is closed. Returns what was written to it.
std::string serve_until_closed(Transport& transport, int pipe) {
  std::string told;
  while (true) {
    std::array<pollfd, 2> ready{pollfd{pipe, POLLIN, 0},
                                pollfd{transport.wake_fds().at(0), POLLIN, 0}};
    ::poll(ready.data(), ready.size(), 30000);
    settle(transport);
    if (ready[0].revents == 0) continue;
    std::array<char, 4096> text{};
    const ssize_t size = ::read(pipe, text.data(), text.size());
    if (size <= 0) return told;
    told.append(text.data(), static_cast<std::size_t>(size));
  }
}

// The error of `body`, which another thread runs while this one drives `transport`.
std::string error_while_serving(Transport& transport, const std::function<void()>& body) {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  std::string error;
  std::thread other([&] {
    error = error_of(body);
    writer = FileDescriptor();
  });
  serve_until_closed(transport, reader.get());
  other.join();
  return error;
}

// ---- What is refused ----------------------------------------------------------------------------

TEST_P(Duo, connect_names_the_peer_that_does_not_come) {
  const auto rank = make(3);
  const auto silent = make(1);
  EXPECT_EQ(error_of([&] { rank->connect(5, "", at_once()); }),
            "timed_out: connect: the peer did not dial\n  peer  5\n  rank  3");
  EXPECT_EQ(error_of([&] { rank->connect(1, silent->address(), at_once()); }),
            "timed_out: connect: the peer does not answer\n  peer  1\n  rank  3");
  EXPECT_EQ(error_of([&] { rank->connect(3, rank->address(), soon()); }), "no error");
  EXPECT_EQ(error_of([&] { rank->connect(-1, "", soon()); }),
            "invalid_argument: connect: no such rank\n  peer  -1\n  rank  3");
}

TEST_P(Duo, connect_names_the_peer_that_is_gone) {
  const auto rank = make(3);
  auto gone = make(1);
  const std::string address = gone->address();
  gone.reset();
  EXPECT_EQ(error_of([&] { rank->connect(1, address, soon()); }),
            fmt::format("peer_lost: connect: no one listens at this address\n  address  {}\n"
                        "  peer  1\n  rank  3",
                        address));
}

TEST_P(Duo, another_session_is_told_so_and_kept_out) {
  const auto low = make(0);
  auto stranger = make(1, kOtherSession);
  EXPECT_EQ(error_while_serving(*low, [&] { stranger->connect(0, low->address(), soon()); }),
            "invalid_argument: connect: the peer belongs to another session\n  peer  0\n  rank  1");
  EXPECT_EQ(error_of([&] { low->connect(1, stranger->address(), at_once()); }),
            "timed_out: connect: the peer did not dial\n  peer  1\n  rank  0");
  stranger.reset();
  const auto own = make(1);
  connect(*low, 0, *own, 1);
}

TEST_P(Duo, another_rank_at_an_address_is_told_apart) {
  const auto low = make(0);
  const auto high = make(7);
  EXPECT_EQ(error_while_serving(*low, [&] { high->connect(2, low->address(), soon()); }),
            "invalid_argument: connect: another rank answers at this address\n  peer  2\n"
            "  rank  7\n  answering_rank  0");
}

TEST_P(Duo, who_is_connected_does_not_connect_again) {
  open(8);
  EXPECT_EQ(error_of([&] { taker->connect(0, giver->address(), soon()); }),
            "invalid_argument: connect: the peer is connected already\n  peer  0\n  rank  1");
}

TEST_P(Duo, sessions_and_ranks_that_are_none_are_refused) {
  EXPECT_EQ(error_of([&] { make(0, "abc"); }),
            "invalid_argument: open: a session's name is 32 hexadecimal digits\n"
            "  session_name  abc");
  EXPECT_EQ(error_of([&] { make(0, std::string(32, 'G')); }),
            "invalid_argument: open: a session's name is 32 hexadecimal digits\n"
            "  session_name  GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG");
  EXPECT_EQ(error_of([&] { make(-4); }), "invalid_argument: open: no such rank\n  rank  -4");
}

TEST_P(Duo, buffers_that_are_none_are_refused) {
  const auto rank = make(0);
  const Memory memory(100);
  EXPECT_EQ(error_of([&] { rank->enroll({}); }),
            "invalid_argument: enroll: the buffer is empty\n  region  0\n  size_bytes  0");
  Buffer buffer = memory.buffer();
  if (GetParam() == Way::shm_threads) {
    buffer.shareable_offset_bytes = 60;
    buffer.size_bytes = 41;
    EXPECT_EQ(error_of([&] { rank->enroll(buffer); }),
              "invalid_argument: enroll: the buffer leaves its file\n  offset_bytes  60\n"
              "  size_bytes  41\n  file_bytes  100");
    buffer.shareable_fd = 1 << 20;
    EXPECT_EQ(error_of([&] { rank->enroll(buffer); }),
              "invalid_argument: enroll: the buffer's file cannot be looked at\n"
              "  system  Bad file descriptor");
  }
  EXPECT_EQ(rank->enroll(memory.buffer()), 0);
}

TEST_P(Duo, transfers_that_cannot_be_are_refused_and_nothing_is_posted) {
  open(100);
  std::vector<Transfer> transfers = pieces(3, 10);
  const auto error = [&](int peer, Attempt attempt) {
    return error_of([&] { giver->post({peer, kGive, attempt, transfers}); });
  };
  transfers[1].source_offset_bytes = 91;
  EXPECT_EQ(error(1, 1),
            "invalid_argument: post: a transfer leaves its region\n  peer  1\n  rank  0\n"
            "  attempt  1\n  slot  1\n  region  0\n  region_bytes  100\n  begin  91\n  end  101");
  transfers[1].source_offset_bytes = -1;
  EXPECT_EQ(error(1, 1),
            "invalid_argument: post: a transfer leaves its region\n  peer  1\n  rank  0\n"
            "  attempt  1\n  slot  1\n  region  0\n  region_bytes  100\n  begin  -1\n  end  9");
  transfers[1].nest = {{3}, {std::int64_t{1} << 62}, {1}, 1, 1, 1};
  EXPECT_EQ(error(1, 1),
            "invalid_argument: post: a transfer leaves its region\n  peer  1\n  rank  0\n"
            "  attempt  1\n  slot  1\n  region  0\n  region_bytes  100\n"
            "  reach  more than 63 bits");
  transfers[1].nest = {{-3}, {1}, {1}, 1, 1, 1};
  EXPECT_EQ(error(1, 1),
            "invalid_argument: post: a count is negative\n  peer  1\n  rank  0\n  attempt  1\n"
            "  slot  1\n  source_dtype  U8\n  target_dtype  U8");
  transfers = pieces(1, 10);
  transfers[0].source_region = 4;
  EXPECT_EQ(error(1, 1),
            "invalid_argument: post: no such region\n  peer  1\n  rank  0\n  attempt  1\n"
            "  slot  0\n  region  4");
  transfers = pieces(1, 10);
  EXPECT_EQ(error(2, 1), "invalid_argument: post: the peer is not connected\n  peer  2\n  rank  0");
  EXPECT_EQ(error(1, 0),
            "invalid_argument: post: attempts start at 1\n  peer  1\n  rank  0\n"
            "  direction  give\n  attempt  0\n  cancelled_attempt  0");
  settle(*taker);
  EXPECT_EQ(giver->post({1, kGive, 5, transfers}).first_slot, 0);
  EXPECT_EQ(error(1, 4),
            "invalid_argument: post: a newer attempt was posted\n  peer  1\n  rank  0\n"
            "  direction  give\n  attempt  4\n  newer_attempt  5");
  EXPECT_EQ(error(1, 6),
            "invalid_argument: post: an older attempt is neither done nor cancelled\n  peer  1\n"
            "  rank  0\n  direction  give\n  attempt  6\n  older_attempt  5");
  EXPECT_EQ(error_of([&] { giver->progress({.peer = 2}); }),
            "invalid_argument: progress: the peer is not connected\n  peer  2\n  rank  0");
}

TEST_P(Duo, private_memory_is_given_too) {
  open(8);
  std::array<std::byte, 16> own{};
  own.fill(std::byte{3});
  const Region region = giver->enroll({.data = own.data(), .size_bytes = 16});
  const std::vector<Transfer> transfers = {contiguous({.source_region = region, .size_bytes = 8})};
  giver->post({1, kGive, 1, transfers});
  taker->post({0, kTake, 1, transfers});
  settle(*taker);
  EXPECT_EQ(target->bytes(), std::vector<unsigned char>(8, 3));
}

TEST_P(Duo, a_region_retires_once_its_own_transfers_are_done) {
  open(100);
  const Memory second(100, 4);
  giver->enroll(second.buffer());
  taker->enroll(second.buffer());
  std::vector<Transfer> transfers = pieces(2, 50);
  transfers[1].source_region = transfers[1].target_region = 1;
  giver->post({1, kGive, 1, transfers});
  taker->post({0, kTake, 1, transfers});
  EXPECT_EQ(error_of([&] { giver->retire(0); }),
            "invalid_argument: retire: an unfinished transfer names the region\n  peer  1\n"
            "  rank  0\n  region  0\n  direction  give");
  taker->advance(50);
  EXPECT_EQ(error_of([&] { taker->retire(0); }), "no error");
  EXPECT_EQ(error_of([&] { giver->retire(0); }), "no error");
  EXPECT_EQ(error_of([&] { giver->retire(1); }),
            "invalid_argument: retire: an unfinished transfer names the region\n  peer  1\n"
            "  rank  0\n  region  1\n  direction  give");
}

TEST_P(Duo, a_transfer_that_was_cancelled_half_way_starts_anew) {
  open(1000);
  const std::vector<Transfer> first = pieces(1, 1000);
  giver->post({1, kGive, 1, first});
  const Ticket ticket = taker->post({0, kTake, 1, first});
  taker->advance(100);
  taker->advance(100);
  EXPECT_EQ((*target)[199], 9);
  EXPECT_EQ((*target)[200], 0);
  EXPECT_EQ(taker->progress(ticket).done, 0);
  giver->cancel(1, at_once());
  taker->cancel(1, at_once());
  std::memset(target->data(), 0, 1000);
  const std::vector<Transfer> next = pieces(2, 500);
  giver->post({1, kGive, 2, next});
  taker->post({0, kTake, 2, next});
  settle(*taker);
  EXPECT_EQ(target->bytes(), std::vector<unsigned char>(1000, 9));
}

// ---- Bells --------------------------------------------------------------------------------------

TEST_P(Duo, a_batch_rings_once_and_its_end_rings_back) {
  open(500);
  const std::vector<Transfer> transfers = pieces(5, 100);
  settle(*giver);
  settle(*taker);
  EXPECT_FALSE(is_woken(*giver));
  EXPECT_FALSE(is_woken(*taker));
  const Ticket ticket = giver->post({1, kGive, 1, transfers});
  EXPECT_TRUE(is_woken(*taker));
  taker->post({0, kTake, 1, transfers});
  for (int done = 1; done < 5; ++done) {
    EXPECT_TRUE(taker->advance(1));
    // A part of a transfer is no reason to wake the source.
    EXPECT_FALSE(is_woken(*giver));
  }
  settle(*taker);
  EXPECT_TRUE(is_woken(*giver));
  EXPECT_FALSE(is_woken(*taker));
  settle(*giver);
  EXPECT_TRUE(giver->progress(ticket).finished);
  EXPECT_FALSE(is_woken(*giver));
}

TEST_P(Duo, bells_follow_the_batches_of_the_source_and_not_those_of_the_target) {
  open(600);
  const std::vector<Transfer> transfers = pieces(6, 100);
  const std::span<const Transfer> all = transfers;
  settle(*giver);
  settle(*taker);
  const Ticket first = giver->post({1, kGive, 1, all.first(4)});
  const Ticket second = giver->post({1, kGive, 1, all.subspan(4)});
  for (std::size_t i = 0; i < 6; ++i) {
    taker->post({0, kTake, 1, all.subspan(i, 1)});
    settle(*taker);
    const bool ends_batch = i == 3 || i == 5;
    EXPECT_EQ(is_woken(*giver), ends_batch) << i;
    if (!ends_batch) continue;
    settle(*giver);
    EXPECT_TRUE(giver->progress(first).finished);
    EXPECT_EQ(giver->progress(second).finished, i == 5);
  }
}

TEST_P(Duo, news_that_a_connect_read_still_wake) {
  open(100);
  settle(*taker);
  EXPECT_FALSE(is_woken(*taker));
  giver.reset();
  EXPECT_EQ(error_of([&] { taker->connect(2, "", at_once()); }),
            "timed_out: connect: the peer did not dial\n  peer  2\n  rank  1");
  EXPECT_TRUE(is_woken(*taker));
  EXPECT_EQ(error_of([&] { settle(*taker); }),
            "peer_lost: advance: the peer closed its connection or died\n  peer  0\n  rank  1");
  EXPECT_FALSE(is_woken(*taker));
}

// ---- Descriptors --------------------------------------------------------------------------------

// The open descriptors, and whether a child program would inherit each.
std::map<int, bool> open_descriptors() {
  std::map<int, bool> inherited;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == ::dirfd(folder)) continue;
    inherited[fd] = (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
  }
  ::closedir(folder);
  return inherited;
}

TEST_P(Duo, no_descriptor_is_inherited_or_left) {
  const std::map<int, bool> before = open_descriptors();
  open(100);
  const std::vector<Transfer> transfers = pieces(1, 100);
  giver->post({1, kGive, 1, transfers});
  taker->post({0, kTake, 1, transfers});
  settle(*taker);
  int count = 0;
  for (const auto& [fd, is_inherited] : open_descriptors()) {
    if (before.contains(fd)) continue;
    EXPECT_FALSE(is_inherited) << fd;
    ++count;
  }
  EXPECT_GE(count, 6);
  // A retired region gives its file back, at the peer as well.
  giver->retire(0);
  taker->retire(0);
  source.reset();
  target.reset();
  settle(*giver);
  settle(*taker);
  giver.reset();
  taker.reset();
  EXPECT_EQ(open_descriptors(), before);
}

// ---- Spoken by hand, over shm -------------------------------------------------------------------

FileDescriptor raw_socket(const std::string& address, int type) {
  FileDescriptor fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::copy(address.begin() + 1, address.end(), name.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0) {
    return FileDescriptor();
  }
  return fd;
}

Hello valid_hello(int rank, int peer, ShmWay way = ShmWay::automatic) {
  Hello hello;
  hello.way = way;
  hello.rank = rank;
  hello.peer = peer;
  std::copy_n(kSession.begin(), detail::kSessionNameSize, hello.session_name.begin());
  return hello;
}

Packet wait_for_packet(int socket) {
  pollfd ready{socket, POLLIN, 0};
  ::poll(&ready, 1, 30000);
  return detail::receive_packet(socket);
}

void say_access(int socket, Access access) {
  detail::send_value(socket, Message{.kind = MessageKind::access, .access = access});
}

// Rank 1, as a program that is not crossmesh plays it to rank 0.
class Impostor {
 public:
  explicit Impostor(Transport& victim, ShmWay way = ShmWay::automatic)
      : socket(raw_socket(victim.address(), SOCK_SEQPACKET)) {
    detail::send_value(socket.get(), valid_hello(1, 0, way));
    say_access(socket.get(), Access::none);
    victim.connect(1, "", soon());
    const Packet answer = wait_for_packet(socket.get());
    mapping = map_shared(answer.fd.get(), sizeof(detail::ControlPage), MapAccess::read_write);
  }
  detail::ControlPage& page() const {
    return *reinterpret_cast<detail::ControlPage*>(mapping.data());
  }

  FileDescriptor socket;
  Mapping mapping;
};

TEST(Strangers, a_cancel_waits_for_a_reader_and_names_it) {
  const auto rank = make_shm({.session_name = kSession, .rank = 0});
  const Memory memory(100);
  rank->enroll(memory.buffer());
  const Impostor peer(*rank);
  const std::vector<Transfer> transfers = pieces(1, 100);
  const Ticket ticket = rank->post({1, kGive, 3, transfers});
  peer.page().lanes[0].target.pulling.store(3);
  EXPECT_EQ(error_of([&] { rank->cancel(3, at_once()); }),
            "timed_out: cancel: the peer is still reading\n  peer  1\n  rank  0\n  attempt  3");
  EXPECT_EQ(peer.page().lanes[0].source.withdrawn.load(), 3u);
  std::thread reader([&] {
    peer.page().lanes[0].target.pulling.store(0);
    detail::send_value(peer.socket.get(), Message{.kind = MessageKind::bell});
  });
  EXPECT_EQ(error_of([&] { rank->cancel(3, soon()); }), "no error");
  reader.join();
  EXPECT_FALSE(rank->progress(ticket).finished);
  // A read for a newer attempt is none of its business.
  peer.page().lanes[0].target.pulling.store(5);
  EXPECT_EQ(error_of([&] { rank->cancel(4, at_once()); }), "no error");
  // A reader that dies reads no more.
  rank->post({1, kGive, 5, transfers});
  std::thread dying([&] { ::shutdown(peer.socket.get(), SHUT_RDWR); });
  EXPECT_EQ(error_of([&] { rank->cancel(5, soon()); }), "no error");
  dying.join();
}

TEST(Strangers, who_leaves_or_ends_waits_for_a_reader) {
  for (const bool takes_leave : {true, false}) {
    auto rank = make_shm({.session_name = kSession, .rank = 0});
    const Impostor peer(*rank);
    detail::Lane& lane = peer.page().lanes[0];
    lane.target.pulling.store(3);
    std::atomic<bool> has_gone = false;
    bool was_asked = false;
    std::thread reader([&] {
      while (!was_asked && !has_gone) was_asked = lane.source.withdrawn.load() >= 3;
      lane.target.pulling.store(0);
      detail::send_value(peer.socket.get(), Message{.kind = MessageKind::bell});
    });
    if (takes_leave) rank->disconnect(1);
    if (!takes_leave) rank.reset();
    has_gone = true;
    reader.join();
    EXPECT_TRUE(was_asked) << takes_leave;
    Packet packet = wait_for_packet(peer.socket.get());
    if (takes_leave) {
      EXPECT_EQ(detail::value_in<Message>(packet)->kind, MessageKind::bye);
      packet = wait_for_packet(peer.socket.get());
    }
    EXPECT_EQ(packet.received, Received::end) << takes_leave;
  }
}

TEST(Strangers, a_peer_that_acknowledges_or_offers_too_much_gets_no_further_than_was_posted) {
  const auto rank = make_shm({.session_name = kSession, .rank = 0});
  const Memory memory(100, 3);
  rank->enroll(memory.buffer());
  const Impostor peer(*rank);
  const std::vector<Transfer> transfers = pieces(2, 50);
  const Ticket given = rank->post({1, kGive, 1, transfers});
  const Ticket taken = rank->post({1, kTake, 1, transfers});
  peer.page().lanes[0].target.acknowledged.store(detail::pack({1, 1000}));
  EXPECT_TRUE(rank->advance(1));
  EXPECT_EQ(rank->progress(given).done, 2);
  const Memory other(100, 7);
  detail::send_value(peer.socket.get(), Message{.kind = MessageKind::file, .file = 0},
                     other.shared.fd.get());
  Message region{.kind = MessageKind::region, .region = 0, .file = 0};
  region.size_bytes = 100;
  detail::send_value(peer.socket.get(), region);
  peer.page().lanes[1].source.offered.store(detail::pack({1, 1000}));
  settle(*rank);
  EXPECT_EQ(rank->progress(taken).done, 2);
  EXPECT_EQ(memory.bytes(), std::vector<unsigned char>(100, 7));
}

TEST(Strangers, a_region_that_leaves_its_file_ends_with_it) {
  const auto rank = make_shm({.session_name = kSession, .rank = 0, .way = ShmWay::memfd});
  const Memory memory(100, 3);
  rank->enroll(memory.buffer());
  const Impostor peer(*rank, ShmWay::memfd);
  const Memory other(90, 7);
  detail::send_value(peer.socket.get(), Message{.kind = MessageKind::file, .file = 0},
                     other.shared.fd.get());
  Message region{.kind = MessageKind::region, .region = 0, .file = 0};
  region.offset_bytes = 10;
  region.size_bytes = std::int64_t{1} << 62;
  detail::send_value(peer.socket.get(), region);
  // An address means nothing where files alone are mapped, and neither does a file that was not
  // passed.
  region.region = 1;
  region.file = -1;
  region.address = 4096;
  detail::send_value(peer.socket.get(), region);
  region.region = 2;
  region.file = 9;
  detail::send_value(peer.socket.get(), region);
  peer.page().lanes[1].source.offered.store(detail::pack({1, 1}));
  const std::vector<Transfer> first = {contiguous({.size_bytes = 81})};
  rank->post({1, kTake, 1, first});
  EXPECT_EQ(error_of([&] { settle(*rank); }),
            "mismatch: pull: the peer's region is smaller than a transfer says\n  peer  1\n"
            "  rank  0\n  attempt  1\n  slot  0\n  region  0\n  region_bytes  80\n  begin  0\n"
            "  end  81");
  for (const Region unreachable : {1, 2}) {
    const auto attempt = static_cast<Attempt>(unreachable + 1);
    rank->cancel(attempt - 1, soon());
    const std::vector<Transfer> next = {
        contiguous({.source_region = unreachable, .size_bytes = 1})};
    rank->post({1, kTake, attempt, next});
    peer.page().lanes[1].source.offered.store(detail::pack({attempt, 1}));
    EXPECT_EQ(error_of([&] { settle(*rank); }),
              fmt::format("mismatch: pull: the peer has no such region\n  peer  1\n  rank  0\n"
                          "  attempt  {}\n  slot  0\n  region  {}",
                          attempt, unreachable));
  }
}

TEST(Strangers, a_peer_that_talks_nonsense_is_lost) {
  const auto rank = make_shm({.session_name = kSession, .rank = 0});
  const Impostor peer(*rank);
  const std::string noise = "GET / HTTP/1.0\r\n\r\n";
  detail::send_packet(peer.socket.get(), std::as_bytes(std::span(noise)));
  EXPECT_EQ(error_of([&] { settle(*rank); }),
            "peer_lost: advance: the peer closed its connection or died\n  peer  1\n  rank  0");
}

TEST(Strangers, noise_and_silence_keep_no_one_out) {
  const auto low = make_shm({.session_name = kSession, .rank = 0});
  const auto high = make_shm({.session_name = kSession, .rank = 1});
  EXPECT_EQ(raw_socket(low->address(), SOCK_STREAM).get(), -1);
  std::vector<FileDescriptor> guests;
  const auto dial = [&]() -> int {
    return guests.emplace_back(raw_socket(low->address(), SOCK_SEQPACKET)).get();
  };
  const std::string noise(5000, 'x');
  detail::send_packet(dial(), std::as_bytes(std::span(noise)));
  detail::send_packet(dial(), std::as_bytes(std::span(noise)).first(sizeof(Hello)));
  detail::send_packet(dial(), {});
  Hello wrong = valid_hello(1, 0);
  wrong.magic[0] = '?';
  detail::send_value(dial(), wrong);
  const std::size_t dropped = guests.size();
  wrong = valid_hello(1, 0);
  wrong.protocol = 99;
  const int old = dial();
  detail::send_value(old, wrong);
  const int own_rank = dial();
  detail::send_value(own_rank, valid_hello(0, 0));
  Hello other = valid_hello(1, 0);
  other.session_name[0] = '?';
  const int other_session = dial();
  detail::send_value(other_session, other);
  // More silent guests than there is room for; then one that has closed again.
  for (int i = 0; i < 300; ++i) dial();
  guests.pop_back();

  std::thread dialer([&] { high->connect(0, low->address(), soon()); });
  low->connect(1, high->address(), soon());
  dialer.join();
  for (std::size_t i = 0; i < dropped; ++i) {
    EXPECT_EQ(wait_for_packet(guests[i].get()).received, Received::end) << i;
  }
  EXPECT_EQ(detail::value_in<Hello>(wait_for_packet(old))->verdict, Verdict::other_protocol);
  EXPECT_EQ(detail::value_in<Hello>(wait_for_packet(own_rank))->verdict, Verdict::other_rank);
  const Packet refusal = wait_for_packet(other_session);
  EXPECT_EQ(detail::value_in<Hello>(refusal)->verdict, Verdict::other_session);
  EXPECT_EQ(refusal.fd.get(), -1);
  // A guest that speaks late is served like any other.
  const int late = guests.back().get();
  detail::send_value(late, valid_hello(2, 0));
  say_access(late, Access::none);
  low->connect(2, "", soon());
  const Packet welcome = wait_for_packet(late);
  EXPECT_EQ(detail::value_in<Hello>(welcome)->verdict, Verdict::welcome);
  EXPECT_GE(welcome.fd.get(), 0);
}

TEST(Strangers, an_answer_in_another_protocol_is_refused) {
  // A listener that is no rank: it answers with its own version, then with noise.
  const std::string name = fmt::format("crossmesh-test-{}", ::getpid());
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  const auto answer_with = [&](const Hello& hello) {
    std::thread answering([&] {
      const FileDescriptor socket(::accept(listener.get(), nullptr, nullptr));
      wait_for_packet(socket.get());
      detail::send_value(socket.get(), hello);
    });
    const auto rank = make_shm({.session_name = kSession, .rank = 1});
    const std::string error = error_of([&] { rank->connect(0, "@" + name, soon()); });
    answering.join();
    return error;
  };
  Hello hello = valid_hello(0, 1);
  hello.verdict = Verdict::welcome;
  hello.protocol = 99;
  EXPECT_EQ(answer_with(hello),
            "mismatch: connect: the peer speaks another protocol version\n  peer  0\n  rank  1");
  hello.protocol = detail::kProtocol;
  EXPECT_EQ(answer_with(hello),
            "mismatch: connect: the peer offers no control page\n  peer  0\n  rank  1");
  hello.magic = {};
  EXPECT_EQ(answer_with(hello),
            "mismatch: connect: no rank answers at this address\n  peer  0\n  rank  1");
}

TEST(Strangers, a_rank_that_moves_in_another_way_is_told_so_and_kept_out) {
  const auto low = make_shm({.session_name = kSession, .rank = 0, .way = ShmWay::ring});
  const auto high = make_shm({.session_name = kSession, .rank = 1, .way = ShmWay::attach});
  EXPECT_EQ(error_while_serving(*low, [&] { high->connect(0, low->address(), soon()); }),
            "invalid_argument: connect: the peer moves bytes in another way\n  peer  0\n"
            "  rank  1\n  way  attach\n  peer_way  ring");
  EXPECT_EQ(error_of([&] { low->connect(1, "", at_once()); }),
            "timed_out: connect: the peer did not dial\n  peer  1\n  rank  0");
}

TEST(Strangers, a_peer_that_shows_no_word_is_not_attached_to) {
  const auto rank = make_shm({.session_name = kSession, .rank = 0});
  const Impostor peer(*rank);
  EXPECT_EQ(rank->facts(1).why_not_attach, "the peer shows no word to read");
  const auto strict = make_shm({.session_name = kSession, .rank = 0, .way = ShmWay::attach});
  EXPECT_EQ(error_of([&] { Impostor(*strict, ShmWay::attach); }),
            "unsupported: connect: this process cannot attach to the peer\n  peer  1\n  rank  0\n"
            "  why  the peer shows no word to read\n  hint  another way than attach");
  // It is not connected, and may try again.
  EXPECT_EQ(error_of([&] { strict->disconnect(1); }),
            "invalid_argument: disconnect: the peer is not connected\n  peer  1\n  rank  0");
}

TEST(Strangers, addresses_that_are_none_are_refused) {
  const auto rank = make_shm({.session_name = kSession, .rank = 1});
  for (const std::string& address :
       {std::string(), std::string("@"), std::string("x-1"), "@" + std::string(108, 'x')}) {
    EXPECT_EQ(error_of([&] { rank->connect(0, address, soon()); }),
              fmt::format("invalid_argument: connect: this is no address of a rank\n"
                          "  address  {}\n  peer  0\n  rank  1",
                          address));
  }
}

TEST(Strangers, the_address_does_not_tell_the_session) {
  const auto rank = make_shm({.session_name = kSession, .rank = 1});
  EXPECT_EQ(rank->address().find(kSession), std::string::npos);
  const auto again = make_shm({.session_name = kSession, .rank = 1});
  EXPECT_NE(rank->address(), again->address());
}

// ---- Another user -------------------------------------------------------------------------------

constexpr uid_t kNobody = 65534;

// Runs `body` as another user, in a child that says how it went; drives `transport` meanwhile.
std::string run_as_nobody(Transport& transport, const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "no pipe";
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_nobody = ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
    const std::string text = is_nobody ? body() : "still root";
    [[maybe_unused]] const ssize_t size = ::write(writer.get(), text.data(), text.size());
    ::_exit(0);
  }
  writer = FileDescriptor();
  const std::string told = serve_until_closed(transport, reader.get());
  ::waitpid(child, nullptr, 0);
  return told;
}

TEST(Strangers, another_user_gets_no_descriptor_though_it_knows_everything) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto low = make_shm({.session_name = kSession, .rank = 0});
  const Memory memory(100, 9);
  low->enroll(memory.buffer());
  const std::string address = low->address();
  EXPECT_EQ(run_as_nobody(*low,
                          [&]() -> std::string {
                            const FileDescriptor socket = raw_socket(address, SOCK_SEQPACKET);
                            if (socket.get() < 0) return "cannot dial";
                            detail::send_value(socket.get(), valid_hello(1, 0));
                            const Packet packet = wait_for_packet(socket.get());
                            if (packet.fd.get() >= 0) return "got a descriptor";
                            return packet.received == Received::end ? "was closed" : "got a word";
                          }),
            "was closed");
  // The same words from this user are welcome.
  const Impostor peer(*low);
}

TEST(Strangers, a_listener_of_another_user_is_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto high = make_shm({.session_name = kSession, .rank = 1});
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  FileDescriptor own(ends[0]);
  FileDescriptor childs(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    own = FileDescriptor();
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
    const auto squatter = make_shm({.session_name = kSession, .rank = 0});
    const std::string address = squatter->address();
    [[maybe_unused]] const ssize_t size = ::send(childs.get(), address.data(), address.size(), 0);
    // Until the parent is done.
    std::array<char, 1> end{};
    [[maybe_unused]] const ssize_t nothing = ::recv(childs.get(), end.data(), end.size(), 0);
    ::_exit(0);
  }
  childs = FileDescriptor();
  std::array<char, 200> address{};
  const ssize_t size = ::recv(own.get(), address.data(), address.size(), 0);
  ASSERT_GT(size, 0);
  EXPECT_EQ(error_of([&] {
              high->connect(0, std::string(address.data(), static_cast<std::size_t>(size)), soon());
            }),
            "invalid_argument: connect: the peer belongs to another user\n  peer  0\n  rank  1");
  own = FileDescriptor();
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace crossmesh::conformance
