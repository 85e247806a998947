// SPDX-License-Identifier: Apache-2.0
// A profile of a collective reshard (nccl_m2n): what the two sides are told once, read from JSON
// and checked in the transport's order. It joins nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/profiles/m2n_layout.h"

namespace crossmesh::profiles {

inline constexpr std::size_t kUniqueIdBytes = 128;

// How ranks find each other: a unique id, or an address and a port.
struct Rendezvous {
  std::optional<std::string> address;
  std::optional<std::int64_t> port;
  std::string unique_id;  // its bytes; empty: none. It is a secret: no text shows it.

  bool operator==(const Rendezvous&) const = default;
};

struct WorkerInit {
  Rendezvous rendezvous;
  int rank_offset = 0;  // of the workers: the number of trainer ranks
  int world_size = 0;
  std::vector<std::int64_t> source_mesh_dims;
  std::vector<std::int64_t> destination_mesh_dims;
  std::vector<std::string> names;
  std::vector<std::string> dtype_names;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<Placements> source_placements;
};

// Throws: invalid_argument: `Invalid init_info for nccl_m2n` for a text that is no object, and for
// fields that are missing, unknown or of another type; both or no rendezvous; lists of other
// lengths than the names; a rank offset outside the world; a mesh that is not the workers.
WorkerInit worker_init(std::string_view json_text);

// The names of an update. Throws: invalid_argument: `Invalid update_info for nccl_m2n`.
std::vector<std::string> worker_update(std::string_view json_text);

struct TrainerInit {
  Rendezvous rendezvous;
  int rank = 0;
  int world_size = 0;
  int trainer_count = 1;
  std::vector<std::int64_t> destination_mesh_dims;  // (workers, 1) where nobody says

  bool is_sender() const { return rank == 0; }
};
// Throws: invalid_argument, as worker_init.
TrainerInit trainer_init(std::string_view json_text);

// The rank of a worker in the world of both sides.
struct WorkerPlace {
  int data_parallel_index = 0;
  int world_size = 1;
  int rank = 0;
  int rank_offset = 0;
};
int worker_rank(const WorkerPlace& place);

}  // namespace crossmesh::profiles
