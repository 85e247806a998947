// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/desk.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using Clock = std::chrono::steady_clock;

// A wait looks around at least this often, whatever wakes it.
constexpr std::chrono::milliseconds kLookAround{200};

// When a connection ends, the reason may still be on its way over another one.
constexpr std::chrono::milliseconds kReasonGrace{100};

// How long a member that lost a peer waits for the coordinator to say who died.
constexpr std::chrono::milliseconds kVerdictGrace{2000};

// Messages that belong to one attempt carry its number.
bool is_of_attempt(MessageKind kind) {
  switch (kind) {
    case MessageKind::digests:
    case MessageKind::differs:
    case MessageKind::whole:
    case MessageKind::released:
    case MessageKind::commit:
    case MessageKind::committing:
    case MessageKind::committed:
    case MessageKind::finished:
      return true;
    default:
      return false;
  }
}

// Messages of a member at a point between attempts carry the number of the one before.
bool is_between_attempts(MessageKind kind) {
  return kind == MessageKind::ready || kind == MessageKind::exchange;
}

std::optional<std::int64_t> attempt_in(const Message& message) {
  if (!message.body.contains("attempt")) return std::nullopt;
  return field<std::int64_t>(message, "attempt");
}

// The error that another rank sent.
Error carried_error(const Message& message) {
  return Error::from_text(static_cast<ErrorCode>(field<std::int64_t>(message, "code")),
                          field<std::string>(message, "text"));
}

}  // namespace

Desk::Desk(const SessionOptions& options, Transport& transport)
    : options_(options), transport_(transport) {}

void Desk::open(Deadline deadline) { control_.emplace(options_, deadline); }

void Desk::enter(Phase phase) {
  phase_ = phase;
  if (options_.on_phase) options_.on_phase(phase);
  last_progress_ = Clock::now();  // a pause is not a wait
}

std::string Desk::title(int rank) const {
  if (is_source(rank)) return fmt::format("trainer {} (rank {})", rank, rank);
  return fmt::format("engine {} (rank {})", rank - options_.source_count, rank);
}

std::vector<int> Desk::members() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < rank_count(); ++rank) ranks.push_back(rank);
  return ranks;
}

void Desk::enter_call(bool is_update) {
  in_update_ = is_update;
  is_told_ = false;
  may_end_.clear();
  if (is_update) is_coming_back_ = false;
}

void Desk::begin_attempt(Attempt attempt) {
  attempt_ = attempt;
  aborted_ = asks_ = false;
  gone_.clear();
  for (auto& [key, queue] : inbox_) {
    std::erase_if(queue, [&](const Message& message) { return is_stale(message); });
  }
}

std::chrono::milliseconds Desk::return_limit() const {
  return options_.is_return ? options_.ready_timeout : std::chrono::milliseconds(0);
}

std::int64_t Desk::loss_count(int rank) const {
  const auto found = loss_count_of_rank_.find(rank);
  return found == loss_count_of_rank_.end() ? 0 : found->second;
}

void Desk::welcome(int rank) {
  absent_.erase(rank);
  ++epoch_;
}

void Desk::send(int to, MessageKind kind, nlohmann::json body) {
  if (is_of_attempt(kind)) body["attempt"] = attempt_;
  if (is_between_attempts(kind)) body["after"] = attempt_;
  control_->send(to, kind, std::move(body));
}

void Desk::send_to_all(MessageKind kind, const nlohmann::json& body) {
  for (const int rank : members()) send(rank, kind, body);
}

bool Desk::has(MessageKind kind, int rank) const {
  const auto found = inbox_.find({kind, rank});
  return found != inbox_.end() && !found->second.empty();
}

Message Desk::take(MessageKind kind, int rank) {
  std::vector<Message>& queue = inbox_.at({kind, rank});
  Message message = std::move(queue.front());
  queue.erase(queue.begin());
  return message;
}

// While ranks agree, engines may still reserve gigabytes of memory.
std::chrono::milliseconds Desk::usual_limit() const {
  return phase_ == Phase::agree ? std::max(options_.timeout, options_.agree_timeout)
                                : options_.timeout;
}

void Desk::serve(const Wait& wait) {
  last_progress_ = last_alive_ = Clock::now();
  progressed_since_alive_ = false;
  auto limit = wait.limit.count() > 0 ? wait.limit : usual_limit();
  // The coordinator knows best who is missing, so it gives up first.
  if (!is_coordinator() && !wait.moves) limit += limit / 4 + kReasonGrace;
  while (true) {
    if (options_.on_wait) options_.on_wait();
    bool changed = false;
    try {
      changed = wait.work && wait.work();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost) throw;
      await_verdict(error);
    }
    read_messages(changed);
    watch_lifelines();
    if (wait.done()) return;
    keep_alive(changed);
    if (changed) {
      last_progress_ = Clock::now();
      continue;
    }
    if (Clock::now() - last_progress_ > limit) give_up(wait);
    // A lost peer wakes for ever until the transport is advanced.
    const std::vector<int> fds = wait.moves ? transport_.wake_fds() : std::vector<int>{};
    control_->wait(fds, std::min(last_progress_ + limit, Clock::now() + kLookAround));
  }
}

