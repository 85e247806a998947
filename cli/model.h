// SPDX-License-Identifier: Apache-2.0
// What the commands take for a MODEL: a checkpoint's folder, or just a config.json, from which the
// checkpoint's catalog follows. And the layouts of both sides, as the command line asks for them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/request.h"
#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/read.h"
#include "crossmesh/layout/layout.h"
#include "crossmesh/target/family.h"

namespace crossmesh::cli {

struct Model {
  std::filesystem::path path;
  std::string config_text;
  ModelConfig config;
  ExpertForm expert_form = ExpertForm::each;
  Catalog catalog;                       // of the checkpoint, or of what the config implies
  std::optional<Checkpoint> checkpoint;  // nothing where MODEL is a config.json
};

// Opens a checkpoint's folder (its config.json and its tensors), or a config.json alone.
// Throws: invalid_argument when there is neither at `path`, or no config.json in the folder;
// whatever read, parse_config and expert_form_of throw.
Model open_model(const std::filesystem::path& path);

// The training side. A spec `@FILE` is a layout on disk. Throws: as shard and read_layout_file.
Layout source_layout(const Model& model, const Request& request);

// The serving side, with the tensors that --opaque names marked.
// Throws: as lay_out and mark_opaque.
Layout target_layout(const Model& model, const Request& request);

// Compares a published lm_head.weight of a tied model with the embedding that it must equal.
// `on_progress` gets the bytes compared so far. Does nothing where there are not two tensors, or
// their bytes are not at hand.
// Throws: mismatch, with the first element that differs.
void check_tied(const Model& model, const std::function<void(std::int64_t)>& on_progress = {});

}  // namespace crossmesh::cli
