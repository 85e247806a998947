// SPDX-License-Identifier: Apache-2.0
// A trainer rank of `crossmesh move`: memory for its shards in one segment, shareable or private,
// filled from its own part of the checkpoint and from nothing else.
#pragma once

#include <cstdint>

#include "cli/model.h"
#include "crossmesh/memory/arena.h"
#include "crossmesh/session/session.h"
#include "crossmesh/transport/way.h"

namespace crossmesh::cli {

class MoveTrainer {
 public:
  // Requires: `model` and `layout` outlive it, and the model is a checkpoint.
  // `way` decides on the memory: it is private where the way is made for that.
  MoveTrainer(const Model& model, const Layout& layout, int rank, ShmWay way);

  ParameterMemory memory() const { return memory_; }

  // Writes this rank's shards as they are at `version`.
  void write(std::uint64_t version);

  // Bytes of the checkpoint that the last write read.
  std::int64_t bytes_read() const { return bytes_read_; }

  // Bytes of this rank's shards.
  std::int64_t bytes_held() const { return bytes_held_; }

 private:
  void write_piece(const Instance& instance, const Piece& piece, std::uint64_t version);

  const Model& model_;
  const Layout& layout_;
  int rank_;
  SharedMemory segment_;
  Mapping private_segment_;
  ParameterMemory memory_;
  std::int64_t bytes_read_ = 0;
  std::int64_t bytes_held_ = 0;
};

}  // namespace crossmesh::cli
