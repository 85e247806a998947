// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/serve_slots.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

Error pack_error(int consumer, int sequence, const std::string& why) {
  return Error(ErrorCode::aborted, "serve: packing this chunk failed")
      .with("consumer", consumer)
      .with("sequence", sequence)
      .with("reason", why);
}

}  // namespace

ServeSlots::ServeSlots(Options options) : options_(options) {}

void ServeSlots::begin(const std::optional<std::vector<int>>& live) {
  pulls_.clear();
  live_.reset();
  if (live) live_.emplace(live->begin(), live->end());
}

bool ServeSlots::is_sharing() const {
  return options_.width > 0 && live_ && static_cast<int>(live_->size()) > options_.width;
}

int ServeSlots::ring_of(int consumer) const {
  return options_.width > 0 ? consumer % options_.width : consumer;
}

std::vector<int> ServeSlots::sharers(int consumer) const {
  if (!is_sharing()) return {consumer};
  std::vector<int> result;
  for (const int other : *live_) {
    if (ring_of(other) == ring_of(consumer)) result.push_back(other);
  }
  return result;
}

void ServeSlots::reserve(int consumer, std::int64_t bytes,
                         const std::optional<std::string>& digest) {
  const int ring = ring_of(consumer);
  if (digest) {
    for (const auto& [other, said] : digest_of_consumer_) {
      if (ring_of(other) != ring || said == *digest) continue;
      throw Error(ErrorCode::mismatch, "reserve: ranks of one ring do not pull the same chunks")
          .with("consumer", consumer)
          .with("its digest", *digest)
          .with("other consumer", other)
          .with("other digest", said);
    }
    digest_of_consumer_[consumer] = *digest;
  }
  std::int64_t& most = bytes_of_ring_[ring];
  most = std::max(most, bytes);
}

const ServeSlots::Pull* ServeSlots::find(int consumer, int sequence) const {
  const auto at = pulls_.find({ring_of(consumer), sequence});
  return at == pulls_.end() ? nullptr : &at->second;
}

Arrival ServeSlots::arrive(int consumer, int sequence) {
  if (sequence < 0) {
    throw Error(ErrorCode::invalid_argument, "serve: a pull has no sequence number")
        .with("consumer", consumer)
        .with("sequence", sequence);
  }
  Arrival arrival{Arrival::Kind::waits, ring_of(consumer), sequence % options_.slot_count};
  Pull& pull = pulls_[{arrival.ring, sequence}];
  if (pull.error) throw pack_error(consumer, sequence, *pull.error);
  pull.arrived.insert(consumer);
  const std::vector<int> expected = sharers(consumer);
  const bool is_last = std::all_of(expected.begin(), expected.end(),
                                   [&](int other) { return pull.arrived.count(other) > 0; });
  if (is_last) arrival.kind = Arrival::Kind::packs;
  return arrival;
}

bool ServeSlots::is_packed(int consumer, int sequence) const {
  const Pull* pull = find(consumer, sequence);
  if (pull != nullptr && pull->error) throw pack_error(consumer, sequence, *pull->error);
  return pull != nullptr && pull->is_packed;
}

void ServeSlots::packed(int consumer, int sequence) {
  pulls_[{ring_of(consumer), sequence}].is_packed = true;
}

void ServeSlots::failed(int consumer, int sequence, const std::string& why) {
  pulls_[{ring_of(consumer), sequence}].error = why;
}

std::int64_t ServeSlots::ring_bytes(int ring) const {
  const auto at = bytes_of_ring_.find(ring);
  return at == bytes_of_ring_.end() ? 0 : at->second;
}

int ExportSlots::acquire(int group, std::int64_t bytes) {
  if (slot_of_group_.count(group) > 0) {
    throw Error(ErrorCode::invalid_argument, "export: the group has a slot").with("group", group);
  }
  if (unused_.empty()) {
    unused_.insert(slot_count());
    bytes_of_slot_.push_back(0);
  }
  const int slot = *unused_.begin();
  unused_.erase(unused_.begin());
  slot_of_group_[group] = slot;
  std::int64_t& most = bytes_of_slot_[static_cast<std::size_t>(slot)];
  most = std::max(most, bytes);
  return slot;
}

void ExportSlots::release(int group) {
  const auto at = slot_of_group_.find(group);
  if (at == slot_of_group_.end()) return;
  unused_.insert(at->second);
  slot_of_group_.erase(at);
}

}  // namespace crossmesh::profiles
