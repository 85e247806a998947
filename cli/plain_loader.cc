// SPDX-License-Identifier: Apache-2.0
#include "cli/plain_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/plain_cast.h"
#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const PlainTensor& tensor_of(const PlainPart& part, const PlainCheckpoint& checkpoint) {
  const auto found = checkpoint.tensors.find(part.tensor);
  if (found == checkpoint.tensors.end()) {
    throw Error(ErrorCode::mismatch, "load plainly: the checkpoint lacks a tensor")
        .with("tensor", part.tensor);
  }
  if (found->second.shape != part.tensor_shape) {
    throw Error(ErrorCode::mismatch, "load plainly: a tensor has another shape")
        .with("tensor", part.tensor)
        .with("shape", shape_text(found->second.shape))
        .with("expected", shape_text(part.tensor_shape));
  }
  return found->second;
}

// Rows [first, first + count) of a part, as the parameter must hold them.
class PartRows {
 public:
  PartRows(const PlainPart& part, const PlainParameter& parameter,
           const PlainCheckpoint& checkpoint)
      : part_(part),
        tensor_(tensor_of(part, checkpoint)),
        read_rows_(checkpoint.read_rows),
        dtype_(parameter.dtype),
        source_row_bytes_(columns_of(part.tensor_shape) * byte_size(tensor_.dtype)),
        columns_(columns_of(parameter.shape)) {}

  // Rows of about a quarter of a MiB, so that chunks stay in the cache.
  std::int64_t chunk_rows() const {
    return std::max<std::int64_t>(1, (std::int64_t{1} << 18) / source_row_bytes_);
  }

  void write(std::int64_t first, std::int64_t count, std::span<std::byte> rows) {
    const std::int64_t cut_bytes = columns_ * byte_size(tensor_.dtype);
    const bool is_cut = cut_bytes != source_row_bytes_;
    const bool is_cast = tensor_.dtype != dtype_;
    if (!is_cut && !is_cast) return read_rows_(part_.tensor, part_.source_row + first, count, rows);

    source_.resize(static_cast<std::size_t>(count * source_row_bytes_));
    read_rows_(part_.tensor, part_.source_row + first, count, source_);
    const std::int64_t skipped_bytes = part_.source_column * byte_size(tensor_.dtype);
    if (is_cut) {  // Closing the rows up in place: a row never moves past one not yet read.
      for (std::int64_t row = 0; row < count; ++row) {
        std::memmove(source_.data() + row * cut_bytes,
                     source_.data() + row * source_row_bytes_ + skipped_bytes,
                     static_cast<std::size_t>(cut_bytes));
      }
    }
    const std::span kept(source_.data(), static_cast<std::size_t>(count * cut_bytes));
    cast_plainly(tensor_.dtype, kept, dtype_, rows);
  }

  bool is_cast() const { return tensor_.dtype != dtype_; }

 private:
  const PlainPart& part_;
  const PlainTensor& tensor_;
  const RowsReader& read_rows_;
  DType dtype_;
  std::int64_t source_row_bytes_;
  std::int64_t columns_;
  std::vector<std::byte> source_;
};

// The first element that differs, or -1.
std::int64_t find_difference(std::span<const std::byte> expected, std::span<const std::byte> actual,
                             DType dtype, bool is_cast) {
  if (std::memcmp(expected.data(), actual.data(), expected.size()) == 0) return -1;
  const auto size = static_cast<std::size_t>(byte_size(dtype));
  for (std::size_t at = 0; at < expected.size(); at += size) {
    if (std::memcmp(expected.data() + at, actual.data() + at, size) == 0) continue;
    if (is_cast && is_nan(dtype, expected.data() + at) && is_nan(dtype, actual.data() + at))
      continue;
    return static_cast<std::int64_t>(at / size);
  }
  return -1;
}

std::size_t row_bytes_of(const PlainParameter& parameter) {
  return static_cast<std::size_t>(columns_of(parameter.shape) * byte_size(parameter.dtype));
}

void check_size(const PlainParameter& parameter, std::size_t bytes, std::size_t row_bytes) {
  const std::size_t expected = static_cast<std::size_t>(rows_of(parameter.shape)) * row_bytes;
  if (bytes == expected) return;
  throw Error(ErrorCode::mismatch, "load plainly: the memory is not the parameter's size")
      .with("parameter", parameter.name)
      .with("bytes", bytes)
      .with("shape", shape_text(parameter.shape))
      .with("expected bytes", expected);
}

std::int64_t zeros_from(const PlainParameter& parameter) {
  return parameter.parts.back().target_row + parameter.parts.back().rows;
}

}  // namespace

