// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/evaluate.h"

#include <cassert>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/geometry/view.h"
#include "crossmesh/target/detail/arguments.h"

namespace crossmesh::detail {
namespace {

// A copy of `tensor` whose storage holds the dimensions in `order`, outermost first.
Outcome copy_in_order(const StridedTensor& tensor, std::span<const std::int64_t> order) {
  StridedTensor result{tensor.dtype, tensor.sizes, tensor.strides, 0};
  // An extent of 0 counts as 0 here, unlike in row-major strides: torch's own rule.
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const int d = static_cast<int>(order[i]);
    result.strides[d] = stride;
    stride *= tensor.sizes[d];
  }
  return {result, permute(tensor, order)};
}

Outcome copy_row_major(const StridedTensor& tensor) {
  return {{tensor.dtype, tensor.sizes, contiguous_strides(tensor.sizes), 0}, tensor};
}

Outcome contiguous(const StridedTensor& tensor, MemoryFormat format) {
  if (format == MemoryFormat::preserve_format && !is_contiguous(tensor)) {
    throw torch_refusal(OpKind::contiguous, "preserve_format is no format to copy to",
                        TorchRaises::runtime_error);
  }
  const int dims = format == MemoryFormat::channels_last      ? 4
                   : format == MemoryFormat::channels_last_3d ? 5
                                                              : tensor.sizes.size();
  if (tensor.sizes.size() != dims) {
    throw torch_refusal(OpKind::contiguous, "the format asks for another number of dimensions",
                        TorchRaises::runtime_error)
        .with("format", name_of(format))
        .with("dimensions", tensor.sizes.size());
  }
  if (format == MemoryFormat::channels_last) {
    if (is_contiguous(tensor, format)) return {tensor, {}};
    return copy_in_order(tensor, Index{0, 2, 3, 1}.span());
  }
  if (format == MemoryFormat::channels_last_3d) {
    if (is_contiguous(tensor, format)) return {tensor, {}};
    return copy_in_order(tensor, Index{0, 2, 3, 4, 1}.span());
  }
  if (is_contiguous(tensor)) return {tensor, {}};
  return copy_row_major(tensor);
}

Outcome reshape(const StridedTensor& tensor, const Shape& sizes) {
  if (const std::optional<Strides> strides = view_strides(tensor, sizes)) {
    return {{tensor.dtype, sizes, *strides, tensor.offset}, {}};
  }
  return {{tensor.dtype, sizes, contiguous_strides(sizes), 0}, tensor};
}

StridedTensor view_as_spelled(const StridedTensor& tensor, const Op& op) {
  const bool by_dtype =
      op.token_count() > 0 &&
      (op.token(0).kind == Token::Kind::dtype ||
       op.token(0) == Token{Token::Kind::keyword, static_cast<std::int64_t>(Keyword::dtype)});
  if (by_dtype) return view(tensor, Arguments(op, {Keyword::dtype}).dtype(Keyword::dtype));
  return view(tensor, Arguments(op, {Keyword::size}, true).integers(Keyword::size).span());
}

StridedTensor squeeze_as_spelled(const StridedTensor& tensor, const Op& op) {
  const Arguments arguments(op, {Keyword::dim}, true);
  if (!arguments.has(Keyword::dim)) return squeeze(tensor);
  if (op.token(0).kind == Token::Kind::keyword &&
      arguments.kind(Keyword::dim) == Token::Kind::integer) {
    return squeeze(tensor, Index{arguments.integer(Keyword::dim)}.span());
  }
  return squeeze(tensor, arguments.integers(Keyword::dim).span());
}

// -- Indices -------------------------------------------------------------------------------------

Error refuse_index(Token::Kind kind) {
  switch (kind) {
    case Token::Kind::boolean:
    case Token::Kind::list:
    case Token::Kind::tuple:
    case Token::Kind::tensor:
      // Torch gathers elements here. Which ones may depend on values.
      return Error(ErrorCode::unsupported, "__getitem__: only basic indices can be recorded")
          .with("index", describe(kind));
    case Token::Kind::number:
      return torch_refusal(OpKind::getitem, "an index is of the wrong type",
                           TorchRaises::index_error)
          .with("given", describe(kind));
    default:
      return torch_refusal(OpKind::getitem, "an index is of the wrong type",
                           TorchRaises::type_error)
          .with("given", describe(kind));
  }
}

SliceBounds slice_bounds(const Op& op, int at) {
  const auto bound = [&](int i) -> std::optional<std::int64_t> {
    const Token token = op.token(at + 1 + i);
    if (token.kind == Token::Kind::none) return std::nullopt;
    if (token.kind != Token::Kind::integer) throw refuse_index(token.kind);
    return token.value;
  };
  return {bound(0), bound(1), bound(2)};
}

StridedTensor index(const StridedTensor& tensor, const Op& op) {
  if (op.token_count() == 0 || end_of_value(op, 0) != op.token_count()) {
    throw torch_refusal(OpKind::getitem, "an index is one value", TorchRaises::type_error);
  }
  const bool is_tuple = op.token(0).kind == Token::Kind::tuple;
  const int first = is_tuple ? 1 : 0;
  int named = 0;
  for (int at = first; at < op.token_count(); at = end_of_value(op, at)) {
    const Token::Kind kind = op.token(at).kind;
    named += kind != Token::Kind::none && kind != Token::Kind::ellipsis ? 1 : 0;
  }
  const int dims = tensor.sizes.size();
  if (named > dims && (is_tuple || op.token(0).kind == Token::Kind::text)) {
    throw torch_refusal(OpKind::getitem, "there are more indices than dimensions",
                        TorchRaises::index_error)
        .with("indices", named)
        .with("dimensions", dims);
  }
  StridedTensor result = tensor;
  int dim = 0;
  for (int at = first; at < op.token_count(); at = end_of_value(op, at)) {
    const Token token = op.token(at);
    const Token::Kind kind = token.kind;
    if (kind == Token::Kind::none) {
      result = unsqueeze(result, dim++);
    } else if (kind == Token::Kind::ellipsis) {
      // Counted from the whole tensor each time, as torch does where there are two.
      dim += dims - named;
    } else if (kind != Token::Kind::integer && kind != Token::Kind::slice) {
      throw refuse_index(kind);
    } else if (kind == Token::Kind::integer) {
      result = select(result, dim, token.value);
    } else {
      result = slice(result, dim++, slice_bounds(op, at));
    }
  }
  return result;
}

}  // namespace

