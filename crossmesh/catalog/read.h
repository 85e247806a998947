// SPDX-License-Identifier: Apache-2.0
// A checkpoint on disk, opened: its catalog and, on demand, the bytes of its tensors. The
// files are mapped; of their data nothing is read until a caller looks at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/header.h"

namespace crossmesh {

struct CheckpointFile {
  std::filesystem::path path;
  std::int64_t bytes = 0;
  std::int64_t tensor_count = 0;
  Metadata metadata;
};

// Owns the mappings. Spans that it gives out live as long as it does, moves included.
// A file that another process truncates meanwhile raises SIGBUS where its bytes are read.
class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // File after file, each in the order of its bytes.
  const Catalog& catalog() const;
  std::span<const CheckpointFile> files() const;

  std::optional<std::size_t> find(std::string_view name) const;

  // The packed bytes of one tensor, at no particular alignment. The format lets a dtype begin at
  // any byte.
  // Throws: invalid_argument when there is no such tensor.
  std::span<const std::byte> bytes(std::size_t tensor) const;
  std::span<const std::byte> bytes(std::string_view name) const;

  // Where a tensor lies: its file, and the place of its first byte there.
  // Throws: invalid_argument when there is no such tensor.
  const CheckpointFile& file_of(std::size_t tensor) const;
  std::int64_t offset_of(std::size_t tensor) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;

  friend Checkpoint read(const std::filesystem::path& path);
};

// Opens a checkpoint. `path` is a `.safetensors` file, an index (`*.safetensors.index.json`),
// or a folder. Of a folder it takes, in this order: `model.safetensors.index.json`, its only
// other index, all its `*.safetensors` files by name. With an index only the files that it names
// are opened, by name; their tensors and those of the index must be the same ones.
//
// Throws: corrupt_file when a file is not what its format says, or files and index disagree;
// io_failed when the system refuses to open or map; invalid_argument when there is no
// checkpoint at `path`, or several indexes.
Checkpoint read(const std::filesystem::path& path);

// The `config.json` in the folder of a checkpoint, `path` being the folder or a file in it.
std::optional<std::filesystem::path> find_config(const std::filesystem::path& path);

}  // namespace crossmesh
