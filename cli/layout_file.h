// SPDX-License-Identifier: Apache-2.0
// Layouts on disk, so that other programs can supply one: JSON of the versioned schema in
// docs/layout.schema.json. A reader trusts nothing in it.
#pragma once

#include <filesystem>
#include <string_view>

#include "crossmesh/layout/layout.h"

namespace crossmesh::cli {

// Whether a spec names a file instead of a mesh: `@trainer.json`.
bool names_layout_file(std::string_view spec);

// Throws: io_failed when it cannot be read; corrupt_file when it is not JSON, and whatever
// layout_from_json throws, with the file.
Layout read_layout_file(const std::filesystem::path& path);

// The layout of `@path`. Requires: names_layout_file(spec).
Layout layout_of_spec(std::string_view spec);

}  // namespace crossmesh::cli
