// SPDX-License-Identifier: Apache-2.0
// The index of a checkpoint in several files (`model.safetensors.index.json`): which file
// holds each tensor. It says nothing of dtypes or shapes; the files do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace crossmesh {

struct ShardIndex {
  struct Entry {
    std::string tensor;
    std::string file;  // a bare name, in the folder of the index
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;  // in the order of the text
  bool operator==(const ShardIndex&) const = default;
};

// Parses the text of an index; `file` is its name, for errors. Other keys than `weight_map`,
// the advisory `metadata.total_size` among them, are skipped.
// Ensures: every tensor occurs once; every file is a bare name (no `/`, `\`, `.` or `..`).
// Throws: corrupt_file, where the text is anything else.
ShardIndex parse_index(std::string_view text, std::string_view file);

// The text of an index. Requires: names are UTF-8.
std::string encode_index(const ShardIndex& index, std::int64_t total_bytes);

}  // namespace crossmesh
