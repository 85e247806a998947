// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "crossmesh/target/chain.h"
#include "crossmesh/target/lower.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {
namespace {

OpKind kind_of(std::string_view name) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (name_of(static_cast<OpKind>(i)) == name) return static_cast<OpKind>(i);
  }
  throw Error(ErrorCode::unsupported, "apply: no recorded call has this name").with("name", name);
}

// A word of torch: `torch.float32`, `torch.channels_last`.
void add_torch_value(Op& op, nb::handle value) {
  if (nb::hasattr(value, "__torch_function__")) {
    op.add(Token::Kind::tensor);
    return;
  }
  const std::string_view type = Py_TYPE(value.ptr())->tp_name;
  const std::string text = nb::cast<std::string>(nb::str(value));
  if (type == "torch.dtype") {
    const auto dtype = dtype_from_name(text);
    if (!dtype) {
      throw Error(ErrorCode::unsupported, "apply: crossmesh has no such dtype").with("dtype", text);
    }
    op.add_dtype(*dtype);
    return;
  }
  for (int i = 0; i < 4; ++i) {
    const MemoryFormat format = static_cast<MemoryFormat>(i);
    if (text == "torch." + std::string(name_of(format))) {
      op.add_memory_format(format);
      return;
    }
  }
  op.add(Token::Kind::tensor);
}

void add_value(Op& op, nb::handle value) {
  if (value.is_none()) {
    op.add_none();
  } else if (PyBool_Check(value.ptr())) {
    op.add(Token::Kind::boolean);
  } else if (PyLong_Check(value.ptr())) {
    op.add_integer(nb::cast<std::int64_t>(value));
  } else if (PyFloat_Check(value.ptr())) {
    op.add(Token::Kind::number);
  } else if (PyUnicode_Check(value.ptr())) {
    op.add(Token::Kind::text);
  } else if (value.ptr() == Py_Ellipsis) {
    op.add_ellipsis();
  } else if (PySlice_Check(value.ptr())) {
    op.add_slice();
    for (const char* part : {"start", "stop", "step"}) add_value(op, value.attr(part));
  } else if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    const std::int64_t size = static_cast<std::int64_t>(nb::len(value));
    PyTuple_Check(value.ptr()) ? op.add_tuple(size) : op.add_list(size);
    for (nb::handle item : nb::cast<nb::sequence>(value)) add_value(op, item);
  } else if (PyIndex_Check(value.ptr()) && !nb::hasattr(value, "__torch_function__")) {
    op.add_integer(nb::cast<std::int64_t>(nb::steal(PyNumber_Index(value.ptr()))));
  } else {
    add_torch_value(op, value);
  }
}

using Args = nb::typed<nb::tuple, nb::any, nb::ellipsis>;
using Kwargs = nb::typed<nb::dict, nb::str, nb::any>;

Op op_of(std::string_view name, const Args& args, const Kwargs& kwargs) {
  Op op(kind_of(name));
  for (nb::handle value : args) add_value(op, value);
  for (const auto& [key, value] : kwargs) {
    op.add_keyword(keyword_from_name(nb::cast<std::string>(key)));
    add_value(op, value);
  }
  return op;
}

using Geometry = std::tuple<DType, Shape, Strides, std::int64_t>;

Geometry geometry_of(const StridedTensor& tensor) {
  return {tensor.dtype, tensor.sizes, tensor.strides, tensor.offset};
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::class_<ChainBook>(m, "ChainBook", R"(What loaders do to tensors before they copy them.

A chain is the number of a step; its record reaches back to a whole tensor.

Example:
    >>> book = crossmesh.ChainBook()
    >>> rows = book.apply(book.start("BF16", (8, 6)), "narrow", (0, 4, 4), {})
    >>> book.geometry(rows)[1:], book.calls(rows)
    (((4, 6), (6, 1), 24), '[["narrow",[0,4,4],{}]]')
)")
      .def(nb::init<>())
      .def(
          "start",
          [](ChainBook& book, const DTypeOrName& dtype, const Shape& shape) {
            return book.start(dtype_of(dtype), shape.span());
          },
          "dtype"_a, "shape"_a, "Returns the chain of a whole tensor.")
      .def(
          "apply",
          [](ChainBook& book, int chain, std::string_view name, const Args& args,
             const Kwargs& kwargs) { return book.apply(chain, op_of(name, args, kwargs)); },
          "chain"_a, "name"_a, "args"_a, "kwargs"_a,
          R"(Returns the chain after one more call.

Raises:
    crossmesh.Error: invalid_argument: torch refuses the call; unsupported: an argument cannot be
        recorded.
)")
      .def(
          "apply_several",
          [](ChainBook& book, int chain, std::string_view name, const Args& args,
             const Kwargs& kwargs) {
            const auto parts = book.apply_several(chain, op_of(name, args, kwargs));
            return std::vector<int>(parts.begin(), parts.end());
          },
          "chain"_a, "name"_a, "args"_a, "kwargs"_a,
          "Returns the chains after a call that yields several tensors, in order.")
      .def(
          "geometry",
          [](const ChainBook& book, int chain) { return geometry_of(book.geometry(chain)); },
          "chain"_a, "Returns dtype, sizes, strides and offset, in elements.")
      .def(
          "layers",
          [](const ChainBook& book, int chain) {
            const ElementMap map = book.element_map(chain);
            std::vector<Geometry> layers;
            for (const StridedTensor& copied : map.copies) layers.push_back(geometry_of(copied));
            layers.push_back(geometry_of(map.result));
            return layers;
          },
          "chain"_a, "Returns the view that each copy read, in order, then the chain's own.")
      .def("has_copied", &ChainBook::has_copied, "chain"_a,
           "Whether a call had to copy, so that the geometry is of another storage.")
      .def("calls", &ChainBook::calls, "chain"_a, "Returns the recorded calls as JSON.")
      .def("wire_key", &ChainBook::wire_key, "tensor_name"_a, "chain"_a,
           "Returns the identity of a slice on the wire.")
      .def(
          "identity",
          [](const ChainBook& book, int chain) {
            return to_string(fingerprint(canonical(book.element_map(chain))));
          },
          "chain"_a, "Returns what is equal for chains that show equal elements.")
      .def_prop_ro("chain_count", &ChainBook::chain_count)
      .def_prop_ro("geometry_count", &ChainBook::geometry_count)
      .def("__repr__", [](const ChainBook& book) {
        return "<ChainBook of " + std::to_string(book.chain_count()) + " chains, " +
               std::to_string(book.geometry_count()) + " geometries>";
      });
}

}  // namespace crossmesh::python