PlainCheckpoint whole_tensor_in_memory(std::string_view name, PlainTensor tensor,
                                       std::span<const std::byte> bytes) {
  const std::int64_t row_bytes = columns_of(tensor.shape) * byte_size(tensor.dtype);
  PlainCheckpoint checkpoint;
  checkpoint.tensors.emplace(name, std::move(tensor));
  checkpoint.read_rows = [bytes, row_bytes](std::string_view, std::int64_t first_row,
                                            std::int64_t row_count, std::span<std::byte> rows) {
    const auto part = bytes.subspan(static_cast<std::size_t>(first_row * row_bytes),
                                    static_cast<std::size_t>(row_count * row_bytes));
    if (!part.empty()) std::memcpy(rows.data(), part.data(), part.size());
  };
  return checkpoint;
}

PlainLoader::PlainLoader(const PlainEngine& engine) : PlainLoader(plain_parameters(engine)) {}

PlainLoader::PlainLoader(std::vector<PlainParameter> parameters)
    : parameters_(std::move(parameters)) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_by_name_[parameters_[i].name] = i;
}

const PlainParameter& PlainLoader::parameter_named(std::string_view name) const {
  const auto found = index_by_name_.find(std::string(name));
  if (found == index_by_name_.end()) {
    throw Error(ErrorCode::invalid_argument, "load plainly: the engine has no such parameter")
        .with("parameter", name);
  }
  return parameters_[found->second];
}

std::vector<std::string> PlainLoader::tensors_of(std::string_view parameter) const {
  std::vector<std::string> names;
  for (const PlainPart& part : parameter_named(parameter).parts) {
    if (std::ranges::find(names, part.tensor) == names.end()) names.push_back(part.tensor);
  }
  return names;
}

void PlainLoader::load(std::string_view parameter_name, std::string_view tensor,
                       const PlainCheckpoint& checkpoint, std::span<std::byte> bytes) const {
  const PlainParameter& parameter = parameter_named(parameter_name);
  const std::size_t row_bytes = row_bytes_of(parameter);
  check_size(parameter, bytes.size(), row_bytes);
  for (const PlainPart& part : parameter.parts) {
    if (part.tensor != tensor) continue;
    PartRows source(part, parameter, checkpoint);
    for (std::int64_t row = 0; row < part.rows; row += source.chunk_rows()) {
      const std::int64_t count = std::min(source.chunk_rows(), part.rows - row);
      source.write(row, count,
                   bytes.subspan(static_cast<std::size_t>(part.target_row + row) * row_bytes,
                                 static_cast<std::size_t>(count) * row_bytes));
    }
    if (&part != &parameter.parts.back()) continue;
    std::ranges::fill(bytes.subspan(static_cast<std::size_t>(zeros_from(parameter)) * row_bytes),
                      std::byte{0});
  }
}

PlainComparison PlainLoader::compare(std::string_view parameter_name,
                                     const PlainCheckpoint& checkpoint,
                                     std::span<const std::byte> bytes) const {
  const PlainParameter& parameter = parameter_named(parameter_name);
  const std::int64_t columns = columns_of(parameter.shape);
  const std::size_t row_bytes = row_bytes_of(parameter);
  check_size(parameter, bytes.size(), row_bytes);
  PlainComparison result;
  std::vector<std::byte> expected;
  const auto check = [&](std::int64_t first_row, const std::string& tensor, bool is_cast) {
    const auto rows = static_cast<std::int64_t>(expected.size() / row_bytes);
    const auto actual =
        bytes.subspan(static_cast<std::size_t>(first_row) * row_bytes, expected.size());
    const std::int64_t at = find_difference(expected, actual, parameter.dtype, is_cast);
    result.elements_checked += rows * columns;
    if (at < 0 || result.first_different >= 0) return;
    result.first_different = first_row * columns + at;
    result.tensor = tensor;
  };
  for (const PlainPart& part : parameter.parts) {
    PartRows source(part, parameter, checkpoint);
    for (std::int64_t row = 0; row < part.rows; row += source.chunk_rows()) {
      const std::int64_t count = std::min(source.chunk_rows(), part.rows - row);
      expected.resize(static_cast<std::size_t>(count) * row_bytes);
      source.write(row, count, expected);
      check(part.target_row + row, part.tensor, source.is_cast());
    }
  }
  expected.assign(row_bytes, std::byte{0});
  for (std::int64_t row = zeros_from(parameter); row < rows_of(parameter.shape); ++row) {
    check(row, "", false);
  }
  return result;
}

}  // namespace crossmesh::cli
