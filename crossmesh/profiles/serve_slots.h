// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: which slot of which ring a producer packs a pull into, and which
// of the engine ranks that pull the same bytes packs them for all. Slots follow the order in which
// pulls were issued, never the order in which they run. It holds no bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace crossmesh::profiles {

// What comes of a pull that has arrived.
struct Arrival {
  enum class Kind : std::uint8_t { waits, packs };
  Kind kind = Kind::waits;
  int ring = 0;
  int slot = 0;

  bool operator==(const Arrival&) const = default;
};

class ServeSlots {
 public:
  // `width`: ranks of a deployment, of which equal ones pull alike; 0: nobody shares.
  struct Options {
    int slot_count = 2;  // of a ring
    int width = 0;
  };
  explicit ServeSlots(Options options);

  // A new update. Ranks share only where it is known who lives and more live than one deployment
  // has. Rings and what was reserved stay.
  void begin(const std::optional<std::vector<int>>& live);

  // Makes a ring as large as `bytes`, never smaller. Throws: mismatch where `digest` is not that of
  // what others of the ring, or this rank before, said that they pull.
  void reserve(int consumer, std::int64_t bytes, const std::optional<std::string>& digest);

  // Throws: invalid_argument without a sequence number; aborted where packing this pull failed.
  Arrival arrive(int consumer, int sequence);

  // Whether a pull can be answered. Throws: aborted where packing it failed.
  bool is_packed(int consumer, int sequence) const;
  void packed(int consumer, int sequence);
  void failed(int consumer, int sequence, const std::string& why);

  int ring_of(int consumer) const;
  // Of the consumers that live, those that share its ring.
  std::vector<int> sharers(int consumer) const;
  std::int64_t ring_bytes(int ring) const;
  int ring_count() const { return static_cast<int>(bytes_of_ring_.size()); }

 private:
  struct Pull {
    std::set<int> arrived;
    bool is_packed = false;
    std::optional<std::string> error;
  };
  const Pull* find(int consumer, int sequence) const;
  bool is_sharing() const;

  Options options_;
  std::optional<std::set<int>> live_;
  std::map<std::pair<int, int>, Pull> pulls_;  // by ring and sequence
  std::map<int, std::int64_t> bytes_of_ring_;
  std::map<int, std::string> digest_of_consumer_;
};

// Slots for what a trainer exports: one for each group that is served, taken back when it is let
// go. A slot is never given out while a group lies in it.
class ExportSlots {
 public:
  // The slot of a group, at least `bytes` large. Throws: invalid_argument for a group that has one.
  int acquire(int group, std::int64_t bytes);
  // Nothing for a group that has none.
  void release(int group);

  int slot_count() const { return static_cast<int>(bytes_of_slot_.size()); }
  std::int64_t slot_bytes(int slot) const {
    return bytes_of_slot_.at(static_cast<std::size_t>(slot));
  }

 private:
  std::vector<std::int64_t> bytes_of_slot_;
  std::set<int> unused_;
  std::map<int, int> slot_of_group_;
};

}  // namespace crossmesh::profiles
