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

#include "cli/plain_parameters.h"
#include "crossmesh/base/dtype.h"

namespace crossmesh::cli {

// Writes rows [first_row, first_row + row_count) of a tensor, in its checkpoint dtype, to `rows`.
// Rows are those of PlainPart.
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

struct PlainComparison {
  std::int64_t elements_checked = 0;
  std::int64_t first_different = -1;  // flat element of the parameter, or -1
  std::string tensor;                 // that it should hold; empty where it should hold zero
};

class PlainLoader {
 public:
  // Throws: as plain_parameters.
  explicit PlainLoader(const PlainEngine& engine);
  explicit PlainLoader(std::vector<PlainParameter> parameters);

  const std::vector<PlainParameter>& parameters() const { return parameters_; }

  // The tensors that feed a parameter, in the order of their first rows.
  // Throws: invalid_argument: no such parameter, here and below.
  std::vector<std::string> tensors_of(std::string_view parameter) const;

  // Writes `tensor`'s part of the parameter, and the zeros after the last part with it.
  // Throws: mismatch, here and below: the checkpoint lacks the tensor or shapes it otherwise, or
  // `bytes` is not as large as the parameter.
  void load(std::string_view parameter, std::string_view tensor, const PlainCheckpoint& checkpoint,
            std::span<std::byte> bytes) const;

  // Checks every element of the parameter's bytes. After a cast, any NaN equals any NaN.
  PlainComparison compare(std::string_view parameter, const PlainCheckpoint& checkpoint,
                          std::span<const std::byte> bytes) const;

 private:
  const PlainParameter& parameter_named(std::string_view name) const;

  std::vector<PlainParameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_by_name_;
};

}  // namespace crossmesh::cli
