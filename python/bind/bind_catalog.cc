// SPDX-License-Identifier: Apache-2.0
#include <nanobind/make_iterator.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "crossmesh/catalog/catalog.h"
#include "crossmesh/catalog/read.h"
#include "crossmesh/layout/layout.h"
#include "python/bind/arrays.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {
namespace {

const TensorInfo& tensor_named(const Catalog& catalog, const std::string& name) {
  if (const auto index = find(catalog, name)) return catalog.tensors[*index];
  throw Error(ErrorCode::invalid_argument, "catalog: no such tensor").with("tensor", name);
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// A tensor of a checkpoint where its file is mapped.
LyingTensor lying(const Checkpoint& checkpoint, const std::string& name) {
  const std::span<const std::byte> bytes = checkpoint.bytes(name);
  const TensorInfo& info = checkpoint.catalog().tensors[*checkpoint.find(name)];
  if (info.shape.size() > static_cast<std::size_t>(kDimsMax)) {
    throw Error(ErrorCode::unsupported, "view: too many dimensions")
        .with("tensor", name)
        .with("dimensions", info.shape.size());
  }
  LyingTensor tensor{bytes.data(), info.dtype, Shape(info.shape), {}, false};
  tensor.strides = contiguous_strides(tensor.shape);
  return tensor;
}

void bind_tensor_info(nb::module_& m) {
  nb::class_<TensorInfo> info(m, "TensorInfo", R"(A tensor's name, dtype and whole shape.

Example:
    >>> crossmesh.TensorInfo("model.norm.weight", "BF16", [64])
    TensorInfo(name=model.norm.weight, dtype=BF16, shape=[64])
)");
  info.def(
          "__init__",
          [](TensorInfo* self, std::string name, const DTypeOrName& dtype,
             std::vector<std::int64_t> shape) {
            TensorInfo made{std::move(name), dtype_of(dtype), std::move(shape)};
            check_writable({&made, 1});
            new (self) TensorInfo(std::move(made));
          },
          "name"_a, "dtype"_a, "shape"_a,
          R"(Raises:
    crossmesh.Error: invalid_argument: no such dtype, a negative or too large shape, or a tensor
        that does not end on a byte.
)")
      .def_ro("name", &TensorInfo::name)
      .def_ro("dtype", &TensorInfo::dtype)
      .def_prop_ro(
          "shape", [](const TensorInfo& t) { return nb::tuple(nb::cast(t.shape)); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "element_count", [](const TensorInfo& t) { return element_count(t); }, "Elements.")
      .def_prop_ro(
          "byte_count", [](const TensorInfo& t) { return byte_count(t); },
          "Bytes of the packed tensor.");
  compare(info);
  show(info, [](const TensorInfo& t) {
    return Facts{fact("name", t.name), fact("dtype", name_of(t.dtype)),
                 fact("shape", text_of(t.shape))};
  });
}

void bind_catalog_class(nb::module_& m) {
  nb::class_<Catalog> catalog(m, "Catalog", R"(Which tensors a checkpoint holds, in order.

Example:
    >>> catalog = crossmesh.Catalog([crossmesh.TensorInfo("w", "F32", [2, 3])])
    >>> print(catalog.explain(), end="")
    w  F32  [2, 3]
    1 tensors, 6 elements, 24 bytes
)");
  catalog
      .def(
          "__init__",
          [](Catalog* self, std::vector<TensorInfo> tensors) {
            check_writable(tensors);
            new (self) Catalog{std::move(tensors)};
          },
          "tensors"_a,
          R"(Raises:
    crossmesh.Error: invalid_argument: a name occurs twice, or a tensor cannot be.
)")
      .def_ro("tensors", &Catalog::tensors, "All tensors, in the order of their bytes.")
      .def_prop_ro(
          "names",
          [](const Catalog& c) {
            std::vector<std::string> names;
            for (const TensorInfo& t : c.tensors) names.push_back(t.name);
            return names;
          },
          "Their names.")
      .def_prop_ro(
          "byte_count", [](const Catalog& c) { return byte_count(c); },
          "Bytes of all packed tensors together.")
      .def("__len__", [](const Catalog& c) { return c.tensors.size(); })
      .def(
          "__iter__",
          [](const Catalog& c) {
            return nb::make_iterator<nb::rv_policy::reference_internal>(
                nb::type<Catalog>(), "TensorIterator", c.tensors.begin(), c.tensors.end());
          },
          nb::keep_alive<0, 1>(), nb::sig("def __iter__(self) -> typing.Iterator[TensorInfo]"))
      .def("__contains__",
           [](const Catalog& c, const std::string& name) { return find(c, name).has_value(); })
      .def("__getitem__", &tensor_named, "name"_a, nb::rv_policy::reference_internal,
           R"(Raises:
    crossmesh.Error: invalid_argument: there is no such tensor.
)")
      .def(
          "explain", [](const Catalog& c) { return explain(c); },
          "Returns a stable text: a line for each tensor, then the totals.");
  compare(catalog);
  show(catalog, [](const Catalog& c) {
    return Facts{fact("tensors", c.tensors.size()), fact("bytes", byte_count(c))};
  });
}

void bind_file(nb::module_& m) {
  nb::class_<CheckpointFile> file(m, "CheckpointFile", "One file of a checkpoint.");
  file.def_ro("path", &CheckpointFile::path)
      .def_ro("bytes", &CheckpointFile::bytes, "Its size.")
      .def_ro("tensor_count", &CheckpointFile::tensor_count)
      .def_ro("metadata", &CheckpointFile::metadata, "What stands under `__metadata__`.");
  show(file, [](const CheckpointFile& f) {
    return Facts{fact("path", f.path.string()), fact("bytes", f.bytes),
                 fact("tensors", f.tensor_count)};
  });
}

void bind_checkpoint(nb::module_& m) {
  nb::class_<Checkpoint> checkpoint(m, "Checkpoint", R"(A checkpoint on disk, opened.

Its files are mapped; of their data nothing is read before it is looked at. What `bytes`, `numpy`
and `dlpack` return are read-only views of the mapping, which they keep alive.

Example:
    >>> checkpoint = crossmesh.read(folder)
    >>> checkpoint.catalog["model.norm.weight"].shape
    (40,)
    >>> len(checkpoint.bytes("model.norm.weight"))
    80
)");
  checkpoint
      .def_prop_ro("catalog", &Checkpoint::catalog, nb::rv_policy::reference_internal,
                   "Which tensors there are, file after file.")
      .def_prop_ro(
          "files",
          [](const Checkpoint& c) {
            return std::vector<CheckpointFile>(c.files().begin(), c.files().end());
          },
          "The files, in order.")
      .def("__contains__",
           [](const Checkpoint& c, const std::string& name) { return c.find(name).has_value(); })
      .def(
          "bytes",
          [](nb::handle_t<Checkpoint> self, const std::string& name) {
            const auto bytes = nb::cast<const Checkpoint&>(self).bytes(name);
            return bytes_view(bytes.data(), static_cast<std::int64_t>(bytes.size()), false, self);
          },
          "name"_a, nb::sig("def bytes(self, name: str) -> memoryview"),
          R"(Returns the packed bytes of a tensor.

Raises:
    crossmesh.Error: invalid_argument: there is no such tensor.
)")
      .def(
          "numpy",
          [](nb::handle_t<Checkpoint> self, const std::string& name) {
            return numpy_view(lying(nb::cast<const Checkpoint&>(self), name), self);
          },
          "name"_a, nb::sig("def numpy(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
          R"(Returns a tensor as a numpy.ndarray.

Of dtypes that NumPy lacks, unsigned integers hold the bits.

Raises:
    crossmesh.Error: invalid_argument: there is no such tensor; unsupported: its elements do not
        fill whole bytes.
)")
      .def(
          "dlpack",
          [](nb::handle_t<Checkpoint> self, const std::string& name) {
            return dlpack_view(lying(nb::cast<const Checkpoint&>(self), name), self);
          },
          "name"_a, nb::sig("def dlpack(self, name: str) -> typing.Any"),
          R"(Returns a tensor for `from_dlpack` of any library, in its own dtype.

Raises:
    crossmesh.Error: as numpy.
)")
      .def(
          "explain", [](const Checkpoint& c) { return explain(c.catalog()); },
          "Returns the text of its catalog.");
  show(checkpoint, [](const Checkpoint& c) {
    return Facts{fact("tensors", c.catalog().tensors.size()),
                 fact("bytes", byte_count(c.catalog())), fact("files", c.files().size())};
  });
}

}  // namespace

void bind_catalog(nb::module_& m) {
  bind_tensor_info(m);
  bind_catalog_class(m);
  bind_file(m);
  bind_checkpoint(m);
  m.def("read", &read, "path"_a, nb::call_guard<nb::gil_scoped_release>(),
        nb::sig("def read(path: str | os.PathLike[str]) -> Checkpoint"),
        R"(Opens a checkpoint: a `.safetensors` file, an index of several, or a folder.

Raises:
    crossmesh.Error: invalid_argument: there is no checkpoint, or there are several indexes;
        corrupt_file: a file is not what its format says; io_failed: the system refuses.

Example:
    >>> crossmesh.read(folder).catalog
    Catalog(tensors=35, bytes=63728)
)");
  m.def("find_config", &find_config, "path"_a,
        nb::sig("def find_config(path: str | os.PathLike[str]) -> pathlib.Path | None"),
        R"(Returns the `config.json` in the folder of a checkpoint, or None.

`path` is the folder, or a file in it.
)");
}

}  // namespace crossmesh::python
