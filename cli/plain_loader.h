// SPDX-License-Identifier: Apache-2.0
// The plainest loader: what each parameter of one engine rank must hold, row by row, straight from
// checkpoint tensors. It is what updates are checked against, and shares no table and no code
// with the library's engine layouts or casts; it is not how weights are moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// Writes rows [first_row, first_row + row_count) of a tensor, in its checkpoint dtype, to `rows`.
// A row is one index of dimension 0: of a vector, one element.
using RowsReader = std::function<void(std::string_view tensor, std::int64_t first_row,
                                      std::int64_t row_count, std::span<std::byte> rows)>;

struct PlainTensor {
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;
};

struct PlainCheckpoint {
  std::map<std::string, PlainTensor, std::less<>> tensors;
  RowsReader read_rows;
};

// A checkpoint of one tensor that lies whole in memory. Requires: `bytes` outlives it.
PlainCheckpoint whole_tensor_in_memory(std::string_view name, PlainTensor tensor,
                                       std::span<const std::byte> bytes);

// Rows [source_row, source_row + rows) of `tensor`, of each the columns [source_column,
// source_column + parameter columns), to parameter rows [target_row, target_row + rows).
struct PlainPart {
  std::string tensor;
  std::vector<std::int64_t> tensor_shape;
  std::int64_t source_row = 0;
  std::int64_t source_column = 0;
  std::int64_t target_row = 0;
  std::int64_t rows = 0;
};

// Parts fill a parameter from its first row on; rows after the last part hold zeros.
struct PlainParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major, contiguous
  std::string storage;              // the parameter whose memory it is: its own name unless tied
  std::vector<PlainPart> parts;
};

struct PlainComparison {
  std::int64_t elements_checked = 0;
  std::int64_t first_different = -1;  // flat element of the parameter, or -1
  std::string tensor;                 // that it should hold; empty where it should hold zero
};

struct PlainEngine {
  std::string_view config_json;
  int tp = 1;
  int tp_rank = 0;
  DType dtype = DType::bf16;  // of every parameter
};

class PlainLoader {
 public:
  // Serves llama, mistral, qwen2 and qwen3. Requires: 0 <= tp_rank < tp.
  // Throws: corrupt_file: the text is not a config; unsupported: another model_type;
  // mismatch: tp does not divide heads, KV heads (nor they it), sizes or the padded vocabulary.
  explicit PlainLoader(const PlainEngine& engine);

  const std::vector<PlainParameter>& parameters() const { return parameters_; }

  // The tensors that feed a parameter, in the order of its rows.
  // Throws: invalid_argument: no such parameter, here and below.
  std::vector<std::string> tensors_of(std::string_view parameter) const;

  // Writes `tensor`'s part of the parameter, and the zeros after the last part with it.
  // Requires: `bytes` is the whole parameter.
  // Throws: mismatch: the checkpoint lacks the tensor or shapes it otherwise.
  void load(std::string_view parameter, std::string_view tensor, const PlainCheckpoint& checkpoint,
            std::span<std::byte> bytes) const;

  // Checks every element of the parameter's bytes. After a cast, any NaN equals any NaN.
  PlainComparison compare(std::string_view parameter, const PlainCheckpoint& checkpoint,
                          std::span<const std::byte> bytes) const;

 private:
  const PlainParameter& parameter_named(std::string_view name) const;

  DType dtype_;
  std::vector<PlainParameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_by_name_;
};

}  // namespace crossmesh::cli
