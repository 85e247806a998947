// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/digest_talk.h"

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using nlohmann::json;

// Bytes digested between two looks at the peers: less than a millisecond.
constexpr std::int64_t kStepBytes = std::int64_t{8} << 20;

json to_json(const TensorDigests& digests) {
  json tensors = json::array(), sums = json::array(), bytes = json::array();
  for (const auto& [tensor, digest] : digests) {
    tensors.push_back(tensor);
    for (const std::uint64_t sum : digest.sums) sums.push_back(static_cast<std::int64_t>(sum));
    bytes.push_back(digest.bytes);
  }
  return {{"tensors", tensors}, {"sums", sums}, {"bytes", bytes}};
}

TensorDigests digests_in(const Message& message) {
  const auto tensors = field<std::vector<std::int64_t>>(message, "tensors");
  const auto sums = field<std::vector<std::int64_t>>(message, "sums");
  const auto bytes = field<std::vector<std::int64_t>>(message, "bytes");
  TensorDigests digests;
  for (std::size_t i = 0; i < tensors.size() && i < bytes.size() && 2 * i + 1 < sums.size(); ++i) {
    digests[static_cast<int>(tensors[i])] = {
        {static_cast<std::uint64_t>(sums[2 * i]), static_cast<std::uint64_t>(sums[2 * i + 1])},
        bytes[i]};
  }
  return digests;
}

std::string digest_text(const TensorDigests& digests, int tensor) {
  const auto found = digests.find(tensor);
  return found == digests.end() ? "none" : to_string(found->second);
}

}  // namespace

void TrainerDigests::compute(std::int64_t version) {
  if (version_ == version) return;
  given_.begin(version);
  while (!given_.finished()) given_.step(kStepBytes);
  sum_up();
  version_ = version;
}

void TrainerDigests::sum_up() {
  fingerprint_of_peer_.clear();
  if (mode_ == DigestMode::off) return;
  for (const int peer : given_.peers()) {
    fingerprint_of_peer_[peer] = to_string(fingerprint(given_.of_peer(peer)));
  }
}

void TrainerDigests::begin(std::int64_t version) {
  if (version_ != version) {
    given_.begin(version);
    if (given_.finished()) sum_up();
  }
  version_ = version;
  is_sent_ = is_spread_ = false;
}

bool TrainerDigests::finished() const {
  return mode_ == DigestMode::off || (is_sent_ && (is_spread_ || !desk_.is_coordinator()));
}

std::vector<int> TrainerDigests::missing() const {
  std::vector<int> ranks;
  if (mode_ == DigestMode::off || is_spread_) return ranks;
  for (int rank = 1; rank < desk_.source_count(); ++rank) {
    if (!desk_.has(MessageKind::digests, rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::string TrainerDigests::waiting_for() const {
  std::vector<std::string> titles;
  for (const int rank : missing()) titles.push_back(desk_.title(rank));
  return titles.empty() ? "" : fmt::format("digests from {}", fmt::join(titles, ", "));
}

bool TrainerDigests::step() {
  if (mode_ == DigestMode::off) return false;
  if (!given_.finished()) {
    given_.step(kStepBytes);
    if (given_.finished()) sum_up();
    return true;
  }
  if (!is_sent_) return send();
  if (desk_.is_coordinator() && !is_spread_) return spread();
  if (!desk_.is_coordinator()) {
    if (!desk_.has(MessageKind::differs, 0)) return false;
    const Message message = desk_.take(MessageKind::differs, 0);
    answer(static_cast<int>(field<std::int64_t>(message, "engine")), message);
    return true;
  }
  for (int rank = desk_.source_count(); rank < desk_.rank_count(); ++rank) {
    if (!desk_.has(MessageKind::differs, rank)) continue;
    const Message message = desk_.take(MessageKind::differs, rank);
    const int engine = rank - desk_.source_count();
    const auto trainer = static_cast<int>(field<std::int64_t>(message, "trainer"));
    if (trainer == 0) {
      answer(engine, message);
    } else {
      json body = message.body;
      body["engine"] = engine;
      desk_.send(trainer, MessageKind::differs, std::move(body));
    }
    return true;
  }
  return false;
}

bool TrainerDigests::send() {
  is_sent_ = true;
  if (desk_.is_coordinator()) return true;
  json of = json::array();
  for (const auto& [peer, fingerprint] : fingerprint_of_peer_) of.push_back({peer, fingerprint});
  desk_.send(0, MessageKind::digests, {{"of", of}});
  return true;
}

// Turns what each trainer says of engines into what each engine is told of trainers.
bool TrainerDigests::spread() {
  if (!missing().empty()) return false;
  std::map<int, json> of_engine;
  for (const auto& [peer, fingerprint] : fingerprint_of_peer_) {
    of_engine[peer].push_back({0, fingerprint});
  }
  for (int rank = 1; rank < desk_.source_count(); ++rank) {
    const Message message = desk_.take(MessageKind::digests, rank);
    for (const json& one : message.body.at("of")) {
      of_engine[one.at(0).get<int>()].push_back({rank, one.at(1)});
    }
  }
  for (int rank = desk_.source_count(); rank < desk_.rank_count(); ++rank) {
    const auto found = of_engine.find(rank - desk_.source_count());
    desk_.send(rank, MessageKind::digests,
               {{"of", found == of_engine.end() ? json::array() : found->second}});
  }
  return is_spread_ = true;
}

// The engine found that something differs; here it is seen what.
void TrainerDigests::answer(int engine, const Message& message) const {
  const TensorDigests taken = digests_in(message);
  const TensorDigests given = given_.of_peer(engine);
  int differing = 0;
  int first = -1;
  for (const auto& [tensor, digest] : given) {
    const auto found = taken.find(tensor);
    if (found != taken.end() && found->second == digest) continue;
    if (differing++ == 0) first = tensor;
  }
  if (first < 0) throw Error(ErrorCode::internal, "digest: fingerprints differ and digests do not");
  const auto& tensors = schedule_.plan.source.tensors;
  throw Error(ErrorCode::mismatch, "digest: an engine did not get what a trainer gave")
      .with("tensor", tensors[static_cast<std::size_t>(first)].name)
      .with("tensors that differ", differing)
      .with("version", version_)
      .with("trainer", desk_.title(desk_.rank()))
      .with("given", digest_text(given, first))
      .with("engine", desk_.title(desk_.source_count() + engine))
      .with("taken", digest_text(taken, first))
      .hint(
          "the replica did not commit; weights that are written to during an update differ as "
          "memory errors do: if they are left alone, suspect this host's memory");
}

void compare_digests(Desk& desk, const TakenDigests& taken, std::chrono::milliseconds limit) {
  const Message digests = desk.expect(MessageKind::digests, limit);
  std::map<int, std::string> given;
  for (const json& one : digests.body.at("of")) given[one.at(0).get<int>()] = one.at(1);
  for (const int trainer : taken.peers()) {
    const TensorDigests& own = taken.of_peer(trainer);
    if (given[trainer] == to_string(fingerprint(own))) continue;
    json body = to_json(own);
    body["trainer"] = trainer;
    desk.send(0, MessageKind::differs, std::move(body));
    // The trainer ends the job with what it finds.
    desk.expect(MessageKind::commit);
    return;
  }
}

}  // namespace crossmesh
