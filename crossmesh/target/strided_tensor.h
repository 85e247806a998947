// SPDX-License-Identifier: Apache-2.0
// A tensor as torch sees one: a dtype and a strided view of a storage, without the storage. The
// functions do to it what torch's methods of the same name do to a tensor that shares memory, with
// torch's rules for negative dimensions, bounds and refusals. Offset and strides count elements of
// the dtype. Refusals that torch shares carry a fact `torch raises`, with the exception's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/dtype.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/dim_vector.h"
#include "crossmesh/target/op.h"

namespace crossmesh {

struct StridedTensor {
  DType dtype = DType::u8;
  Shape sizes;
  Strides strides;
  std::int64_t offset = 0;

  bool operator==(const StridedTensor&) const = default;
};

// A tensor of its own, in row-major order.
// Throws: unsupported where elements do not fill bytes, or for more dimensions than kDimsMax;
// limit_exceeded where its bytes do not fit 63 bits.
StridedTensor fresh_tensor(DType dtype, std::span<const std::int64_t> sizes);

std::int64_t element_count(const StridedTensor& tensor);

// Torch's is_contiguous. Ensures: true for no elements in the contiguous format.
bool is_contiguous(const StridedTensor& tensor,
                   MemoryFormat format = MemoryFormat::contiguous_format);

// -- Methods that share the storage --------------------------------------------------------------
// Throws, all: invalid_argument where torch refuses too; unsupported past kDimsMax dimensions.

StridedTensor narrow(const StridedTensor& tensor, std::int64_t dim, std::int64_t start,
                     std::int64_t length);
StridedTensor select(const StridedTensor& tensor, std::int64_t dim, std::int64_t index);

// A part of a Python slice that is None is absent.
struct SliceBounds {
  std::optional<std::int64_t> start;
  std::optional<std::int64_t> stop;
  std::optional<std::int64_t> step;
};
StridedTensor slice(const StridedTensor& tensor, std::int64_t dim, const SliceBounds& bounds);

StridedTensor unsqueeze(const StridedTensor& tensor, std::int64_t dim);
StridedTensor squeeze(const StridedTensor& tensor);
StridedTensor squeeze(const StridedTensor& tensor, std::span<const std::int64_t> dims);
StridedTensor transpose(const StridedTensor& tensor, std::int64_t dim0, std::int64_t dim1);
StridedTensor t(const StridedTensor& tensor);
StridedTensor permute(const StridedTensor& tensor, std::span<const std::int64_t> dims);
StridedTensor view(const StridedTensor& tensor, std::span<const std::int64_t> sizes);
StridedTensor view(const StridedTensor& tensor, DType dtype);

// Sizes of which one may be -1, made whole for `kind` (view or reshape) of so many elements.
Shape infer_sizes(OpKind kind, std::span<const std::int64_t> sizes, std::int64_t element_count);

// The sizes that flatten gives; nothing where it returns the tensor itself.
std::optional<Shape> flattened_sizes(const StridedTensor& tensor, std::int64_t start_dim,
                                     std::int64_t end_dim);

// The strides at which `sizes`, of as many elements, show the same memory in the same order;
// nothing where only a copy can.
std::optional<Strides> view_strides(const StridedTensor& tensor, const Shape& sizes);

// -- Methods that yield several, in order --------------------------------------------------------

std::vector<StridedTensor> chunk(const StridedTensor& tensor, std::int64_t chunks,
                                 std::int64_t dim);
std::vector<StridedTensor> unbind(const StridedTensor& tensor, std::int64_t dim);

// The lengths of the parts that split makes of a dimension.
std::vector<std::int64_t> split_lengths(const StridedTensor& tensor, std::int64_t split_size,
                                        std::int64_t dim);

// Checks lengths that a caller names one by one.
void check_split_lengths(const StridedTensor& tensor, std::span<const std::int64_t> lengths,
                         std::int64_t dim);

// -- Dimensions and refusals ---------------------------------------------------------------------

// A dimension counted from the end where it is negative. A scalar has dimensions -1 and 0.
int wrap_dim(OpKind kind, std::int64_t dim, int dims);

// What torch raises for the same call.
enum class TorchRaises : std::uint8_t { index_error, runtime_error, type_error, value_error };

// An invalid_argument error `narrow: what is wrong`, with the fact `torch raises`.
Error torch_refusal(OpKind kind, std::string_view what, TorchRaises raises);

// `bf16[4, 6]:[6, 1]+0` (dtype, sizes, strides, offset), with the format's name of the dtype.
std::string to_string(const StridedTensor& tensor);

}  // namespace crossmesh
