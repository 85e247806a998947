// SPDX-License-Identifier: Apache-2.0
// What a side holds and what a move must do, as flat lists of elements: too simple to be wrong. It
// includes nothing of what it judges (layouts, sources, targets, plans, schedules, sessions), and
// is not meant to be fast.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace crossmesh::oracle {

// One element of a tensor, by its flat row-major index; tensor -1: no tensor's.
struct Element {
  int tensor = -1;
  std::int64_t index = -1;

  bool operator==(const Element&) const = default;
};

// What each element of a parameter's storage is.
using Elements = std::vector<Element>;

// elements[rank][parameter]; a rank without the parameter has an empty list.
struct Side {
  std::vector<std::vector<Elements>> elements;

  bool operator==(const Side&) const = default;
};

// -- Trainers ------------------------------------------------------------------------------------

struct Tensor {
  std::vector<std::int64_t> shape;
  int tp_dim = -1;  // that `tp` splits, or -1
};

// `tp`, `fsdp` or `dp_replicate`, from major to minor.
struct Axis {
  std::string name;
  int size = 1;
};

// Parameter i is tensor i's shard: `tp` takes torch.chunk's part of the indices of tp_dim, then
// `fsdp` that of what is left of dimension 0. A tensor without dimensions lies whole everywhere.
Side shard_naive(const std::vector<Tensor>& tensors, const std::vector<Axis>& axes);

// -- Layouts made by hand ------------------------------------------------------------------------

// The elements of a tensor whose digits lie in a box, and where they lie. Each dimension is a
// mixed radix with its own factors; origin, extent and stride are those of all digits in order.
struct RefinedPiece {
  std::vector<std::vector<std::int64_t>> factors_of_dim;
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> extent;
  std::vector<std::int64_t> stride;
  std::int64_t offset = 0;
};

// Writes the piece into a parameter. Throws: std::logic_error where an element is taken already,
// or lies outside.
void place(Elements& parameter, int tensor, const RefinedPiece& piece);

// -- Engines -------------------------------------------------------------------------------------

struct SmallModel {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t vocabulary = 0;
  bool tied = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
};

struct Engine {
  std::vector<std::string> tensors;  // names, by the numbers that Element::tensor holds
  std::vector<std::vector<std::int64_t>> tensor_shapes;
  std::vector<std::string> parameters;
  Side side;  // one replica after the other, tp fastest
};

// Requires: tp divides heads, the intermediate size and the padded vocabulary, and divides the KV
// heads or is a multiple of them.
struct EngineMesh {
  int replicas = 1;
  int tp = 1;
};
Engine engine_naive(const SmallModel& model, const EngineMesh& mesh);

// -- Moving --------------------------------------------------------------------------------------

// The target side after a move: each element that the source side holds anywhere, taken from
// there. What no source rank holds stays no tensor's.
Side move_naive(const Side& source, const Side& target);

}  // namespace crossmesh::oracle
