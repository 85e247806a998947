// SPDX-License-Identifier: Apache-2.0
// The parameters of one engine rank as vLLM has them, each as a list of rows of checkpoint tensors:
// what the plainest loader loads and compares. It shares no table and no code with the library's
// engine layouts, so that the two do not share an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// A matrix has rows of its last dimension, as many as its other dimensions have indices together;
// a vector has rows of one element.
//
// Rows [source_row, source_row + rows) of `tensor`, of each the columns [source_column,
// source_column + parameter columns), to parameter rows [target_row, target_row + rows).
struct PlainPart {
  std::string tensor;
  std::vector<std::int64_t> tensor_shape;
  std::int64_t source_row = 0;
  std::int64_t source_column = 0;
  std::int64_t target_row = 0;
  std::int64_t rows = 0;

  bool operator==(const PlainPart&) const = default;
};

// Parts fill a parameter from its first row on; rows after the last part hold zeros.
struct PlainParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major, contiguous
  std::string storage;              // the parameter whose memory it is: its own name unless tied
  std::vector<PlainPart> parts;
  DType dtype = DType::bf16;

  bool operator==(const PlainParameter&) const = default;
};

// Where the routed experts of a layer lie.
enum class PlainSpread : std::uint8_t {
  cut,          // each on all dp * tp ranks, cut by them
  linear,       // whole, neighbours together
  round_robin,  // whole, dealt out; where the router knows no groups of experts, as linear
};

// One rank of one serving instance. Requires: 0 <= x_rank < x.
struct PlainEngine {
  std::string_view config_json = {};
  int pp = 1, pp_rank = 0;
  int dp = 1, dp_rank = 0;  // repeats attention and dense layers
  int tp = 1, tp_rank = 0;
  PlainSpread spread = PlainSpread::cut;
  std::vector<std::vector<int>> expert_of_slot = {};  // where they spread otherwise: those of rank
                                                      // after rank; one row, or by sparse layer
  bool has_stacked_experts = false;  // in the checkpoint: one tensor for all experts of a layer
  DType dtype = DType::bf16;         // of what is not quantised, nor a bias of the router
};

// Throws: as read_plain_config; mismatch: tp does not divide heads, KV heads (nor they it), sizes
// or the padded vocabulary, or dp * tp the size of an expert that they cut; unsupported: a cut
// falls inside a block of scales.
std::vector<PlainParameter> plain_parameters(const PlainEngine& engine);

// Layers [first, last) of a stage: an even split, the remainder to the stages before the last,
// going backwards.
struct PlainStage {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PlainStage plain_stage(std::int64_t layers, const PlainEngine& engine);

std::int64_t columns_of(const std::vector<std::int64_t>& shape);
std::int64_t rows_of(const std::vector<std::int64_t>& shape);

}  // namespace crossmesh::cli
