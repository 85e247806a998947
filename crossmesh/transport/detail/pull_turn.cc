// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/pull_turn.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <system_error>

#include "crossmesh/base/error.h"
#include "crossmesh/memory/copy.h"
#include "crossmesh/transport/detail/bounds.h"
#include "crossmesh/transport/detail/gather.h"

namespace crossmesh::detail {
namespace {

// An attempt as large as this does not stay in a cache.
constexpr std::int64_t kStreamingBytes = std::int64_t{8} << 20;
// What the system takes to look up one more run of another process, in bytes that it would copy in
// that time; and what the second copy of a byte takes, through the buffer, in quarters of the
// first.
constexpr std::int64_t kLookUpBytes = std::int64_t{8} << 10;
constexpr std::int64_t kSecondCopyQuarters = 3;
// Shorter runs are put in place by this process, even if the source has no gaps.
constexpr std::int64_t kDirectRunBytes = 512;
// What is read through the buffer at once: more of it would leave the cache before it is put in
// place.
constexpr std::int64_t kGatherBytes = std::int64_t{1} << 20;
// What a witness sees at once: it is still in the second cache when it is looked at.
constexpr std::int64_t kWatchedBytes = std::int64_t{128} << 10;

Error pull_error(ErrorCode code, std::string_view what, const Bench& bench,
                 const Connection& connection, const Transfer& transfer) {
  return Error(code, fmt::format("pull: {}", what))
      .with("peer", connection.peer)
      .with("rank", bench.roster->rank)
      .with("attempt", connection.take.attempt())
      .with("slot", connection.take.done())
      .with("region", transfer.source_region);
}

std::optional<PeerBytes> find_region(const Bench& bench, const Connection& connection,
                                     Region region) {
  if (!connection.is_own) return connection.memory.find(region);
  const Buffer* buffer = bench.enrolment->find(region);
  if (buffer == nullptr) return std::nullopt;
  return PeerBytes{buffer->data, buffer->size_bytes, false};
}

// The region that was read last: most transfers read the same one. It holds until messages are
// read.
struct LastRegion {
  Region region = -1;
  std::optional<PeerBytes> memory;
};

// Where the transfer is read. Throws: mismatch.
PeerBytes find_source(const Bench& bench, const Connection& connection, const Transfer& transfer,
                      LastRegion& last) {
  if (!last.memory || last.region != transfer.source_region) {
    last = {transfer.source_region, find_region(bench, connection, transfer.source_region)};
  }
  std::optional<PeerBytes>& memory = last.memory;
  const auto reach = reach_of(transfer, Side::source);
  if (memory && reach && reach->begin_bytes >= 0 && reach->end_bytes <= memory->size_bytes) {
    PeerBytes there = *memory;
    there.address += transfer.source_offset_bytes;
    return there;
  }
  Error error = pull_error(
      ErrorCode::mismatch,
      memory ? "the peer's region is smaller than a transfer says" : "the peer has no such region",
      bench, connection, transfer);
  if (memory) error.with("region_bytes", memory->size_bytes);
  if (memory && reach) error.with("begin", reach->begin_bytes).with("end", reach->end_bytes);
  throw error;
}

// What one slice is, wherever it is read from.
struct Piece {
  const Transfer* transfer = nullptr;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  bool is_large = false;  // its attempt
  Witness* witness = nullptr;
  const std::byte* first_target = nullptr;  // where the whole transfer starts
};

// `source`: where the elements were read, or null when they are best read where they are.
void show(const Piece& piece, const LoopNest& nest, const std::byte* source) {
  if (piece.witness == nullptr) return;
  piece.witness->moved(*piece.transfer,
                       {piece.target - piece.first_target, source, piece.target, nest});
}

void copy_or_convert(const Piece& piece, const LoopNest& nest) {
  const Transfer& transfer = *piece.transfer;
  if (transfer.source_dtype != transfer.target_dtype) {
    convert(piece.source, piece.target, nest, transfer.source_dtype, transfer.target_dtype);
    return show(piece, nest, nullptr);
  }
  copy(piece.source, piece.target, nest,
       piece.is_large ? StoreHint::streaming : StoreHint::automatic);
  // Streamed bytes have left for memory; those that were read are at hand.
  show(piece, nest, piece.source);
}

// Whether runs are read straight into place, and not in stretches with the gaps between them.
bool reads_direct(const Transfer& transfer) {
  const LoopNest& nest = transfer.nest;
  if (transfer.source_dtype != transfer.target_dtype) return false;
  if (nest.counts.empty()) return true;
  const std::int64_t run_bytes = nest.run_count * nest.source_element_bytes;
  std::int64_t stride = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t s : nest.source_strides) stride = std::min(stride, std::abs(s));
  const std::int64_t gap_bytes = std::max<std::int64_t>(0, stride - run_bytes);
  if (gap_bytes == 0) return run_bytes >= kDirectRunBytes;
  return gap_bytes + run_bytes * kSecondCopyQuarters / 4 >= kLookUpBytes;
}

// Throws: io_failed. A peer that is gone is dropped; then false is returned.
bool check_outcome(const Bench& bench, Connection& connection, const Transfer& transfer,
                   const ReadOutcome& outcome) {
  if (outcome.is_whole()) return true;
  if (outcome.is_other_process || outcome.error == ESRCH) {
    drop(*bench.roster, connection, PeerState::lost);
    return false;
  }
  Error error = pull_error(ErrorCode::io_failed, "the peer's memory cannot be read whole", bench,
                           connection, transfer)
                    .with("wanted_bytes", outcome.wanted_bytes)
                    .with("read_bytes", std::max<std::int64_t>(0, outcome.read_bytes));
  if (outcome.error == 0) throw error;
  throw std::move(error).with("system", std::generic_category().message(outcome.error));
}

// Reads a slice out of another process. Returns false when that is gone.
bool read_slice(Bench& bench, Connection& connection, const Piece& piece, const LoopNest& nest) {
  const auto source = reinterpret_cast<std::uint64_t>(piece.source);
  const auto is_read = [&](const ReadOutcome& outcome) {
    return check_outcome(bench, connection, *piece.transfer, outcome);
  };
  if (reads_direct(*piece.transfer)) {
    if (!is_read(read_runs(connection.attachment, source, piece.target, nest))) return false;
    show(piece, nest, nullptr);
    return true;
  }
  const Gather gather = gather_of(nest);
  if (bench.buffer.bytes() < gather.buffer_bytes) {
    bench.buffer = Mapping();
    bench.buffer = reserve_private(std::max(gather.buffer_bytes, 2 * kGatherBytes));
  }
  std::byte* buffer = bench.buffer.data();
  if (!is_read(read_runs(connection.attachment,
                         source + static_cast<std::uint64_t>(gather.source_offset_bytes), buffer,
                         gather.stretches))) {
    return false;
  }
  Piece rest = piece;
  rest.source = buffer + gather.scatter_offset_bytes;
  copy_or_convert(rest, gather.scatter);
  return true;
}

// What moving one slice came to: its bytes, or nothing when it cannot be moved yet.
using Moved = std::optional<std::int64_t>;

std::int64_t target_bytes(const LoopNest& nest) {
  return element_count(nest) * nest.target_element_bytes;
}

std::int64_t slice_limit(const Transfer& transfer, std::int64_t bytes) {
  const LoopNest& nest = transfer.nest;
  return std::max<std::int64_t>({bytes, nest.source_element_bytes, nest.target_element_bytes});
}

// Whether a transfer need not be cut; of a model with many small tensors none need.
bool fits(const Transfer& transfer, std::int64_t bytes) {
  const LoopNest& nest = transfer.nest;
  return element_count(nest) <=
         bytes / std::max(nest.source_element_bytes, nest.target_element_bytes);
}

Moved pull_slice(Bench& bench, Connection& connection, const Piece& piece, bool is_remote,
                 std::int64_t slice_bytes) {
  const Transfer& transfer = *piece.transfer;
  if (!connection.cursor && !is_remote && fits(transfer, slice_bytes)) {
    copy_or_convert(piece, transfer.nest);
    return target_bytes(transfer.nest);
  }
  if (!connection.cursor) {
    const bool gathers = is_remote && !reads_direct(transfer);
    const std::int64_t bytes = gathers ? std::min(slice_bytes, kGatherBytes) : slice_bytes;
    connection.cursor.emplace(Slices(transfer.nest, slice_limit(transfer, bytes)));
  }
  Cursor& cursor = *connection.cursor;
  std::int64_t moved_bytes = 0;
  if (cursor.next < cursor.slices.count()) {
    const Slice slice = cursor.slices.at(cursor.next++);
    Piece part = piece;
    part.source += slice.source_offset_bytes;
    part.target += slice.target_offset_bytes;
    if (!is_remote) copy_or_convert(part, slice.nest);
    if (is_remote && !read_slice(bench, connection, part, slice.nest)) return std::nullopt;
    moved_bytes = target_bytes(slice.nest);
  }
  if (cursor.next == cursor.slices.count()) connection.cursor.reset();
  return moved_bytes;
}

// Whether the source packed the chunk after those that were taken.
bool has_chunk(Bench& bench, Connection& connection) {
  const auto packed = [&] {
    const Tally tally = unpack(taking_lane(connection).source.packed.load());
    return tally.attempt == connection.take.attempt() ? tally.count : 0;
  };
  if (connection.ring_reader && connection.ring_reader->attempt != connection.take.attempt()) {
    start_over(*connection.ring_reader, connection.take.attempt());
  }
  if (packed() <= (connection.ring_reader ? connection.ring_reader->taken : 0)) return false;
  if (connection.ring_reader) return true;
  // The ring was announced before it was packed, but that may still be unread.
  hear(*bench.roster, connection);
  if (!connection.ring_reader) return false;
  start_over(*connection.ring_reader, connection.take.attempt());
  return true;
}

// Moves a part of a chunk out of the ring.
Moved unpack_slice(Bench& bench, Connection& connection, const Piece& piece,
                   std::int64_t slice_bytes) {
  const Transfer& transfer = *piece.transfer;
  const bool is_open = connection.ring_reader && connection.ring_reader->slices &&
                       connection.ring_reader->attempt == connection.take.attempt();
  if (!is_open && element_count(transfer.nest) > 0 && !has_chunk(bench, connection)) {
    return std::nullopt;
  }
  if (element_count(transfer.nest) == 0) return 0;
  RingReader& reader = *connection.ring_reader;
  if (!connection.cursor) {
    connection.cursor.emplace(Slices(transfer.nest, chunk_bytes_max(reader.memory.bytes())));
  }
  Cursor& cursor = *connection.cursor;
  if (!is_open) {
    open_chunk(reader, cursor.slices.at(cursor.next++), slice_limit(transfer, slice_bytes));
  }
  const Slice part = reader.slices->at(reader.next_slice++);
  Piece packed = piece;
  packed.source = reader.memory.data() + reader.place.offset_bytes + part.source_offset_bytes;
  packed.target += reader.target_offset_bytes + part.target_offset_bytes;
  copy_or_convert(packed, part.nest);
  if (reader.next_slice == reader.slices->count()) {
    reader.slices.reset();
    taking_lane(connection).target.unpacked.store(pack({reader.attempt, ++reader.taken}));
    if (taking_lane(connection).source.is_starved.load() != 0) ring(connection);
    if (cursor.next == cursor.slices.count()) connection.cursor.reset();
  }
  return target_bytes(part.nest);
}

// Moves one slice of the transfer that is next.
Moved move_slice(Bench& bench, Connection& connection, std::int64_t slice_bytes, LastRegion& last) {
  const Transfer& transfer = connection.take.at(connection.take.done());
  const PeerBytes source = find_source(bench, connection, transfer, last);
  std::byte* const target =
      bench.enrolment->find(transfer.target_region)->data + transfer.target_offset_bytes;
  const Piece piece{&transfer,
                    source.address,
                    target,
                    connection.take.bytes() >= kStreamingBytes,
                    connection.take.witness_of(connection.take.done()),
                    target};
  if (piece.witness != nullptr) slice_bytes = std::min(slice_bytes, kWatchedBytes);
  if (!source.is_remote) {
    note_way(connection, ShmWay::memfd);
    return pull_slice(bench, connection, piece, false, slice_bytes);
  }
  if (connection.takes == Access::attach) {
    note_way(connection, ShmWay::attach);
    return pull_slice(bench, connection, piece, true, slice_bytes);
  }
  note_way(connection, ShmWay::ring);
  last = {};
  return unpack_slice(bench, connection, piece, slice_bytes);
}

// Says that the peer's memory is being read, for as long as it lives.
class Pulling {
 public:
  explicit Pulling(const Connection& connection)
      : connection_(connection), attempt_(connection.take.attempt()) {
    lane().target.pulling.store(attempt_);
  }
  // A source that cancelled meanwhile waits for it.
  ~Pulling() {
    lane().target.pulling.store(0);
    if (is_withdrawn()) ring(connection_);
  }
  Pulling(const Pulling&) = delete;
  Pulling& operator=(const Pulling&) = delete;

