// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/readmission.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

Readmission::Readmission(Desk& desk, const SessionOptions& options, const Schedule& schedule,
                         std::string transport, std::map<int, json> relays_of_rank)
    : desk_(desk),
      options_(options),
      schedule_(schedule),
      transport_(std::move(transport)),
      relays_of_rank_(std::move(relays_of_rank)) {}

bool Readmission::answer(std::vector<std::string>& addresses, std::int64_t version) {
  bool said = false;
  for (const int rank : desk_.absent()) {
    try {
      said |= answer_one(rank, addresses, version);
    } catch (const Error& error) {
      send_away(rank, error);
    }
  }
  if (said) last_word_ = Clock::now();
  return said;
}

bool Readmission::answer_one(int rank, std::vector<std::string>& addresses, std::int64_t version) {
  if (desk_.has(MessageKind::join, rank)) {
    const Message join = desk_.take(MessageKind::join, rank);
    return_of_rank_[rank] = {Step::joined, desk_.loss_count(rank)};
    check_joiner(desk_, options_, transport_, join);
    addresses[static_cast<std::size_t>(rank)] = field<std::string>(join, "address");
    // It will ask for the attempt that is being prepared.
    const json standing = {
        {"attempt", desk_.attempt() - 1}, {"version", version}, {"epoch", desk_.epoch()}};
    desk_.send(rank, MessageKind::roster, {{"addresses", addresses}, {"return", standing}});
    return true;
  }
  const auto found = return_of_rank_.find(rank);
  if (found == return_of_rank_.end()) return false;
  Return& coming = found->second;
  if (coming.losses != desk_.loss_count(rank)) {
    return_of_rank_.erase(found);
    return false;
  }
  if (coming.step == Step::joined && desk_.has(MessageKind::offer, rank)) {
    judge_offer(coming, desk_.take(MessageKind::offer, rank));
    return true;
  }
  if (coming.step == Step::asked_for_layout && desk_.has(MessageKind::layout, rank)) {
    throw layout_disagreement(desk_, schedule_.plan.target, options_.source_count,
                              desk_.take(MessageKind::layout, rank));
  }
  if (coming.step == Step::compiles && desk_.has(MessageKind::agreed, rank)) {
    check_schedule(desk_, to_string(fingerprint(schedule_)), desk_.take(MessageKind::agreed, rank));
    coming.step = Step::agreed;
    return true;
  }
  return false;
}

void Readmission::judge_offer(Return& coming, const Message& offer) {
  check_offer(desk_, schedule_.options, offer);
  if (field<std::string>(offer, "fingerprint") == to_string(fingerprint(schedule_.plan.target))) {
    desk_.send(offer.rank, MessageKind::layouts, layout_body(schedule_.plan.source));
    coming.step = Step::compiles;
    return;
  }
  // What it has instead is needed to name the difference.
  desk_.send(offer.rank, MessageKind::want);
  coming.step = Step::asked_for_layout;
}

void Readmission::send_away(int rank, const Error& error) {
  return_of_rank_.erase(rank);
  refusal_ = error;
  desk_.send(rank, MessageKind::abort,
             {{"code", static_cast<int>(error.code())}, {"text", error.text()}});
}

std::vector<int> Readmission::waiting() const {
  std::vector<int> ranks;
  for (const auto& [rank, coming] : return_of_rank_) {
    const bool lives = coming.losses == desk_.loss_count(rank);
    if (lives && coming.step == Step::agreed) ranks.push_back(rank);
  }
  return ranks;
}

void Readmission::let_in(int rank, const std::string& address) {
  return_of_rank_.erase(rank);
  desk_.welcome(rank);
  const auto relays = relays_of_rank_.find(rank);
  desk_.send(rank, MessageKind::places,
             {{"relays", relays == relays_of_rank_.end() ? json::array() : relays->second}});
  for (const int member : desk_.members()) {
    if (!desk_.is_source(member)) continue;
    desk_.send(member, MessageKind::returned, {{"rank", rank}, {"address", address}});
  }
}

void Readmission::check_patience(Deadline begin) const {
  // Who fits is there, and waits for trainers.
  std::set<int> missing = desk_.absent();
  for (const int rank : waiting()) missing.erase(rank);
  if (missing.empty()) return;
  const int rank = *missing.begin();
  // Who is on its way back may have memory to reserve.
  const auto limit = return_of_rank_.empty() ? options_.timeout
                                             : std::max(options_.timeout, options_.agree_timeout);
  const auto waited = Clock::now() - std::max({begin, desk_.last_loss(), last_word_});
  if (waited <= limit) return;
  Error error = desk_.loss_error(rank, "a rank's process ended, and none came back in its place")
                    .with("seconds waited",
                          fmt::format("{:.1f}", std::chrono::duration<double>(waited).count()));
  if (refusal_) error.with("sent away", refusal_->text().substr(0, refusal_->text().find('\n')));
  throw error;
}

}  // namespace crossmesh