void Desk::read_messages(bool& changed) {
  while (std::optional<Message> message = control_->receive()) {
    changed |= message->kind != MessageKind::alive;
    handle(std::move(*message));
  }
}

// Another's progress extends this wait, and the coordinator passes it on. It is no progress of this
// rank: were it answered, two waiting ranks would keep each other alive for ever.
void Desk::hear_alive() {
  last_progress_ = Clock::now();
  progressed_since_alive_ |= is_coordinator();
}

bool Desk::is_stale(const Message& message) const {
  if (is_of_attempt(message.kind)) {
    // Digests may come together with the `start` that this rank has not looked at.
    const auto attempt = field<std::int64_t>(message, "attempt");
    return attempt < attempt_ || (attempt > attempt_ && message.kind != MessageKind::digests);
  }
  switch (message.kind) {
    case MessageKind::start:
      return field<std::int64_t>(message, "attempt") <= attempt_;
    case MessageKind::ready:  // it asks for the attempt that follows
      return field<std::int64_t>(message, "after") + 1 < attempt_;
    case MessageKind::exchange:
      return field<std::int64_t>(message, "after") < attempt_;
    default:
      return false;
  }
}

void Desk::handle(Message message) {
  if (message.rank < 0 || message.rank >= rank_count() || is_stale(message)) return;
  if (message.kind == MessageKind::join) return handle_join(std::move(message));
  if (message.kind == MessageKind::alive) return hear_alive();
  if (message.kind == MessageKind::abort) return handle_abort(message);
  if (message.kind == MessageKind::failed) return handle_failed(message);
  inbox_[{message.kind, message.rank}].push_back(std::move(message));
}

// What a rank's earlier process said goes before its new one is heard.
void Desk::handle_join(Message message) {
  const auto keep = [&] {
    inbox_[{MessageKind::join, message.rank}].push_back(std::move(message));
  };
  try {
    watch_lifelines();
  } catch (const Error&) {
    keep();
    throw;
  }
  keep();
}

// Whether it is of an attempt that has failed here already.
bool Desk::is_settled(const Message& failure) const {
  const auto attempt = attempt_in(failure);
  return attempt && (*attempt < attempt_ || (*attempt == attempt_ && aborted_));
}

void Desk::handle_abort(const Message& message) {
  if (is_settled(message)) return;
  if (const auto attempt = attempt_in(message)) {
    begin_attempt(static_cast<Attempt>(*attempt));
    aborted_ = true;
    // A rank that comes back is not yet a part of any.
    if (phase_ == Phase::join || phase_ == Phase::agree) return;
    in_update_ = true;
  } else {
    job_over_ = true;
  }
  is_told_ = true;
  throw carried_error(message);
}

void Desk::handle_failed(const Message& message) {
  if (is_settled(message)) return;
  if (!attempt_in(message)) {
    if (absent_.contains(message.rank)) return;  // it could not come back
    job_over_ = true;
  }
  gone_.insert(message.rank);
  throw carried_error(message);
}

void Desk::watch_lifelines() {
  if (leaving_) return;
  std::set<int> lost;
  for (const int rank : control_->lost()) {
    if (control_->is_refused()) {
      job_over_ = is_told_ = true;
      throw Error(ErrorCode::invalid_argument, "join: another process is this rank of the session")
          .with("rank", options_.rank)
          .with("session", options_.session)
          .hint("give every job a session name of its own, and every process a rank of its own");
    }
    note_loss(rank);
    if (!gone_.contains(rank) && !has_ended_well(rank)) lost.insert(rank);
  }
  if (!lost.empty()) abort_for_losses(std::move(lost));
}

void Desk::require_all() {
  if (!absent_.empty()) throw loss_error(*absent_.begin(), "a rank's process ended");
}

// An engine rank may come back; nothing that it said before is heard any more.
void Desk::note_loss(int rank) {
  if (!engines_may_return_ || is_source(rank)) {
    job_over_ = true;
    return;
  }
  absent_.insert(rank);
  ++loss_count_of_rank_[rank];
  last_loss_ = Clock::now();
  ++epoch_;
  std::erase_if(inbox_, [&](const auto& entry) { return entry.first.second == rank; });
}