  // The source looks at `pulling` after it sets `withdrawn`, and here it is the other way round:
  // one of the two sees the other.
  bool is_withdrawn() const { return lane().source.withdrawn.load() >= attempt_; }

 private:
  Lane& lane() const { return taking_lane(connection_); }

  const Connection& connection_;
  Attempt attempt_;
};

// How many slots of the attempt that this rank takes the peer has offered.
std::int64_t offered_count(Roster& roster, Connection& connection) {
  const std::uint64_t word = taking_lane(connection).source.offered.load();
  if (word != connection.seen_offered) {
    // What the peer said before it offered has to be known before it is used.
    hear(roster, connection);
    if (connection.state != PeerState::open) return 0;
    connection.seen_offered = word;
  }
  const Tally tally = unpack(word);
  if (tally.attempt != connection.take.attempt()) return 0;
  return std::min(tally.count, connection.take.posted());
}

// Pulls offered slots.
void pull_offered(Bench& bench, Connection& connection, std::int64_t offered, Turn& turn,
                  std::int64_t turn_bytes) {
  Stream& take = connection.take;
  LastRegion last;
  const Pulling pulling(connection);
  while (take.done() < offered && turn.bytes < turn_bytes && !pulling.is_withdrawn()) {
    Moved moved;
    try {
      moved = move_slice(bench, connection, turn_bytes, last);
    } catch (const Error&) {
      connection.refused_attempt = take.attempt();
      throw;
    }
    if (connection.state != PeerState::open) turn.did_something = true;
    if (!moved || connection.state != PeerState::open) break;
    turn.did_something = true;
    turn.bytes += *moved;
    if (connection.cursor) continue;
    take.finish(take.done() + 1);
    // The source is woken by a message, which orders it; waiting here for all that was written
    // would keep the next transfer from starting.
    taking_lane(connection)
        .target.acknowledged.store(pack({take.attempt(), take.done()}), std::memory_order_release);
  }
  // The source needs to know what was read; who looks at the target, that this turn is over.
  finish_streaming();
}

// Wakes the source when what it waits for is done: a bell for each of this rank's batches would
// cost the copies a processor.
void wake_source(const Connection& connection) {
  Lane& lane = taking_lane(connection);
  const Stream& take = connection.take;
  // Once more, and before the look at `awaited`.
  lane.target.acknowledged.store(pack({take.attempt(), take.done()}));
  const Tally awaited = unpack(lane.source.awaited.load());
  if (awaited.attempt == take.attempt() && awaited.count <= take.done()) ring(connection);
}

// The slice that is to be packed next; nothing when all that was offered is packed.
std::optional<Slice> next_slice(const Bench& bench, const Connection& connection,
                                RingWriter& writer) {
  const Stream& give = connection.give;
  // What the peer mapped may be done before this rank looks at it.
  writer.slot = std::max(writer.slot, give.done());
  for (; writer.slot < give.posted(); ++writer.slot) {
    const Transfer& transfer = give.at(writer.slot);
    if (way_of(*bench.enrolment, connection, transfer.source_region) != ShmWay::ring) continue;
    if (!writer.slices) {
      writer.slices.emplace(transfer.nest, chunk_bytes_max(writer.memory.mapping.bytes()));
      writer.next_slice = 0;
    }
    if (writer.slices->count() > 0) return writer.slices->at(writer.next_slice);
    writer.slices.reset();
  }
  return std::nullopt;
}

// Goes on to the next slice. A transfer is left at once: when it is done its slot is passed.
void step(RingWriter& writer) {
  if (++writer.next_slice < writer.slices->count()) return;
  writer.slices.reset();
  ++writer.slot;
}

void take_freed(const Connection& connection, RingWriter& writer) {
  const Tally tally = unpack(giving_lane(connection).target.unpacked.load());
  if (tally.attempt == writer.attempt) release(writer, tally.count);
}

// Packs a slice, or asks to be woken when there is room. Returns whether it is packed.
bool pack_slice(const Connection& connection, RingWriter& writer, const std::byte* source,
                const Slice& slice) {
  if (pack_chunk(writer, source, slice)) return true;
  take_freed(connection, writer);
  if (pack_chunk(writer, source, slice)) return true;
  giving_lane(connection).source.is_starved.store(1);
  // The target looks at `is_starved` after it stores `unpacked`: one of the two sees the other.
  take_freed(connection, writer);
  return pack_chunk(writer, source, slice);
}

}  // namespace

