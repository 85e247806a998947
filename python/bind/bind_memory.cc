// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "crossmesh/memory/arena.h"
#include "crossmesh/session/place.h"
#include "python/bind/arrays.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/parameter_memory.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

void PythonMemory::check_taking() const {
  if (!arrays.array_by_name.empty()) memory_of_arrays(layout, rank, arrays, MemoryUse::take);
}

namespace {

constexpr int kReadWrite = 0;

// Exports a SharedMemory as a flat buffer of bytes.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  SharedMemory* memory = nb::inst_ptr<SharedMemory>(self);
  return PyBuffer_FillInfo(view, self, memory->mapping.data(), memory->mapping.bytes(), kReadWrite,
                           flags);
}

PyType_Slot shared_memory_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
    {0, nullptr},
};

int checked_rank(const Layout& layout, std::int64_t rank) {
  return checked_index(rank, static_cast<std::size_t>(layout.rank_count), "memory: no such rank");
}

ParameterArrays arrays_of(const nb::dict& given, const std::vector<nb::object>& enclosing,
                          std::vector<nb::object>& owners) {
  ParameterArrays arrays;
  for (const auto& [key, value] : given) {
    HeldArray held;
    if (nb::isinstance<HeldArray>(value)) {
      held = nb::cast<const HeldArray&>(value);
    } else {
      held = hold_array(value);
    }
    arrays.array_by_name[nb::cast<std::string>(key)] = held.array;
    owners.push_back(held.owner);
  }
  for (const nb::object& object : enclosing) {
    const SharedMemory& shared = nb::cast<const SharedMemory&>(object);
    arrays.enclosing.push_back({shared.mapping.data(), shared.mapping.bytes(), shared.fd.get(), 0});
    owners.push_back(object);
  }
  return arrays;
}

PythonMemory of_arrays(const Layout& layout, std::int64_t rank, const nb::dict& arrays,
                       const std::vector<nb::object>& enclosing) {
  PythonMemory memory;
  memory.rank = checked_rank(layout, rank);
  memory.arrays = arrays_of(arrays, enclosing, memory.owners);
  memory.memory = memory_of_arrays(layout, memory.rank, memory.arrays, MemoryUse::give);
  memory.layout = layout;
  for (const auto& [name, array] : memory.arrays.array_by_name) {
    memory.is_writable &= array.is_writable;
  }
  return memory;
}

PythonMemory reserved(const Layout& layout, std::int64_t rank, const std::string& label) {
  PythonMemory memory;
  memory.rank = checked_rank(layout, rank);
  Placement placement = place_parameters(layout, memory.rank);
  SharedMemory shared = [&] {
    nb::gil_scoped_release release;
    return reserve_shared(label, placement.bytes);
  }();
  memory.memory.buffers = {{shared.mapping.data(), shared.mapping.bytes(), shared.fd.get(), 0}};
  memory.memory.places = std::move(placement.places);
  memory.layout = layout;
  memory.owners.push_back(nb::cast(std::move(shared)));
  return memory;
}

// A parameter where it lies.
LyingTensor lying(const PythonMemory& memory, const std::string& name) {
  const Layout& layout = memory.layout;
  for (int p = 0; p < static_cast<int>(layout.parameters.size()); ++p) {
    const Parameter& parameter = layout.parameters[static_cast<std::size_t>(p)];
    if (parameter.name != name || !has_parameter(layout, memory.rank, p)) continue;
    const ParameterPlace& place = memory.memory.places[static_cast<std::size_t>(p)];
    const Buffer& buffer = memory.memory.buffers[static_cast<std::size_t>(place.buffer)];
    const DType dtype =
        layout.parameter_classes[static_cast<std::size_t>(parameter.parameter_class)].dtype;
    return {buffer.data ? buffer.data + place.offset_bytes : nullptr, dtype,
            local_shape(layout, memory.rank, p), local_strides(layout, memory.rank, p),
            memory.is_writable};
  }
  throw Error(ErrorCode::invalid_argument, "memory: the rank has no such parameter")
      .with("parameter", name)
      .with("rank", memory.rank);
}

