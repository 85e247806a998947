// SPDX-License-Identifier: Apache-2.0
// A run on disk, as `--dump` leaves it: one safetensors file for each engine rank with the
// parameters that it ended with, and `run.json`, which says what they are. That file is written
// last, so a folder without it holds no run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "crossmesh/base/dtype.h"
#include "crossmesh/catalog/read.h"

namespace crossmesh::cli {

// run    = { "crossmesh_run": 1, "model": path, "config": text, "trainer": spec, "engine": spec,
//            "engine_ranks": count, "parameter_dtype": name, "expert_slots": flag,
//            "version": count }
// config = the text of the model's config.json, as it was
// name   = of a safetensors dtype: that of what is not quantised
// flag   = whether `expert-slots.json` lies beside it, as --expert-slots takes it
//
// A change that a reader of the present version would misread gets a new number; fields that a
// reader does not know are left alone.
inline constexpr int kRunSchema = 1;

struct Run {
  std::string model;
  std::string config_text;
  std::string trainer;
  std::string engine;
  int engine_ranks = 0;
  DType parameter_dtype = DType::bf16;
  bool has_expert_slots = false;
  std::int64_t version = 0;  // of the weights; 0 is the checkpoint itself

  bool operator==(const Run&) const = default;
};

// `DIR/engine-00003.safetensors`
std::filesystem::path rank_file(const std::filesystem::path& folder, int engine_rank);

// `DIR/expert-slots.json`, or nothing where the run has no such table.
std::string expert_slots_file(const std::filesystem::path& folder, const Run& run);

// Whether there is a `run.json` in the folder.
bool holds_run(const std::filesystem::path& folder);

// Throws: invalid_argument where the folder holds a run already or a model, or is no folder.
void check_free_for_run(const std::filesystem::path& folder);

// Throws: io_failed.
void write_run(const std::filesystem::path& folder, const Run& run);

// Throws: corrupt_file naming the field; unsupported where it is of another version;
// limit_exceeded, io_failed.
Run read_run(const std::filesystem::path& folder);

// The parameters of one engine rank.
// Throws: io_failed where the file is missing; unsupported where elements of a parameter do not
// fill bytes; as read.
Checkpoint read_rank(const std::filesystem::path& folder, const Run& run, int engine_rank);

}  // namespace crossmesh::cli