ShmWay way_of(const Enrolment& enrolment, const Connection& connection, Region region) {
  if (connection.is_local()) return ShmWay::automatic;
  if (enrolment.is_mapped(region)) return ShmWay::memfd;
  if (connection.gives == Access::attach) return ShmWay::attach;
  return connection.gives == Access::ring ? ShmWay::ring : ShmWay::automatic;
}

Turn pull_turn(Bench& bench, Connection& connection, std::int64_t turn_bytes) {
  using Clock = std::chrono::steady_clock;
  Turn turn;
  const Stream& take = connection.take;
  if (connection.state != PeerState::open || take.is_idle()) return turn;
  if (connection.refused_attempt == take.attempt()) return turn;
  const std::int64_t offered = offered_count(*bench.roster, connection);
  if (connection.state != PeerState::open || offered <= take.done()) return turn;
  const Clock::time_point begin = Clock::now();
  pull_offered(bench, connection, offered, turn, turn_bytes);
  connection.traffic.pulled_bytes += turn.bytes;
  if (turn.bytes > 0) {
    connection.traffic.pulled_seconds +=
        std::chrono::duration<double>(Clock::now() - begin).count();
  }
  if (turn.did_something && connection.state == PeerState::open) wake_source(connection);
  return turn;
}

Turn pack_turn(Bench& bench, Connection& connection, std::int64_t turn_bytes) {
  Turn turn;
  const Stream& give = connection.give;
  if (connection.state != PeerState::open || !connection.packs || give.is_idle()) return turn;
  if (!connection.ring_writer) {
    connection.ring_writer.emplace();
    connection.ring_writer->memory = reserve_shared("crossmesh-ring", bench.ring_bytes);
    Message message{.kind = MessageKind::ring};
    message.size_bytes = bench.ring_bytes;
    tell(*bench.roster, connection, {{message, connection.ring_writer->memory.fd.get()}});
  }
  RingWriter& writer = *connection.ring_writer;
  if (writer.attempt != give.attempt()) start_over(writer, give.attempt());
  SourceSide& side = giving_lane(connection).source;
  side.is_starved.store(0);
  while (turn.bytes < turn_bytes) {
    const std::optional<Slice> slice = next_slice(bench, connection, writer);
    if (!slice) break;
    const Transfer& transfer = give.at(writer.slot);
    const std::byte* source =
        bench.enrolment->find(transfer.source_region)->data + transfer.source_offset_bytes;
    if (!pack_slice(connection, writer, source, *slice)) break;
    step(writer);
    side.packed.store(pack({writer.attempt, writer.packed}));
    turn.did_something = true;
    turn.bytes += packed_bytes(slice->nest);
  }
  if (turn.did_something) ring(connection);
  return turn;
}

}  // namespace crossmesh::detail
