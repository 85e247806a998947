// SPDX-License-Identifier: Apache-2.0
// An engine rank of `crossmesh move`: fresh poisoned parameters, the fallback's loader, and the
// check of every element against the plainest loader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "cli/model.h"
#include "cli/plain_loader.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/session/session.h"

namespace crossmesh::cli {

// What a check found.
struct EngineCheck {
  std::int64_t elements_checked = 0;
  std::int64_t parameters_wrong = 0;
  std::string first_fault;  // parameter, element and tensor; empty when all is right
};

// Where an engine rank stands, what it holds and in which dtype, as the plain loader is told.
// Throws: as plain_engine_of_rank.
PlainEngine plain_engine(const Model& model, const Request& request, int engine_rank);

// The checkpoint as it is at `version`. Requires: `model` outlives it.
PlainCheckpoint plain_checkpoint_at(const Model& model, std::uint64_t version);

class MoveEngine {
 public:
  // Requires: `model` and `layout` outlive it, and the model is a checkpoint.
  MoveEngine(const Model& model, const Layout& layout, int rank, PlainEngine plain);

  ParameterMemory memory() const { return memory_; }

  // The engine's own loader, for opaque tensors: it shares nothing with the plan.
  void load(const TensorInfo& tensor, std::span<const std::byte> bytes);

  // Compares every element of every parameter with the checkpoint at `version`.
  EngineCheck check(std::uint64_t version) const;

  // Writes the parameters to a safetensors file, whose folder is made where it is missing.
  // Throws: as FileWriter.
  void dump(const std::filesystem::path& file) const;

  // Bytes of the parameters.
  std::int64_t bytes_held() const { return bytes_held_; }

 private:
  void fill_reserves();
  std::span<std::byte> bytes_of_parameter(const std::string& name) const;

  const Model& model_;
  const Layout& layout_;
  int rank_;
  PlainLoader loader_;
  Mapping arena_;
  ParameterMemory memory_;
  std::int64_t bytes_held_ = 0;
};

}  // namespace crossmesh::cli
