// SPDX-License-Identifier: Apache-2.0
// Other sizes or another dtype over the same memory.
#include <fmt/format.h>

#include <algorithm>

#include "crossmesh/base/checked.h"
#include "crossmesh/geometry/view.h"
#include "crossmesh/target/strided_tensor.h"

namespace crossmesh {
namespace {

int dims_of(const StridedTensor& tensor) { return tensor.sizes.size(); }

[[noreturn]] void refuse_sizes(OpKind kind, std::span<const std::int64_t> sizes,
                               std::int64_t element_count, std::string_view what) {
  std::string text;
  for (const std::int64_t size : sizes) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  }
  throw torch_refusal(kind, what, TorchRaises::runtime_error)
      .with("new sizes", "[" + text + "]")
      .with("elements", element_count);
}

StridedTensor widen(const StridedTensor& tensor, DType dtype) {
  const std::int64_t ratio = byte_size(dtype) / byte_size(tensor.dtype);
  const int last = dims_of(tensor) - 1;
  const auto refuse = [&](std::string_view what) {
    return torch_refusal(OpKind::view, what, TorchRaises::runtime_error)
        .with("elements in one", ratio);
  };
  if (tensor.sizes[last] % ratio != 0) {
    throw refuse("the last extent does not make whole elements of the wider dtype");
  }
  if (tensor.offset % ratio != 0) throw refuse("the offset is not aligned for the wider dtype");
  if (tensor.strides[last] != 1) throw refuse("the last dimension is not dense");
  StridedTensor result = tensor;
  for (int d = 0; d < last; ++d) {
    if (tensor.strides[d] % ratio != 0) {
      throw refuse("a stride is not aligned for the wider dtype").with("dimension", d);
    }
    result.strides[d] /= ratio;
  }
  result.dtype = dtype;
  result.sizes[last] /= ratio;
  result.offset /= ratio;
  return result;
}

StridedTensor slim(const StridedTensor& tensor, DType dtype) {
  const std::int64_t ratio = byte_size(tensor.dtype) / byte_size(dtype);
  const int last = dims_of(tensor) - 1;
  if (tensor.strides[last] != 1) {
    throw torch_refusal(OpKind::view, "the last dimension is not dense", TorchRaises::runtime_error)
        .with("elements from one", ratio);
  }
  StridedTensor result = tensor;
  for (int d = 0; d < last; ++d) result.strides[d] *= ratio;
  result.dtype = dtype;
  result.sizes[last] *= ratio;
  result.offset *= ratio;
  return result;
}

}  // namespace

StridedTensor view(const StridedTensor& tensor, std::span<const std::int64_t> sizes) {
  const Shape shape = infer_sizes(OpKind::view, sizes, element_count(tensor));
  const std::optional<Strides> strides = view_strides(tensor, shape);
  if (!strides) {
    throw torch_refusal(OpKind::view, "the strides allow these sizes by a copy only",
                        TorchRaises::runtime_error)
        .with("new sizes", to_string(shape));
  }
  return {tensor.dtype, shape, *strides, tensor.offset};
}

StridedTensor view(const StridedTensor& tensor, DType dtype) {
  if (!is_byte_sized(dtype)) {
    throw Error(ErrorCode::unsupported, "view: elements do not fill whole bytes")
        .with("dtype", name_of(dtype));
  }
  const std::int64_t bytes = byte_size(dtype);
  const std::int64_t bytes_before = byte_size(tensor.dtype);
  if (bytes == bytes_before) {
    StridedTensor result = tensor;
    result.dtype = dtype;
    return result;
  }
  if (dims_of(tensor) == 0) {
    throw torch_refusal(OpKind::view, "a scalar has no dimension to resize",
                        TorchRaises::runtime_error)
        .with("dtype", name_of(tensor.dtype))
        .with("new dtype", name_of(dtype));
  }
  return bytes > bytes_before ? widen(tensor, dtype) : slim(tensor, dtype);
}

Shape infer_sizes(OpKind kind, std::span<const std::int64_t> sizes, std::int64_t count) {
  if (sizes.size() > kDimsMax) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: a tensor has too many dimensions", name_of(kind)))
        .with("dimensions", sizes.size())
        .with("limit", kDimsMax);
  }
  Shape shape(sizes);
  int inferred = -1;
  std::int64_t product = 1;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] == -1) {
      if (inferred >= 0) refuse_sizes(kind, sizes, count, "two extents are left to infer");
      inferred = d;
    } else if (shape[d] < 0) {
      refuse_sizes(kind, sizes, count, "an extent is negative");
    } else {
      product = checked_mul(product, shape[d]);
    }
  }
  if (inferred >= 0 && product == 0 && count == 0) {
    refuse_sizes(kind, sizes, count, "any extent would do");
  }
  const bool fits = inferred < 0 ? product == count : product > 0 && count % product == 0;
  if (!fits) refuse_sizes(kind, sizes, count, "the sizes hold another number of elements");
  if (inferred >= 0) shape[inferred] = count / product;
  return shape;
}

std::optional<Shape> flattened_sizes(const StridedTensor& tensor, std::int64_t start_dim,
                                     std::int64_t end_dim) {
  const int dims = dims_of(tensor);
  const int first = wrap_dim(OpKind::flatten, start_dim, dims);
  const int last = wrap_dim(OpKind::flatten, end_dim, dims);
  if (first > last) {
    throw torch_refusal(OpKind::flatten, "the first dimension comes after the last",
                        TorchRaises::runtime_error)
        .with("first", first)
        .with("last", last);
  }
  if (dims == 0) return Shape{1};
  if (first == last) return std::nullopt;
  Shape sizes;
  for (int d = 0; d < dims; ++d) {
    if (d > first && d <= last) {
      sizes[first] *= tensor.sizes[d];
    } else {
      sizes.push_back(tensor.sizes[d]);
    }
  }
  return sizes;
}

std::optional<Strides> view_strides(const StridedTensor& tensor, const Shape& sizes) {
  if (dims_of(tensor) == 0) return Strides::filled(sizes.size(), 1);
  if (element_count(tensor) == 0) {
    return sizes == tensor.sizes ? tensor.strides : contiguous_strides(sizes);
  }
  Strides strides = Strides::filled(sizes.size(), 0);
  int next = sizes.size() - 1;  // the last new dimension that has no stride yet
  for (int last = dims_of(tensor) - 1; last >= 0;) {
    // Dimensions [first, last] are one run, that a single stride walks.
    const std::int64_t stride = tensor.strides[last];
    std::int64_t run = tensor.sizes[last];
    int first = last;
    while (first > 0 &&
           (tensor.sizes[first - 1] == 1 || tensor.strides[first - 1] == run * stride)) {
      run *= tensor.sizes[--first];
    }
    std::int64_t filled = 1;
    for (; next >= 0 && (filled < run || sizes[next] == 1); --next) {
      strides[next] = filled * stride;
      filled *= sizes[next];
    }
    if (filled != run) return std::nullopt;
    last = first - 1;
  }
  return strides;
}

}  // namespace crossmesh