Outcome evaluate(const StridedTensor& tensor, const Op& op) {
  assert(!yields_several(op.kind()));
  switch (op.kind()) {
    case OpKind::narrow: {
      const Arguments a(op, {Keyword::dim, Keyword::start, Keyword::length});
      return {narrow(tensor, a.integer(Keyword::dim), a.integer(Keyword::start),
                     a.integer(Keyword::length)),
              {}};
    }
    case OpKind::view:
      return {view_as_spelled(tensor, op), {}};
    case OpKind::reshape: {
      const DimVector sizes = Arguments(op, {Keyword::shape}, true).integers(Keyword::shape);
      return reshape(tensor, infer_sizes(op.kind(), sizes.span(), element_count(tensor)));
    }
    case OpKind::getitem:
      return {index(tensor, op), {}};
    case OpKind::unsqueeze:
      return {unsqueeze(tensor, Arguments(op, {Keyword::dim}).integer(Keyword::dim)), {}};
    case OpKind::squeeze:
      return {squeeze_as_spelled(tensor, op), {}};
    case OpKind::transpose: {
      const Arguments a(op, {Keyword::dim0, Keyword::dim1});
      return {transpose(tensor, a.integer(Keyword::dim0), a.integer(Keyword::dim1)), {}};
    }
    case OpKind::t:
      Arguments(op, {});
      return {t(tensor), {}};
    case OpKind::permute: {
      const DimVector dims = Arguments(op, {Keyword::dims}, true).integers(Keyword::dims);
      return {permute(tensor, dims.span()), {}};
    }
    case OpKind::flatten: {
      const Arguments a(op, {Keyword::start_dim, Keyword::end_dim});
      const std::optional<Shape> sizes = flattened_sizes(
          tensor, a.integer_or(Keyword::start_dim, 0), a.integer_or(Keyword::end_dim, -1));
      return sizes ? reshape(tensor, *sizes) : Outcome{tensor, {}};
    }
    case OpKind::contiguous: {
      if (op.token_count() > 0 && op.token(0).kind != Token::Kind::keyword) {
        throw torch_refusal(op.kind(), "the format is given by keyword only",
                            TorchRaises::type_error);
      }
      const Arguments a(op, {Keyword::memory_format});
      return contiguous(tensor, a.has(Keyword::memory_format)
                                    ? a.memory_format(Keyword::memory_format)
                                    : MemoryFormat::contiguous_format);
    }
    default:
      return evaluate(tensor, getitem_of(tensor, op));
  }
}

std::vector<StridedTensor> evaluate_parts(const StridedTensor& tensor, const Op& op) {
  if (op.kind() == OpKind::unbind) {
    return unbind(tensor, Arguments(op, {Keyword::dim}).integer_or(Keyword::dim, 0));
  }
  assert(op.kind() == OpKind::chunk);
  const Arguments a(op, {Keyword::chunks, Keyword::dim});
  return chunk(tensor, a.integer(Keyword::chunks), a.integer_or(Keyword::dim, 0));
}

std::vector<Op> narrows_of(const StridedTensor& tensor, const Op& op) {
  const Arguments a(op, {Keyword::split_size, Keyword::dim});
  const std::int64_t dim = a.integer_or(Keyword::dim, 0);
  std::vector<std::int64_t> lengths;
  const std::optional<Token::Kind> kind = a.kind(Keyword::split_size);
  if (kind == Token::Kind::list || kind == Token::Kind::tuple) {
    const DimVector given = a.integers(Keyword::split_size);
    lengths.assign(given.begin(), given.end());
    check_split_lengths(tensor, lengths, dim);
  } else {
    lengths = split_lengths(tensor, a.integer(Keyword::split_size), dim);
  }
  std::vector<Op> narrows;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    narrows.push_back(Op::narrow(dim, start, length));
    start += length;
  }
  return narrows;
}

Op getitem_of(const StridedTensor& tensor, const Op& op) {
  assert(op.kind() == OpKind::select);
  const Arguments a(op, {Keyword::dim, Keyword::index});
  const std::int64_t index = a.integer(Keyword::index);
  if (tensor.sizes.empty()) {
    throw torch_refusal(op.kind(), "a scalar has no dimension to select from",
                        TorchRaises::index_error);
  }
  const int dim = wrap_dim(op.kind(), a.integer(Keyword::dim), tensor.sizes.size());
  if (dim == 0) return Op::getitem(index);
  Op item(OpKind::getitem);
  item.add_tuple(dim + 1);
  for (int d = 0; d < dim; ++d) item.add_slice().add_none().add_none().add_none();
  return item.add_integer(index);
}

}  // namespace crossmesh::detail
