// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/session.h"

#include <algorithm>
#include <optional>

#include "crossmesh/memory/arena.h"
#include "crossmesh/session/detail/agreement.h"
#include "crossmesh/session/detail/desk.h"
#include "crossmesh/session/detail/digest_talk.h"
#include "crossmesh/session/giver.h"
#include "crossmesh/session/taker.h"

namespace crossmesh {
namespace {

constexpr std::chrono::milliseconds kCancelLimit{1000};

void check_options(const SessionOptions& options) {
  if (options.source_count < 1 || options.target_count < 1 || options.rank < 0 ||
      options.rank >= options.source_count + options.target_count) {
    throw Error(ErrorCode::invalid_argument, "session: the rank is outside the job")
        .with("rank", options.rank)
        .with("trainer ranks", options.source_count)
        .with("engine ranks", options.target_count);
  }
}

}  // namespace

struct Session::Impl {
  Impl(SessionOptions session_options, std::unique_ptr<Transport> session_transport)
      : options(std::move(session_options)),
        transport(std::move(session_transport)),
        desk(options, *transport) {}

  bool is_source() const { return options.rank < options.source_count; }
  int side_rank() const { return is_source() ? options.rank : options.rank - options.source_count; }

  // Runs one call of the session; a failure ends the job for everyone.
  template <typename Call>
  auto guarded(Call&& call) {
    if (broken) {
      throw Error(ErrorCode::aborted, "session: an earlier failure ended this job")
          .with("failure", *broken);
    }
    try {
      return call();
    } catch (const Error& error) {
      end_with(error);
      throw;
    } catch (const std::exception& other) {
      const Error error = Error(ErrorCode::internal, "session: a callback failed")
                              .with("phase", name_of(desk.phase()))
                              .with("at", desk.title(options.rank))
                              .with("what", other.what());
      end_with(error);
      throw error;
    }
  }

  void end_with(const Error& error) {
    broken = error.text().substr(0, error.text().find('\n'));
    try {
      if (attempt > 0) transport->cancel(attempt, std::chrono::steady_clock::now() + kCancelLimit);
    } catch (const Error&) {
      // A peer that does not answer any more cannot be waited for; it only reads.
    }
    desk.fail(error);
  }

  void enroll_memory(const Layout& layout, const ParameterMemory& memory);
  void enroll_staging();
  void load_opaque(int tensor);
  void prepare_moves(const std::map<int, SourcePlaces>& sources);
  void connect_peers();
  SourcePlaces own_places(int peer) const;
  std::chrono::milliseconds ready_limit() const { return options.ready_timeout; }

  std::function<bool()> giving(std::int64_t version);
  UpdateReport coordinate(std::int64_t version);
  UpdateReport follow(std::int64_t version);
  UpdateReport take(std::int64_t version);
  void commit_replicas(std::map<int, std::vector<int>>& waiting);
  UpdateReport report(std::int64_t version) const;

  SessionOptions options;
  std::unique_ptr<Transport> transport;
  Desk desk;
  std::optional<std::string> broken;
  std::optional<Schedule> schedule;
  std::vector<std::string> addresses;

  std::vector<RegionPlace> places;
  RegionBytes region_bytes;
  SharedMemory staging;
  GiverStaging giver_staging;
  Mapping fallback;
  Region fallback_region = -1;
  FallbackLoader loader;
  std::optional<Giver> giver;
  std::optional<Taker> taker;
  std::optional<TrainerDigests> given_digests;
  std::optional<TakenDigests> taken_digests;