std::vector<std::string> names_of(const PythonMemory& memory) {
  std::vector<std::string> names;
  for (int p = 0; p < static_cast<int>(memory.layout.parameters.size()); ++p) {
    if (!has_parameter(memory.layout, memory.rank, p)) continue;
    names.push_back(memory.layout.parameters[static_cast<std::size_t>(p)].name);
  }
  return names;
}

std::int64_t bytes_of(const ParameterMemory& memory) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : memory.buffers) bytes += buffer.size_bytes;
  return bytes;
}

void bind_shared_memory(nb::module_& m) {
  nb::class_<SharedMemory> shared(m, "SharedMemory",
                                  "Zeroed memory in a memfd, which engines map. A buffer of bytes: "
                                  "`numpy.frombuffer(memoryview(shared), dtype)` is a view of it.",
                                  nb::type_slots(shared_memory_slots));
  shared.def_prop_ro("bytes", [](const SharedMemory& s) { return s.mapping.bytes(); })
      .def_prop_ro("fd", [](const SharedMemory& s) { return s.fd.get(); })
      .def("__len__", [](const SharedMemory& s) { return s.mapping.bytes(); });
#if PY_VERSION_HEX < 0x030C0000
  // Later interpreters have it of every buffer.
  shared.def(
      "__buffer__",
      [](nb::handle self, int) { return nb::steal(PyMemoryView_FromObject(self.ptr())); },
      "flags"_a, nb::sig("def __buffer__(self, flags: int, /) -> memoryview"));
#endif
  show(shared, [](const SharedMemory& s) { return Facts{fact("bytes", s.mapping.bytes())}; });
  m.def(
      "reserve_shared",
      [](const std::string& label, std::int64_t bytes) {
        nb::gil_scoped_release release;
        return reserve_shared(label, bytes);
      },
      "label"_a, "bytes"_a,
      R"(Returns zeroed memory that other processes map, all of it there.

Args:
    label: Is shown in /proc/PID/maps.
    bytes: Its size.

Raises:
    crossmesh.Error: invalid_argument: a negative size; out_of_memory: the system refuses.

Example:
    >>> shared = crossmesh.reserve_shared("weights", 4)
    >>> memoryview(shared)[1] = 7
    >>> bytes(shared)
    b'\x00\x07\x00\x00'
)");
}

void bind_parameter_array(nb::module_& m) {
  nb::class_<HeldArray> array(m, "ParameterArray",
                              "A parameter by its address, for libraries whose dtypes do not cross "
                              "otherwise.");
  array.def(
      "__init__",
      [](HeldArray* self, std::uintptr_t data, const DTypeOrName& dtype, const Shape& shape,
         const Strides& strides, nb::object owner, bool is_writable) {
        if (shape.size() != strides.size()) {
          throw Error(ErrorCode::invalid_argument, "memory: a shape and its strides do not fit")
              .with("shape", to_string(shape))
              .with("strides", to_string(strides));
        }
        new (self) HeldArray{
            {reinterpret_cast<std::byte*>(data), dtype_of(dtype), shape, strides, is_writable},
            std::move(owner)};
      },
      "data"_a, "dtype"_a, "shape"_a, "strides"_a, "owner"_a, "is_writable"_a = true,
      R"(Args:
    data: The address of the first element. What lies there must be the caller's.
    dtype: A DType or its name.
    shape: In elements.
    strides: In elements.
    owner: What keeps the memory alive; it is held as long as the memory is used.
    is_writable: Whether an engine may take into it.

Raises:
    crossmesh.Error: invalid_argument: no such dtype, or shape and strides differ in length.
)");
  show(array, [](const HeldArray& a) {
    return Facts{fact("dtype", name_of(a.array.dtype)), fact("shape", to_string(a.array.shape)),
                 fact("strides", to_string(a.array.strides))};
  });
}

