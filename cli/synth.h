// SPDX-License-Identifier: Apache-2.0
// Makes a checkpoint of random weights, of the sizes that weights have, so that whatever a
// move swaps, drops or repeats shows. It trains nothing, and knows no model family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "crossmesh/catalog/catalog.h"

namespace crossmesh::cli {

struct SynthOptions {
  std::filesystem::path folder;
  std::string config_text;  // of the config.json to put beside the weights; none if empty
  std::uint64_t seed = 0;
  int shard_count = 1;
  bool is_replacing = false;  // whether a checkpoint in the folder is removed
  // Called after each piece with the bytes so far and in all; may be empty.
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)> on_progress;
};

// Writes `tensors`, in this order. An element depends on the seed, the name of its tensor, its
// place there and the dtype, and on nothing else: not on the shards.
//
// Values: of float types about normal, deviation 0.02 (vectors that are no biases: 1 ± 0.1;
// scales of quantised weights: 0.02 ± 0.002);
// of fp8 types any pattern below 2 in size; of other types any bit pattern; never a NaN or an
// infinity. Memory: a buffer of 1 MiB.
// Throws: as CheckpointWriter.
void synth(const std::vector<TensorInfo>& tensors, const SynthOptions& options);

}  // namespace crossmesh::cli