  Attempt attempt = 0;
  std::int64_t last_version = 0;
  EngineState state;
};

Session::Session(SessionOptions options, std::unique_ptr<Transport> transport) {
  check_options(options);
  impl_ = std::make_unique<Impl>(std::move(options), std::move(transport));
}

Session::~Session() = default;

const Schedule& Session::schedule() const { return *impl_->schedule; }
EngineState Session::state() const { return impl_->state; }

// -- join ----------------------------------------------------------------------------------------

void Session::join() {
  impl_->guarded([&] {
    Desk& desk = impl_->desk;
    const SessionOptions& options = impl_->options;
    desk.open(std::chrono::steady_clock::now() + options.timeout);
    std::vector<std::string>& addresses = impl_->addresses;
    addresses.assign(static_cast<std::size_t>(desk.rank_count()), "");
    if (!desk.is_coordinator()) {
      desk.send(0, MessageKind::join,
                {{"address", impl_->transport->address()},
                 {"source_count", options.source_count},
                 {"target_count", options.target_count},
                 {"transport", impl_->transport->name()},
                 {"digest", name_of(options.digest)}});
      desk.enter(Phase::join);
      addresses =
          desk.expect(MessageKind::roster).body.at("addresses").get<std::vector<std::string>>();
      return;
    }
    desk.enter(Phase::join);
    addresses[0] = impl_->transport->address();
    for (const auto& [rank, message] : desk.gather(MessageKind::join, desk.members())) {
      check_joiner(desk, options, impl_->transport->name(), message);
      addresses[static_cast<std::size_t>(rank)] = field<std::string>(message, "address");
    }
    desk.send_to_all(MessageKind::roster, {{"addresses", addresses}});
  });
}

// -- agree ---------------------------------------------------------------------------------------

void Session::Impl::enroll_memory(const Layout& layout, const ParameterMemory& memory) {
  check_memory(layout, side_rank(), memory);
  std::vector<Region> region_of_buffer;
  for (const Buffer& buffer : memory.buffers) {
    const bool empty = buffer.size_bytes == 0;
    region_of_buffer.push_back(empty ? -1 : transport->enroll(buffer));
    if (!empty) region_bytes.push_back(buffer.data);
  }
  for (const ParameterPlace& place : memory.places) {
    const Region region =
        place.buffer < 0 ? -1 : region_of_buffer[static_cast<std::size_t>(place.buffer)];
    places.push_back({region, place.offset_bytes});
  }
}

void Session::Impl::enroll_staging() {
  const Schedule& s = *schedule;
  if (is_source()) {
    Moves moves = moves_of_source(s, side_rank(), places);
    if (s.options.route == Route::packed && !moves.transfers_of_peer.empty()) {
      const int peers = static_cast<int>(moves.transfers_of_peer.size());
      giver_staging.share = share_staging(s.options.staging_bytes_max, peers, options.rank);
      const std::int64_t bytes =
          giver_staging.share.slot_bytes * giver_staging.share.slot_count * peers;
      staging = reserve_shared("crossmesh-staging", bytes);
      giver_staging.data = staging.mapping.data();
      giver_staging.region =
          transport->enroll({staging.mapping.data(), bytes, staging.fd.get(), 0});
    }
    giver.emplace(*transport, std::move(moves), options.source_count, region_bytes, giver_staging);
    given_digests.emplace(desk, s, options.digest,
                          GivenDigests(giver->moves(), region_bytes, options.digest));
    return;
  }
  const std::int64_t bytes = fallback_bytes(s, side_rank());
  if (bytes == 0) return;
  if (!loader) {
    throw Error(ErrorCode::invalid_argument, "agree: opaque tensors need the engine's loader")
        .with("rank", options.rank)
        .with("fallback bytes", bytes);
  }
  fallback = reserve_private(bytes);
  fallback_region = transport->enroll({fallback.data(), bytes, -1, 0});
}

SourcePlaces Session::Impl::own_places(int peer) const {
  SourcePlaces own;
  own.parameters = places;
  own.staging_region = giver_staging.region;
  own.staging_offset_bytes = giver->staging_offset_bytes(peer);
  own.slot_bytes = giver_staging.share.slot_bytes;
  own.slot_count = giver_staging.share.slot_count;
  return own;
}

void Session::Impl::load_opaque(int tensor) {
  const TensorInfo& info = schedule->plan.source.tensors[static_cast<std::size_t>(tensor)];
  loader(info, fallback.span().first(static_cast<std::size_t>(byte_count(info))));
}

void Session::Impl::prepare_moves(const std::map<int, SourcePlaces>& sources) {
  if (is_source()) return;
  Moves moves = moves_of_target(*schedule, side_rank(), places, fallback_region, sources);
  if (schedule->options.route == Route::packed) moves = staged_moves(moves, sources);
  taker.emplace(*transport, std::move(moves), [this](int tensor) { load_opaque(tensor); });
  taken_digests.emplace(taker->moves());
}

void Session::Impl::connect_peers() {
  const Moves& moves = is_source() ? giver->moves() : taker->moves();
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  for (const auto& [number, transfers] : moves.transfers_of_peer) {
    const int peer = is_source() ? options.source_count + number : number;
    try {
      transport->connect(peer, addresses[static_cast<std::size_t>(peer)], deadline);
    } catch (const Error& error) {
      desk.await_verdict(error);
    }
  }
}

void Session::agree(const Layout& layout, const ScheduleOptions& options,
                    const ParameterMemory& memory, FallbackLoader loader) {
  impl_->guarded([&] {
    Impl& impl = *impl_;
    impl.loader = std::move(loader);
    impl.desk.enter(Phase::agree);
    impl.enroll_memory(layout, memory);
    Layout other = exchange_layouts(impl.desk, layout, options);
    impl.schedule = impl.is_source() ? arrange(compile(layout, std::move(other)), options)
                                     : arrange(compile(std::move(other), layout), options);
    impl.enroll_staging();
    const auto own_places = [&](int peer) { return impl.own_places(peer); };
    const std::map<int, SourcePlaces> sources =
        exchange_places(impl.desk, *impl.schedule, own_places);
    impl.prepare_moves(sources);
    impl.connect_peers();
  });
  exchange("connected", {});
}

// -- update --------------------------------------------------------------------------------------

UpdateReport Session::Impl::report(std::int64_t version) const {
  UpdateReport report;
  report.version = version;
  const Moves& moves = giver ? giver->moves() : taker->moves();
  report.bytes = moves.bytes;
  report.bytes_fallback = moves.bytes_fallback;
  report.staging_bytes_peak = giver ? giver->staging_bytes_peak() : 0;
  const DigestCost cost = giver ? given_digests->cost() : taken_digests->cost();
  report.digest_seconds = cost.seconds;
  report.digest_bytes = cost.bytes;
  return report;
}

// Commits each replica whose ranks are all whole.
void Session::Impl::commit_replicas(std::map<int, std::vector<int>>& waiting) {
  for (auto replica = waiting.begin(); replica != waiting.end();) {
    const std::vector<int>& ranks = replica->second;
    const bool whole = std::all_of(ranks.begin(), ranks.end(),
                                   [&](int rank) { return desk.has(MessageKind::whole, rank); });
    if (!whole) {
      ++replica;
      continue;
    }
    for (const int rank : ranks) {
      desk.take(MessageKind::whole, rank);
      desk.send(rank, MessageKind::commit);
    }
    replica = waiting.erase(replica);
  }
}

// Offers the weights, then serves them, and digests what was not digested before.
std::function<bool()> Session::Impl::giving(std::int64_t version) {
  desk.begin(Phase::move);
  return [this, version, begun = false]() mutable {
    if (begun) {
      const bool gave = giver->step();
      return given_digests->step() || gave;
    }
    given_digests->begin(version);
    giver->begin(attempt);
    desk.enter(Phase::move);
    return begun = true;
  };
}

UpdateReport Session::Impl::coordinate(std::int64_t version) {
  desk.enter(Phase::ready);
  check_versions(desk, desk.gather(MessageKind::ready, desk.members(), ready_limit()), version);
  ++attempt;
  desk.set_attempt(attempt);
  const auto begin = std::chrono::steady_clock::now();
  desk.send_to_all(MessageKind::start, {{"version", version}, {"attempt", attempt}});
  desk.enter(Phase::start);
  std::map<int, std::vector<int>> waiting = ranks_of_replicas(*schedule, options.source_count);
  std::vector<int> engines, trainers;
  for (const int rank : desk.members()) (desk.is_source(rank) ? trainers : engines).push_back(rank);
  Desk::Wait moving;
  moving.work = giving(version);
  moving.done = [&] {
    if (giver->finished() && desk.phase() == Phase::move) desk.enter(Phase::complete);
    commit_replicas(waiting);
    return waiting.empty() && giver->finished() && given_digests->finished();
  };
  moving.describe = [&] {
    // An engine is not whole before every trainer said what it gave.
    const std::string digests = given_digests->waiting_for();
    const std::string rest = describe_update(desk, waiting, giver->waiting_for());
    return digests.empty() || rest.empty() ? digests + rest : digests + "; " + rest;
  };
  // Whoever moves bytes knows best which peer they do not come from, and is heard first.
  moving.limit = options.timeout + options.timeout / 4;
  desk.serve(moving);
  for (const int rank : trainers) desk.send(rank, MessageKind::committing);
  desk.enter(Phase::commit);
  desk.gather(MessageKind::committed, engines);
  UpdateReport done = report(version);
  done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  desk.gather(MessageKind::released, trainers);
  desk.send_to_all(MessageKind::finished, {{"seconds", done.seconds}});
  return done;
}

UpdateReport Session::Impl::follow(std::int64_t version) {
  desk.send(0, MessageKind::ready, {{"version", version}});
  desk.enter(Phase::ready);
  attempt = static_cast<Attempt>(
      field<std::int64_t>(desk.expect(MessageKind::start, ready_limit()), "attempt"));
  desk.set_attempt(attempt);
  desk.enter(Phase::start);
  Desk::Wait moving;
  moving.work = giving(version);
  moving.done = [&] { return giver->finished() && given_digests->finished(); };
  moving.describe = [&] { return giver->waiting_for(); };
  desk.serve(moving);
  desk.enter(Phase::complete);
  desk.send(0, MessageKind::released);
  desk.expect(MessageKind::committing, {}, [&] { return given_digests->step(); });
  desk.enter(Phase::commit);
  const Message finished = desk.expect(MessageKind::finished);
  UpdateReport done = report(version);
  done.seconds = finished.body.value("seconds", 0.0);
  return done;
}

UpdateReport Session::Impl::take(std::int64_t version) {
  desk.set_attempt(attempt);
  desk.enter(Phase::start);
  taken_digests->begin(options.digest, version);
  taker->begin(attempt, [this](int peer) { return taken_digests->witness_of(peer); });
  desk.begin(Phase::move);
  const std::size_t half = taker->moves().batches.size() / 2;
  bool paused = false;
  Desk::Wait moving;
  moving.work = [&] {
    // The caller hears of the phase in the midst of it, where a fault leaves a torn engine.
    if (!paused && taker->completed_batches() >= half) {
      paused = true;
      desk.enter(Phase::move);
    }
    return taker->step();
  };
  moving.done = [&] { return paused && taker->finished(); };
  moving.describe = [&] { return taker->waiting_for(); };
  desk.serve(moving);
  desk.enter(Phase::complete);
  if (options.digest != DigestMode::off) {
    compare_digests(desk, *taken_digests, options.timeout * 2);
  }
  desk.send(0, MessageKind::whole);
  desk.expect(MessageKind::commit);
  desk.enter(Phase::commit);
  state = {EngineState::Kind::whole, version};
  desk.send(0, MessageKind::committed);
  return report(version);
}

void Session::digest(std::int64_t version) {
  impl_->guarded([&] {
    if (!impl_->giver) {
      throw Error(ErrorCode::invalid_argument, "digest: trainer ranks call it, after agree")
          .with("rank", impl_->options.rank);
    }
    impl_->given_digests->compute(version);
  });
}

UpdateReport Session::update(std::int64_t version) {
  return impl_->guarded([&] {
    if (version <= impl_->last_version) {
      throw Error(ErrorCode::invalid_argument, "update: versions must grow")
          .with("rank", impl_->options.rank)
          .with("version", version)
          .with("last version", impl_->last_version);
    }
    if (!impl_->giver) {
      throw Error(ErrorCode::invalid_argument, "update: trainer ranks call it, after agree")
          .with("rank", impl_->options.rank);
    }
    const UpdateReport done =
        impl_->desk.is_coordinator() ? impl_->coordinate(version) : impl_->follow(version);
    impl_->last_version = version;
    return done;
  });
}

UpdateReport Session::receive() {
  return impl_->guarded([&] {
    Impl& impl = *impl_;
    if (!impl.taker) {
      throw Error(ErrorCode::invalid_argument, "receive: engine ranks call it, after agree")
          .with("rank", impl.options.rank);
    }
    impl.desk.send(0, MessageKind::ready, {{"version", -1}});
    impl.desk.enter(Phase::ready);
    const Message start = impl.desk.expect(MessageKind::start, impl.ready_limit());
    const std::int64_t version = field<std::int64_t>(start, "version");
    impl.attempt = static_cast<Attempt>(field<std::int64_t>(start, "attempt"));
    try {
      return impl.take(version);
    } catch (...) {
      // A commit that came before the reason to stop still holds: the replica was whole.
      if (impl.desk.has(MessageKind::commit, 0)) {
        impl.state = {EngineState::Kind::whole, version};
      } else if (impl.state.version != version && impl.taker->touched()) {
        impl.state.kind = EngineState::Kind::torn;
      }
      throw;
    }
  });
}

// -- exchange, leave -----------------------------------------------------------------------------

std::vector<nlohmann::json> Session::exchange(std::string_view tag, const nlohmann::json& value) {
  return impl_->guarded([&] {
    Desk& desk = impl_->desk;
    const nlohmann::json own = {{"tag", tag}, {"value", value}};
    if (!desk.is_coordinator()) {
      desk.send(0, MessageKind::exchange, own);
      const Message all = desk.expect(MessageKind::exchanged, impl_->ready_limit());
      return all.body.at("values").get<std::vector<nlohmann::json>>();
    }
    std::vector<nlohmann::json> values = {value};
    for (const auto& [rank, message] :
         desk.gather(MessageKind::exchange, desk.members(), impl_->ready_limit())) {
      if (field<std::string>(message, "tag") != tag) {
        throw Error(ErrorCode::mismatch, "exchange: ranks are at different points")
            .with(desk.title(0), tag)
            .with(desk.title(rank), field<std::string>(message, "tag"));
      }
      values.push_back(message.body.at("value"));
    }
    desk.send_to_all(MessageKind::exchanged, {{"values", values}});
    return values;
  });
}

void Session::leave() {
  impl_->guarded([&] {
    Desk& desk = impl_->desk;
    desk.enter(Phase::leave);
    if (!desk.is_coordinator()) {
      desk.send(0, MessageKind::leave);
      desk.expect_leaving();  // the coordinator goes as soon as it has said `left`
      desk.expect(MessageKind::left);
      return;
    }
    desk.gather(MessageKind::leave, desk.members());
    desk.expect_leaving();
    desk.send_to_all(MessageKind::left);
  });
}

}  // namespace crossmesh
