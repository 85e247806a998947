// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/strided_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/geometry/view.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, 4> kRaisesNames = {"IndexError", "RuntimeError", "TypeError",
                                                          "ValueError"};

int dims_of(const StridedTensor& tensor) { return tensor.sizes.size(); }

// Parts are held one by one, so a hostile count is refused before memory is taken for it.
void check_part_count(OpKind kind, std::int64_t count) {
  constexpr std::int64_t kPartsMax = std::int64_t{1} << 18;
  if (count <= kPartsMax) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: there would be too many parts", name_of(kind)))
      .with("parts", count)
      .with("limit", kPartsMax);
}

// `tensor` without dimension `dim`.
StridedTensor without_dim(const StridedTensor& tensor, int dim) {
  StridedTensor result{tensor.dtype, {}, {}, tensor.offset};
  for (int d = 0; d < dims_of(tensor); ++d) {
    if (d == dim) continue;
    result.sizes.push_back(tensor.sizes[d]);
    result.strides.push_back(tensor.strides[d]);
  }
  return result;
}

// Whether strides are those of a dense storage with dimensions in `order`, innermost first.
bool is_dense_in_order(const StridedTensor& tensor, std::initializer_list<int> order) {
  std::int64_t stride = 1;
  for (const int d : order) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.strides[d] != stride) return false;
    stride *= tensor.sizes[d];
  }
  return true;
}

std::int64_t clamp_bound(std::int64_t bound, std::int64_t extent) {
  // Written so that no bound of 64 bits overflows.
  if (bound < 0) return bound < -extent ? 0 : bound + extent;
  return std::min(bound, extent);
}

}  // namespace

StridedTensor fresh_tensor(DType dtype, std::span<const std::int64_t> sizes) {
  if (!is_byte_sized(dtype)) {
    throw Error(ErrorCode::unsupported, "record: elements do not fill whole bytes")
        .with("dtype", name_of(dtype));
  }
  if (sizes.size() > kDimsMax) {
    throw Error(ErrorCode::unsupported, "record: a tensor has too many dimensions")
        .with("dimensions", sizes.size())
        .with("limit", kDimsMax);
  }
  const Shape shape(sizes);
  StridedTensor tensor{dtype, shape, contiguous_strides(shape), 0};
  // With extents of 0 counted as 1, so that no stride of a view of it can overflow either.
  std::int64_t bytes = byte_size(dtype);
  for (const std::int64_t size : shape) {
    bytes = checked_mul(bytes, std::max<std::int64_t>(size, 1));
  }
  return tensor;
}

std::int64_t element_count(const StridedTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.sizes) count *= size;
  return count;
}

bool is_contiguous(const StridedTensor& tensor, MemoryFormat format) {
  const int dims = dims_of(tensor);
  if (format == MemoryFormat::channels_last) {
    return dims == 4 && is_dense_in_order(tensor, {1, 3, 2, 0});
  }
  if (format == MemoryFormat::channels_last_3d) {
    return dims == 5 && is_dense_in_order(tensor, {1, 4, 3, 2, 0});
  }
  std::int64_t stride = 1;
  if (element_count(tensor) == 0) return true;
  for (int d = dims - 1; d >= 0; --d) {
    if (tensor.sizes[d] == 1) continue;
    if (tensor.strides[d] != stride) return false;
    stride *= tensor.sizes[d];
  }
  return true;
}

StridedTensor narrow(const StridedTensor& tensor, std::int64_t dim, std::int64_t start,
                     std::int64_t length) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::narrow, "a scalar has no dimension to narrow",
                        TorchRaises::runtime_error);
  }
  if (length < 0) {
    throw torch_refusal(OpKind::narrow, "the length is negative", TorchRaises::runtime_error)
        .with("length", length);
  }
  const int d = wrap_dim(OpKind::narrow, dim, dims_of(tensor));
  const std::int64_t extent = tensor.sizes[d];
  if (start < -extent || start > extent) {
    throw torch_refusal(OpKind::narrow, "the start is out of range", TorchRaises::index_error)
        .with("dimension", d)
        .with("extent", extent)
        .with("start", start);
  }
  const std::int64_t begin = start < 0 ? start + extent : start;
  if (begin > extent - length) {
    throw torch_refusal(OpKind::narrow, "the range passes the end", TorchRaises::runtime_error)
        .with("dimension", d)
        .with("extent", extent)
        .with("start", begin)
        .with("length", length);
  }
  StridedTensor result = tensor;
  result.sizes[d] = length;
  result.offset += begin * tensor.strides[d];
  return result;
}