void bind_making(nb::class_<PythonMemory>& memory) {
  memory
      .def(
          "__init__",
          [](PythonMemory* self, const Layout& layout, std::int64_t rank, const nb::dict& arrays,
             const std::vector<nb::object>& enclosing) {
            new (self) PythonMemory(of_arrays(layout, rank, arrays, enclosing));
          },
          "layout"_a, "rank"_a, "arrays"_a, nb::kw_only(),
          "enclosing"_a = std::vector<nb::object>(),
          nb::sig("def __init__(self, layout: Layout, rank: int, arrays: dict[str, typing.Any], *, "
                  "enclosing: typing.Sequence[SharedMemory] = []) -> None"),
          R"(Args:
    layout: Of the rank's side.
    rank: Of that side, from 0.
    arrays: An array for each parameter of the rank; of tied ones the owner's name is enough.
    enclosing: Shared memory that arrays may lie in. A trainer's engines map it.

Raises:
    crossmesh.Error: invalid_argument: a parameter has no array, or an array no parameter;
        mismatch: another dtype, shape or strides than the layout's.
    TypeError: a value is no array, or lies on a device.
)")
      .def_static("reserve", &reserved, "layout"_a, "rank"_a, "label"_a = "crossmesh",
                  R"(Reserves shared memory for all parameters of a rank, side by side.

Args:
    layout: Of the rank's side.
    rank: Of that side, from 0.
    label: Is shown in /proc/PID/maps.

Raises:
    crossmesh.Error: invalid_argument: there is no such rank; out_of_memory: the system refuses;
        unsupported: a parameter does not end on a byte.

Example:
    >>> memory = crossmesh.ParameterMemory.reserve(crossmesh.shard(catalog, "fsdp=2"), 0)
    >>> memory.numpy("model.norm.weight")[:] = 7
)");
}

void bind_views(nb::class_<PythonMemory>& memory) {
  memory.def_ro("rank", &PythonMemory::rank, "Of its side.")
      .def_prop_ro("names", &names_of, "The parameters that the rank has.")
      .def(
          "numpy",
          [](nb::handle_t<PythonMemory> self, const std::string& name) {
            return numpy_view(lying(nb::cast<const PythonMemory&>(self), name), self);
          },
          "name"_a, nb::sig("def numpy(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
          R"(Returns a parameter as a numpy.ndarray.

Of dtypes that NumPy lacks, unsigned integers hold the bits.

Raises:
    crossmesh.Error: invalid_argument: the rank has no such parameter.
)")
      .def(
          "dlpack",
          [](nb::handle_t<PythonMemory> self, const std::string& name) {
            return dlpack_view(lying(nb::cast<const PythonMemory&>(self), name), self);
          },
          "name"_a, nb::sig("def dlpack(self, name: str) -> typing.Any"),
          R"(Returns a parameter for `from_dlpack` of any library, in its own dtype.

Raises:
    crossmesh.Error: as numpy.
)");
}

}  // namespace

void bind_memory(nb::module_& m) {
  bind_shared_memory(m);
  bind_parameter_array(m);
  nb::class_<PythonMemory> memory(m, "ParameterMemory", R"(Where the parameters of one rank lie.

An array is anything that lies in the memory of the processor and speaks DLPack or the buffer
protocol, or a `ParameterArray`. It is used where it is, never copied, and kept alive; of dtypes
that its library lacks, unsigned integers of as many bits hold the bits.

Example:
    >>> import numpy
    >>> layout = crossmesh.lay_out(config, "tp=2")
    >>> arrays = {
    ...     parameter.name: numpy.zeros(layout.local_shape(0, parameter.name), numpy.uint16)
    ...     for parameter in layout.parameters
    ... }
    >>> crossmesh.ParameterMemory(layout, 0, arrays)
    ParameterMemory(rank=0, parameters=23, bytes=34384, buffers=23)
)");
  bind_making(memory);
  bind_views(memory);
  show(memory, [](const PythonMemory& p) {
    return Facts{fact("rank", p.rank), fact("parameters", names_of(p).size()),
                 fact("bytes", bytes_of(p.memory)), fact("buffers", p.memory.buffers.size())};
  });
}

}  // namespace crossmesh::python
