// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/session.h"

#include <algorithm>
#include <optional>

#include "crossmesh/session/detail/agreement.h"
#include "crossmesh/session/detail/replicas.h"
#include "crossmesh/session/detail/session_impl.h"

namespace crossmesh {
namespace {

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

Session::Session(SessionOptions options, std::unique_ptr<Transport> transport) {
  check_options(options);
  impl_ = std::make_unique<Impl>(std::move(options), std::move(transport));
}

Session::~Session() = default;

void Session::Impl::end_with(const Error& error) {
  constexpr std::chrono::milliseconds kCancelLimit{1000};
  may_retry = !desk.is_job_over();
  if (given_digests) given_digests->forget();
  if (!may_retry) broken = error.text().substr(0, error.text().find('\n'));
  try {
    is_cancelled = desk.attempt() == 0;
    if (!is_cancelled) {
      transport->cancel(desk.attempt(), std::chrono::steady_clock::now() + kCancelLimit);
    }
    is_cancelled = true;
  } catch (const Error&) {
    // A peer that does not answer any more only reads. The next attempt waits for it.
  }
  desk.fail(error);
}

// Nothing of an attempt that failed may move while the next one does.
void Session::Impl::end_attempt(Attempt attempt) {
  if (is_cancelled) return;
  transport->cancel(attempt, std::chrono::steady_clock::now() + options.timeout);
  is_cancelled = true;
}

const Schedule& Session::schedule() const { return *impl_->schedule; }
EngineState Session::state() const { return impl_->state; }
bool Session::can_retry() const { return impl_->may_retry; }
std::int64_t Session::version() const { return impl_->last_version; }

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
      const Message roster = desk.expect(MessageKind::roster, desk.return_limit());
      addresses = roster.body.at("addresses").get<std::vector<std::string>>();
      if (roster.body.contains("return")) impl_->come_back({roster.kind, 0, roster.body["return"]});
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

// The job runs, and this rank's earlier process was a part of it.
void Session::Impl::come_back(const Message& standing) {
  came_back = true;
  desk.come_back();
  epoch = field<std::int64_t>(standing, "epoch");
  desk.begin_attempt(
      std::max(desk.attempt(), static_cast<Attempt>(field<std::int64_t>(standing, "attempt"))));
  last_version = field<std::int64_t>(standing, "version");
  state = {EngineState::Kind::torn, last_version};
}

// -- agree ---------------------------------------------------------------------------------------

void Session::Impl::connect(int peer) {
  transport->connect(peer, addresses.at(static_cast<std::size_t>(peer)),
                     std::chrono::steady_clock::now() + options.timeout);
}

void Session::Impl::connect_peers() {
  const Moves& moves = is_source() ? giver->moves() : taker->moves();
  for (const auto& [number, transfers] : moves.transfers_of_peer) {
    try {
      connect(is_source() ? options.source_count + number : number);
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
    PublishedPlaces published = exchange_places(impl.desk, *impl.schedule, own_places);
    impl.prepare_moves(published.sources);
    impl.connect_peers();
    if (!impl.desk.is_coordinator()) return;
    impl.readmission.emplace(impl.desk, impl.options, *impl.schedule,
                             std::string(impl.transport->name()),
                             std::move(published.relays_of_rank));
  });
  // The others have met already where this rank came back.
  if (!impl_->came_back) exchange("connected", {});
  impl_->desk.let_engines_return();
}

// -- update --------------------------------------------------------------------------------------

UpdateReport Session::Impl::report(std::int64_t version) const {
  UpdateReport report;
  report.version = version;
  report.attempt = desk.attempt();
  report.epoch = epoch;
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
      desk.expect_return(rank);
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
    giver->begin(desk.attempt());
    desk.enter(Phase::move);
    return begun = true;
  };
}

// Lets in who came back, once every trainer is there to connect to it.
bool Session::Impl::readmit() {
  if (!desk.absent().empty()) desk.reassure();
  bool changed = readmission->answer(addresses, last_version);
  for (int trainer = 1; trainer < options.source_count; ++trainer) {
    if (!desk.has(MessageKind::ready, trainer)) return changed;
  }
  for (const int rank : readmission->waiting()) {
    readmission->let_in(rank, addresses[static_cast<std::size_t>(rank)]);
    if (giver->moves().transfers_of_peer.contains(rank - options.source_count)) connect(rank);
    changed = true;
  }
  return changed;
}

void Session::Impl::gather_ready(std::int64_t version) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<int> members = desk.members();
  const auto is_ready = [&](int rank) { return desk.has(MessageKind::ready, rank); };
  Desk::Wait wait;
  wait.limit = ready_limit();
  wait.work = [&] { return readmit(); };
  wait.done = [&] {
    readmission->check_patience(begin);
    return desk.absent().empty() && std::ranges::all_of(members, is_ready);
  };
  wait.describe = [&] { return describe_missing(desk, MessageKind::ready, members); };
  for (const int rank : members) {
    if (!desk.is_source(rank)) desk.expect_return(rank);
  }
  desk.serve(wait);
  desk.require_returns();
  std::map<int, Message> ready;
  for (const int rank : members) ready.emplace(rank, desk.take(MessageKind::ready, rank));
  check_versions(desk, ready, version);
}

