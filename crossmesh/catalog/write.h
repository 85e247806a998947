// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints as a stream: the tensors are planned first, then their bytes follow in
// order, in pieces of any size. No tensor is held whole. A file has its name only when it is
// complete; before, it is called `<name>.partial`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/header.h"

namespace crossmesh {

// One .safetensors file. Destroyed before `publish`, it leaves nothing behind.
class FileWriter {
 public:
  // Reserves the whole file on disk and writes its header.
  // Throws: invalid_argument when the tensors cannot be written (check_writable); io_failed.
  FileWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
             const Metadata& metadata = {});
  FileWriter(FileWriter&&) noexcept;
  ~FileWriter();

  // The bytes that are still to come.
  std::int64_t remaining_bytes() const;

  // Appends the next bytes of the data.
  // Throws: invalid_argument when they are more than remain, and then writes none; io_failed.
  void append(std::span<const std::byte> bytes);

  // Closes the file. Throws: invalid_argument when bytes are missing; io_failed.
  void seal();

  // Gives the file its name; a file of that name is replaced. Requires: sealed.
  // Throws: io_failed.
  void publish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct CheckpointPlan {
  std::filesystem::path folder;
  std::vector<TensorInfo> tensors;
  // 1: `model.safetensors`. More: `model-00001-of-0000K.safetensors`, and the index. Tensors are
  // dealt in order, so that the files have about equal bytes.
  int shard_count = 1;
  Metadata metadata = {{"format", "pt"}};
  // Whether a checkpoint that is in the folder is removed. Otherwise it is an error.
  bool is_replacing = false;
};

// A checkpoint in a folder, which is made where it is missing. Destroyed before `publish`, it
// leaves the folder's checkpoint as it was.
class CheckpointWriter {
 public:
  // Throws: invalid_argument when the tensors cannot be written, are fewer than the shards, or the
  // folder holds a checkpoint; io_failed.
  explicit CheckpointWriter(CheckpointPlan plan);
  CheckpointWriter(CheckpointWriter&&) noexcept;
  ~CheckpointWriter();

  // Appends the next bytes of the tensors, in the order of the plan.
  // Throws: invalid_argument when they are more than remain; io_failed. After io_failed nothing
  // may follow.
  void append(std::span<const std::byte> bytes);

  // Gives all files their names, the index first: a reader that comes between, or after a
  // crash, finds a missing file and refuses.
  // Throws: invalid_argument when bytes are missing; io_failed.
  void publish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes a small file as a whole: it appears complete, or not at all.
// Throws: io_failed.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace crossmesh