StridedTensor select(const StridedTensor& tensor, std::int64_t dim, std::int64_t index) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::getitem, "a scalar has no dimension to index",
                        TorchRaises::index_error);
  }
  const int d = wrap_dim(OpKind::getitem, dim, dims_of(tensor));
  const std::int64_t extent = tensor.sizes[d];
  if (index < -extent || index >= extent) {
    throw torch_refusal(OpKind::getitem, "the index is out of range", TorchRaises::index_error)
        .with("dimension", d)
        .with("extent", extent)
        .with("index", index);
  }
  StridedTensor result = without_dim(tensor, d);
  result.offset += (index < 0 ? index + extent : index) * tensor.strides[d];
  return result;
}

StridedTensor slice(const StridedTensor& tensor, std::int64_t dim, const SliceBounds& bounds) {
  const std::int64_t step = bounds.step.value_or(1);
  if (step <= 0) {
    throw torch_refusal(OpKind::getitem, "the step of a slice is not positive",
                        TorchRaises::value_error)
        .with("step", step);
  }
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::getitem, "a scalar has no dimension to slice",
                        TorchRaises::index_error);
  }
  const int d = wrap_dim(OpKind::getitem, dim, dims_of(tensor));
  const std::int64_t extent = tensor.sizes[d];
  const std::int64_t begin = clamp_bound(bounds.start.value_or(0), extent);
  const std::int64_t end = std::max(begin, clamp_bound(bounds.stop.value_or(extent), extent));
  StridedTensor result = tensor;
  result.sizes[d] = ceil_div(end - begin, step);
  result.offset += begin * tensor.strides[d];
  // A step past the end leaves one element at most, and its stride is never walked.
  result.strides[d] = checked_mul(tensor.strides[d], step);
  return result;
}

StridedTensor unsqueeze(const StridedTensor& tensor, std::int64_t dim) {
  const int dims = dims_of(tensor);
  const int at = wrap_dim(OpKind::unsqueeze, dim, dims + 1);
  if (tensor.sizes.full()) {
    throw Error(ErrorCode::unsupported, "unsqueeze: a tensor has too many dimensions")
        .with("dimensions", dims + 1)
        .with("limit", kDimsMax);
  }
  StridedTensor result{tensor.dtype, {}, {}, tensor.offset};
  for (int d = 0; d <= dims; ++d) {
    if (d == at) {
      result.sizes.push_back(1);
      result.strides.push_back(d < dims ? tensor.sizes[d] * tensor.strides[d] : 1);
    }
    if (d == dims) break;
    result.sizes.push_back(tensor.sizes[d]);
    result.strides.push_back(tensor.strides[d]);
  }
  return result;
}

StridedTensor squeeze(const StridedTensor& tensor) {
  StridedTensor result = tensor;
  for (int d = dims_of(tensor) - 1; d >= 0; --d) {
    if (tensor.sizes[d] == 1) result = without_dim(result, d);
  }
  return result;
}

StridedTensor squeeze(const StridedTensor& tensor, std::span<const std::int64_t> dims) {
  const int count = dims_of(tensor);
  std::array<bool, kDimsMax> named{};
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(OpKind::squeeze, dim, count);
    if (std::exchange(named[static_cast<std::size_t>(d)], true)) {
      throw torch_refusal(OpKind::squeeze, "a dimension is named twice", TorchRaises::runtime_error)
          .with("dimension", d);
    }
  }
  StridedTensor result = tensor;
  for (int d = count - 1; d >= 0; --d) {
    if (named[static_cast<std::size_t>(d)] && tensor.sizes[d] == 1) result = without_dim(result, d);
  }
  return result;
}

StridedTensor transpose(const StridedTensor& tensor, std::int64_t dim0, std::int64_t dim1) {
  const int a = wrap_dim(OpKind::transpose, dim0, dims_of(tensor));
  const int b = wrap_dim(OpKind::transpose, dim1, dims_of(tensor));
  if (a == b) return tensor;
  StridedTensor result = tensor;
  std::swap(result.sizes[a], result.sizes[b]);
  std::swap(result.strides[a], result.strides[b]);
  return result;
}

StridedTensor t(const StridedTensor& tensor) {
  if (dims_of(tensor) > 2) {
    throw torch_refusal(OpKind::t, "the tensor has more than 2 dimensions",
                        TorchRaises::runtime_error)
        .with("dimensions", dims_of(tensor));
  }
  return dims_of(tensor) < 2 ? tensor : transpose(tensor, 0, 1);
}