UpdateReport Session::Impl::coordinate(std::int64_t version) {
  desk.begin_attempt(desk.attempt() + 1);
  end_attempt(desk.attempt() - 1);
  desk.enter(Phase::ready);
  gather_ready(version);
  epoch = desk.epoch();
  const auto begin = std::chrono::steady_clock::now();
  desk.send_to_all(MessageKind::start,
                   {{"version", version}, {"attempt", desk.attempt()}, {"epoch", epoch}});
  desk.enter(Phase::start);
  std::map<int, std::vector<int>> waiting = ranks_of_replicas(*schedule, options.source_count);
  std::vector<int> engines, trainers;
  for (const int rank : desk.members()) (desk.is_source(rank) ? trainers : engines).push_back(rank);
  Desk::Wait moving;
  moving.moves = true;
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

// Asks for the next attempt and waits for its start; meanwhile connects to who came back.
std::int64_t Session::Impl::await_start(std::int64_t version) {
  desk.ask_for_attempt();
  end_attempt(desk.attempt());
  desk.send(0, MessageKind::ready, {{"version", version}});
  desk.enter(Phase::ready);
  Desk::Wait wait;
  wait.limit = ready_limit();
  wait.work = [&] {
    if (!desk.has(MessageKind::returned, 0)) return false;
    const Message returned = desk.take(MessageKind::returned, 0);
    const auto rank = static_cast<int>(field<std::int64_t>(returned, "rank"));
    addresses.at(static_cast<std::size_t>(rank)) = field<std::string>(returned, "address");
    if (giver->moves().transfers_of_peer.contains(rank - options.source_count)) connect(rank);
    return true;
  };
  wait.done = [&] { return desk.has(MessageKind::start, 0); };
  wait.describe = [&] { return fmt::format("start from {}", desk.title(0)); };
  desk.serve(wait);
  const Message start = desk.take(MessageKind::start, 0);
  desk.begin_attempt(static_cast<Attempt>(field<std::int64_t>(start, "attempt")));
  epoch = field<std::int64_t>(start, "epoch");
  return field<std::int64_t>(start, "version");
}

UpdateReport Session::Impl::follow(std::int64_t version) {
  await_start(version);
  desk.enter(Phase::start);
  Desk::Wait moving;
  moving.moves = true;
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

void Session::Impl::serve_version(std::int64_t version) {
  state = {EngineState::Kind::whole, version};
  last_version = version;
  whole_attempt = desk.attempt();
}

UpdateReport Session::Impl::take(std::int64_t version) {
  taken_digests->begin(options.digest, version);
  taker->begin(desk.attempt(), [this](int peer) { return taken_digests->witness_of(peer); });
  desk.enter(Phase::start);
  desk.begin(Phase::move);
  const std::size_t half = taker->moves().batches.size() / 2;
  bool paused = false;
  Desk::Wait moving;
  moving.moves = true;
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
  serve_version(version);
  desk.enter(Phase::commit);
  desk.send(0, MessageKind::committed);
  return report(version);
}

void Session::check_replicas() {
  Impl& impl = *impl_;
  impl.guarded([&] {
    std::vector<const std::byte*> parameters;
    for (const RegionPlace& place : impl.places) {
      const bool is_here = place.region >= 0;
      parameters.push_back(is_here ? impl.region_bytes[static_cast<std::size_t>(place.region)] +
                                         place.offset_bytes
                                   : nullptr);
    }
    compare_replicas(
        schedule().plan.source, impl.options.rank, parameters,
        [this](std::string_view tag, const nlohmann::json& value) { return exchange(tag, value); });
  });
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
  const auto call = [&] {
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
  };
  return impl_->guarded(call, /*is_update=*/true);
}

UpdateReport Session::receive() {
  const auto call = [&] {
    Impl& impl = *impl_;
    if (!impl.taker) {
      throw Error(ErrorCode::invalid_argument, "receive: engine ranks call it, after agree")
          .with("rank", impl.options.rank);
    }
    const std::int64_t version = impl.await_start(-1);
    const Attempt attempt = impl.desk.attempt();
    try {
      return impl.take(version);
    } catch (...) {
      // A commit that came before the reason to stop still holds: the replica was whole.
      if (impl.desk.has(MessageKind::commit, 0)) {
        impl.serve_version(version);
      } else if (impl.whole_attempt != attempt && impl.taker->touched()) {
        impl.state.kind = EngineState::Kind::torn;
      }
      throw;
    }
  };
  return impl_->guarded(call, /*is_update=*/true);
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
    desk.require_all();
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
    std::vector<int> present = desk.members();
    std::erase_if(present, [&](int rank) { return desk.absent().contains(rank); });
    desk.gather(MessageKind::leave, present);
    desk.expect_leaving();
    desk.send_to_all(MessageKind::left);
  });
}

}  // namespace crossmesh
