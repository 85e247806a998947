// SPDX-License-Identifier: Apache-2.0
// What `verify` finds: the parameters of a run's engine ranks, element by element, beside those of
// another run or beside what the plain loader makes of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// One element: `-0.0123`, empty where it is no floating-point number that is known; `0xbc4a`.
struct ElementText {
  std::string value;
  std::string hex;

  bool operator==(const ElementText&) const = default;
};

// One parameter of one engine rank in which the two differ.
struct ParameterDifference {
  int engine = 0;
  std::string parameter;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;
  std::string tensor;  // that feeds the first different element; empty between runs, and in padding
  std::int64_t elements = 0;
  std::int64_t elements_different = 0;
  std::int64_t first_different = 0;  // flat, row-major
  ElementText a, b;                  // the first different element on both sides

  bool operator==(const ParameterDifference&) const = default;
};

struct RunComparison {
  int engine_ranks = 0;
  std::int64_t version_a = 0, version_b = 0;  // of a checkpoint: that of the run beside it
  std::int64_t parameters = 0;
  std::int64_t elements = 0;
  std::vector<ParameterDifference> differences;  // by engine rank, in the order of its parameters
};

// Every bit counts: between runs, a NaN differs from another NaN.
// Throws: mismatch naming what the runs have not in common: config, engine, dtype, a parameter;
// as read_run and read_rank.
RunComparison compare_runs(const std::filesystem::path& a, const std::filesystem::path& b);

// Beside the checkpoint at `model` as it is at the run's version. After a cast, any NaN equals any.
// Throws: invalid_argument where `model` has no weights; mismatch where it is of another config
// than the run, or the run's ranks or parameters are not those of its engine; as open_model.
enum class RunIs { a, b };
RunComparison compare_with_model(const std::filesystem::path& run,
                                 const std::filesystem::path& model, RunIs side);

}  // namespace crossmesh::cli