StridedTensor permute(const StridedTensor& tensor, std::span<const std::int64_t> dims) {
  const int count = dims_of(tensor);
  if (static_cast<int>(dims.size()) != count) {
    throw torch_refusal(OpKind::permute, "not every dimension is named once",
                        TorchRaises::runtime_error)
        .with("named", dims.size())
        .with("dimensions", count);
  }
  std::array<bool, kDimsMax> named{};
  StridedTensor result{tensor.dtype, {}, {}, tensor.offset};
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(OpKind::permute, dim, count);
    if (std::exchange(named[static_cast<std::size_t>(d)], true)) {
      throw torch_refusal(OpKind::permute, "a dimension is named twice", TorchRaises::runtime_error)
          .with("dimension", d);
    }
    result.sizes.push_back(tensor.sizes[d]);
    result.strides.push_back(tensor.strides[d]);
  }
  return result;
}

std::vector<StridedTensor> chunk(const StridedTensor& tensor, std::int64_t chunks,
                                 std::int64_t dim) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::chunk, "a scalar has no dimension to cut",
                        TorchRaises::runtime_error);
  }
  if (chunks <= 0) {
    throw torch_refusal(OpKind::chunk, "the number of chunks is not positive",
                        TorchRaises::runtime_error)
        .with("chunks", chunks);
  }
  const int d = wrap_dim(OpKind::chunk, dim, dims_of(tensor));
  const std::int64_t extent = tensor.sizes[d];
  // An empty dimension gives as many empty chunks as were asked for.
  const std::int64_t length = ceil_div(extent, chunks);
  const std::int64_t count = extent == 0 ? chunks : ceil_div(extent, length);
  check_part_count(OpKind::chunk, count);
  std::vector<StridedTensor> results;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = i * length;
    results.push_back(narrow(tensor, d, start, std::min(length, extent - start)));
  }
  return results;
}

std::vector<StridedTensor> unbind(const StridedTensor& tensor, std::int64_t dim) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::unbind, "a scalar has no dimension to unbind",
                        TorchRaises::index_error);
  }
  const int d = wrap_dim(OpKind::unbind, dim, dims_of(tensor));
  check_part_count(OpKind::unbind, tensor.sizes[d]);
  std::vector<StridedTensor> results;
  for (std::int64_t i = 0; i < tensor.sizes[d]; ++i) results.push_back(select(tensor, d, i));
  return results;
}

std::vector<std::int64_t> split_lengths(const StridedTensor& tensor, std::int64_t split_size,
                                        std::int64_t dim) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::split, "a scalar has no dimension to cut",
                        TorchRaises::runtime_error);
  }
  const int d = wrap_dim(OpKind::split, dim, dims_of(tensor));
  const std::int64_t extent = tensor.sizes[d];
  if (split_size < 0 || (split_size == 0 && extent != 0)) {
    throw torch_refusal(OpKind::split, "the size of a part is not positive",
                        TorchRaises::runtime_error)
        .with("split size", split_size)
        .with("extent", extent);
  }
  if (extent == 0) return {0};
  check_part_count(OpKind::split, ceil_div(extent, split_size));
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ceil_div(extent, split_size)),
                                    split_size);
  lengths.back() = extent - static_cast<std::int64_t>(lengths.size() - 1) * split_size;
  return lengths;
}

void check_split_lengths(const StridedTensor& tensor, std::span<const std::int64_t> lengths,
                         std::int64_t dim) {
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::split, "a scalar has no dimension to cut",
                        TorchRaises::runtime_error);
  }
  const std::int64_t extent = tensor.sizes[wrap_dim(OpKind::split, dim, dims_of(tensor))];
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) {
    if (length < 0) {
      throw torch_refusal(OpKind::split, "a length is negative", TorchRaises::runtime_error)
          .with("length", length);
    }
    sum = checked_add(sum, length);
  }
  if (sum == extent) return;
  throw torch_refusal(OpKind::split, "the lengths do not add up to the extent",
                      TorchRaises::runtime_error)
      .with("sum", sum)
      .with("extent", extent);
}

int wrap_dim(OpKind kind, std::int64_t dim, int dims) {
  const int count = std::max(dims, 1);
  if (dim < -count || dim >= count) {
    throw torch_refusal(kind, "a dimension is out of range", TorchRaises::index_error)
        .with("dimension", dim)
        .with("dimensions", dims);
  }
  return static_cast<int>(dim < 0 ? dim + count : dim);
}

Error torch_refusal(OpKind kind, std::string_view what, TorchRaises raises) {
  return Error(ErrorCode::invalid_argument, fmt::format("{}: {}", name_of(kind), what))
      .with("torch raises", kRaisesNames[static_cast<std::size_t>(raises)]);
}

std::string to_string(const StridedTensor& tensor) {
  return fmt::format("{}{}:{}+{}", name_of(tensor.dtype), to_string(tensor.sizes),
                     to_string(tensor.strides), tensor.offset);
}

}  // namespace crossmesh
