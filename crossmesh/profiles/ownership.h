// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: which trainer ranks (producers) hold which names, and which of
// them serves which engine rank (consumer). Plain arithmetic that both sides do alike; crossmesh's
// own schedule does not read it.
#pragma once

#include <string>
#include <vector>

namespace crossmesh::profiles {

// The producers that `consumer` pulls from: a block of them where there are more producers than
// consumers, else the one that it shares. Counts below 1 are taken as 1.
// Throws: invalid_argument where `consumer` is none of the consumers.
struct Fleet {
  int producer_count = 1;
  int consumer_count = 1;
};
std::vector<int> producer_block(Fleet fleet, int consumer);

// Where an engine rank stands, as its framework counts.
struct EngineRank {
  int data_parallel_index = 0;
  int rank = 0;
  int world_size = 1;
  int world_size_across_dp = 1;
  int consumer_count = 0;  // 0: one deployment of world_size_across_dp ranks
  int replica_rank = 0;    // below 0 is taken as 0
  int replica_count = 1;   // below 1 is taken as 1
};
struct ConsumerIdentity {
  int consumer = 0;  // over all deployments
  int workers_per_replica = 0;

  bool operator==(const ConsumerIdentity&) const = default;
};
ConsumerIdentity consumer_identity(const EngineRank& rank);

// The engine ranks that an update waits for: `live` sorted and once each, or all `consumer_count`
// where nobody says which are alive.
std::vector<int> live_consumers(const std::vector<int>* live, int consumer_count);

// What one trainer rank says of itself; `held` is nothing where it holds all.
struct TrainerHoldings {
  std::vector<std::string> names;  // of the whole model, in order
  bool holds_all = true;
  std::vector<std::string> held;
};

struct OwnerClasses {
  std::vector<std::vector<int>> owner_sets;  // ranks, ascending; numbered by first appearance
  std::vector<int> class_of_name;

  bool operator==(const OwnerClasses&) const = default;
};

// Throws: mismatch where ranks list other names; invalid_argument where a rank holds nothing or a
// name that is not listed, where nobody holds a name, or where names do not lie group by group.
OwnerClasses owner_classes(const std::vector<TrainerHoldings>& holdings);

}  // namespace crossmesh::profiles