// Several connections end when one rank dies, since its peers give up: whoever said why is not the
// one that died.
void Desk::abort_for_losses(std::set<int> lost) {
  const auto until = Clock::now() + kReasonGrace;
  std::optional<Error> said;
  while (Clock::now() < until) {
    if (!is_coordinator()) {
      // The coordinator says why before it goes, over the other connection.
      bool changed = false;
      read_messages(changed);
    }
    const auto look = [&] {
      for (const int rank : control_->lost()) {
        note_loss(rank);
        lost.insert(rank);
      }
    };
    while (std::optional<Message> message = control_->receive()) {
      if (message->kind == MessageKind::join) {
        look();
        inbox_[{MessageKind::join, message->rank}].push_back(std::move(*message));
        continue;
      }
      if (message->kind != MessageKind::failed || is_settled(*message)) continue;
      gone_.insert(message->rank);
      if (!said) said = carried_error(*message);
    }
    look();
    control_->wait({}, until);
  }
  std::erase_if(lost, [&](int rank) { return gone_.contains(rank); });
  if (lost.empty() && said) throw *said;
  throw loss_error(lost.empty() ? *gone_.begin() : *lost.begin(), "a rank's process ended");
}

Error Desk::loss_error(int rank, std::string_view what) const {
  const bool may_return = absent_.contains(rank) && in_update_;
  return Error(ErrorCode::peer_lost, fmt::format("session: {}", what))
      .with("lost", title(rank))
      .with("phase", name_of(phase_))
      .with("seen by", title(options_.rank))
      .hint(may_return ? "see what that process printed last; the rank may be started again"
                       : "see what that process printed last; the job must be started again");
}

// A lost data connection has a cause that the coordinator learns from the lifelines.
void Desk::await_verdict(const Error& own) {
  if (!is_coordinator()) {
    const auto until = Clock::now() + kVerdictGrace;
    while (Clock::now() < until) {
      bool changed = false;
      read_messages(changed);
      watch_lifelines();
      control_->wait({}, until);
    }
  } else {
    const auto until = Clock::now() + kReasonGrace;
    while (Clock::now() < until) {
      watch_lifelines();
      control_->wait({}, until);
    }
  }
  Error error = own;
  throw std::move(error).with("phase", name_of(phase_)).with("at", title(options_.rank));
}

// Tells the others that bytes still flow, so that a long update is not taken for a dead one.
void Desk::keep_alive(bool changed) {
  progressed_since_alive_ |= changed;
  if (!progressed_since_alive_ || Clock::now() - last_alive_ < options_.timeout / 5) return;
  last_alive_ = Clock::now();
  progressed_since_alive_ = false;
  if (is_coordinator()) {
    send_to_all(MessageKind::alive);
  } else {
    send(0, MessageKind::alive);
  }
}

void Desk::give_up(const Wait& wait) {
  const double seconds = std::chrono::duration<double>(Clock::now() - last_progress_).count();
  throw Error(ErrorCode::timed_out, fmt::format("session: no progress for {:.1f} s", seconds))
      .with("phase", name_of(phase_))
      .with("at", title(options_.rank))
      .with("waiting for", wait.describe ? wait.describe() : std::string(title(0)))
      .hint("a rank that is slow and alive needs a longer time limit (move: --timeout)");
}

std::map<int, Message> Desk::gather(MessageKind kind, const std::vector<int>& ranks,
                                    std::chrono::milliseconds limit) {
  Wait wait;
  wait.limit = limit;
  wait.done = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int rank) { return has(kind, rank) || has_ended_well(rank); });
  };
  wait.describe = [&] { return describe_missing(*this, kind, ranks); };
  serve(wait);
  std::map<int, Message> messages;
  for (const int rank : ranks) {
    if (has(kind, rank)) messages.emplace(rank, take(kind, rank));
  }
  return messages;
}

std::string describe_missing(const Desk& desk, MessageKind kind, const std::vector<int>& ranks) {
  std::vector<std::string> missing;
  for (const int rank : ranks) {
    if (!desk.has(kind, rank)) missing.push_back(desk.title(rank));
  }
  return fmt::format("{} from {}", name_of(kind), fmt::join(missing, ", "));
}

Message Desk::expect(MessageKind kind, std::chrono::milliseconds limit,
                     std::function<bool()> work) {
  Wait wait;
  wait.limit = limit;
  if (work) {
    // No bytes are moved here that others would rather hear of first.
    wait.limit = usual_limit() * 3 / 2;
    wait.work = std::move(work);
  }
  wait.done = [&] { return has(kind, 0); };
  wait.describe = [&] { return fmt::format("{} from {}", name_of(kind), title(0)); };
  serve(wait);
  return take(kind, 0);
}

void Desk::fail(const Error& error) {
  const bool ends_job = is_job_over();
  if (!ends_job) {
    if (asks_) ++attempt_;
    aborted_ = true;
    asks_ = false;
  }
  if (is_told_ || is_coming_back_ || !control_) return;
  is_told_ = true;
  try {
    nlohmann::json body = {{"code", static_cast<int>(error.code())}, {"text", error.text()}};
    if (!ends_job) body["attempt"] = attempt_;
    if (is_coordinator()) {
      send_to_all(MessageKind::abort, body);
    } else {
      send(0, MessageKind::failed, body);
    }
  } catch (const std::exception&) {
    // The others will see the lifeline end.
  }
}

}  // namespace crossmesh
