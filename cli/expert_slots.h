// SPDX-License-Identifier: Apache-2.0
// The table of --expert-slots: which expert each slot of an instance holds, in the slots of its
// ranks side by side. It reads the file; whether the table fits is for the layout to say.
#pragma once

#include <string>
#include <vector>

namespace crossmesh::cli {

// A JSON list with a row for all layers that have experts, or a row for each; `[[0, 1, 2, 0]]`.
// No path: no table.
// Throws: io_failed: the file cannot be read; corrupt_file: it is no such list.
std::vector<std::vector<int>> read_expert_slots(const std::string& path);

}  // namespace crossmesh::cli
