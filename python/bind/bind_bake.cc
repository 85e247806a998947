// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "crossmesh/session/put.h"
#include "crossmesh/target/bake.h"
#include "crossmesh/target/merge.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {
namespace {

// The destination of copies, but for where in the storage: loaders make few of them, many times.
struct TargetGeometry {
  DType dtype;
  Shape shape;
  Strides strides;
};

std::vector<std::byte*> pointers_of(const std::vector<std::uintptr_t>& addresses) {
  std::vector<std::byte*> pointers;
  pointers.reserve(addresses.size());
  for (const std::uintptr_t address : addresses) {
    pointers.push_back(reinterpret_cast<std::byte*>(address));
  }
  return pointers;
}

template <typename Named>
std::vector<std::string> names_of(const std::vector<Named>& values) {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (const Named& value : values) names.push_back(value.name);
  return names;
}

// (parameter, kind, region, value bits, reason) of each; a region is shape, strides and offset.
using ToldRegion = std::tuple<Shape, Strides, std::int64_t>;
using ToldReserve = std::tuple<std::string, std::string, ToldRegion, std::uint64_t, std::string>;

std::vector<ToldReserve> reserves_of(const Layout& layout) {
  std::vector<ToldReserve> reserves;
  for (const Parameter& parameter : layout.parameters) {
    const auto c = static_cast<std::size_t>(parameter.parameter_class);
    for (const Reserve& reserve : layout.parameter_classes[c].reserves) {
      const char* kind = reserve.kind == Reserve::Kind::fill   ? "fill"
                         : reserve.kind == Reserve::Kind::kept ? "kept"
                                                               : "derived";
      const StridedRegion& region = reserve.region;
      reserves.emplace_back(parameter.name, kind,
                            ToldRegion{region.shape, region.view.strides, region.view.offset},
                            reserve.value_bits, reserve.reason);
    }
  }
  return reserves;
}

const char* name_of_kind(BakeEvent::Kind kind) {
  switch (kind) {
    case BakeEvent::Kind::copy:
      return "copy";
    case BakeEvent::Kind::fill:
      return "fill";
    case BakeEvent::Kind::write:
      return "write";
  }
  return "";
}

void bind_event(nb::module_& m) {
  nb::class_<TargetGeometry>(m, "TargetGeometry", "What a copy writes, but for where.")
      .def(
          "__init__",
          [](TargetGeometry* self, DType dtype, const Shape& shape, const Strides& strides) {
            new (self) TargetGeometry{dtype, shape, strides};
          },
          "dtype"_a, "shape"_a, "strides"_a);
  nb::class_<BakeEvent>(m, "BakeEvent", "One write of a loader to a storage; see BakeRecord.")
      .def_prop_ro("kind", [](const BakeEvent& event) { return name_of_kind(event.kind); })
      .def_ro("tensor", &BakeEvent::tensor)
      .def_ro("storage", &BakeEvent::storage)
      .def_ro("dtype", &BakeEvent::dtype)
      .def_prop_ro("shape", [](const BakeEvent& event) { return event.region.shape; })
      .def_prop_ro("strides", [](const BakeEvent& event) { return event.region.view.strides; })
      .def_prop_ro("offset", [](const BakeEvent& event) { return event.region.view.offset; })
      .def_ro("source", &BakeEvent::source)
      .def_ro("chain", &BakeEvent::chain)
      .def_ro("value_bits", &BakeEvent::value_bits)
      .def_ro("tensors", &BakeEvent::tensors)
      .def_ro("reason", &BakeEvent::reason);
}

void bind_record(nb::module_& m) {
  nb::class_<BakeRecord>(m, "BakeRecord", "What one run of a loader did, in order.")
      .def(nb::init<>())
      .def(
          "add_tensor",
          [](BakeRecord& record, std::string name, DType dtype, std::vector<std::int64_t> shape) {
            record.tensors.push_back({std::move(name), dtype, std::move(shape)});
          },
          "name"_a, "dtype"_a, "shape"_a)
      .def(
          "add_parameter",
          [](BakeRecord& record, std::string name, DType dtype, const Shape& shape,
             const Strides& strides, int storage, std::int64_t offset, bool is_buffer) {
            record.parameters.push_back(
                {std::move(name), dtype, shape, strides, storage, offset, is_buffer});
          },
          "name"_a, "dtype"_a, "shape"_a, "strides"_a, "storage"_a, "offset"_a, "is_buffer"_a)
      .def(
          "copy",
          [](BakeRecord& record, int tensor, int source, int chain, int storage,
             const TargetGeometry& target, std::int64_t offset) {
            BakeEvent event{BakeEvent::Kind::copy,
                            tensor,
                            storage,
                            target.dtype,
                            {target.shape, {offset, target.strides}}};
            event.source = source;
            event.chain = chain;
            record.events.push_back(std::move(event));
          },
          "tensor"_a, "source"_a, "chain"_a, "storage"_a, "target"_a, "offset"_a)
      .def(
          "fill",
          [](BakeRecord& record, int tensor, std::uint64_t value_bits, int storage, DType dtype,
             const Shape& shape, const Strides& strides, std::int64_t offset) {
            BakeEvent event{
                BakeEvent::Kind::fill, tensor, storage, dtype, {shape, {offset, strides}}};
            event.value_bits = value_bits;
            record.events.push_back(std::move(event));
          },
          "tensor"_a, "value_bits"_a, "storage"_a, "dtype"_a, "shape"_a, "strides"_a, "offset"_a)
      .def(
          "write",
          [](BakeRecord& record, int tensor, std::vector<int> tensors, std::string reason,
             int storage, DType dtype, const Shape& shape, const Strides& strides,
             std::int64_t offset) {
            BakeEvent event{
                BakeEvent::Kind::write, tensor, storage, dtype, {shape, {offset, strides}}};
            event.tensors = std::move(tensors);
            event.reason = std::move(reason);
            record.events.push_back(std::move(event));
          },
          "tensor"_a, "tensors"_a, "reason"_a, "storage"_a, "dtype"_a, "shape"_a, "strides"_a,
          "offset"_a)
      .def(
          "refuse",
          [](BakeRecord& record, int tensor, std::string reason) {
            record.refusals.push_back({tensor, std::move(reason)});
          },
          "tensor"_a, "reason"_a)
      .def_prop_ro("events", [](const BakeRecord& record) { return record.events; });
}

}  // namespace

void bind_bake(nb::module_& m) {
  bind_event(m);
  bind_record(m);
  nb::class_<BakeResult>(m, "BakeResult", "A record's layout, and what became of each tensor.")
      .def_prop_ro("layout", [](const BakeResult& result) { return result.layout; })
      .def_prop_ro("fates",
                   [](const BakeResult& result) {
                     std::vector<std::string_view> fates;
                     fates.reserve(result.tensors.size());
                     for (const BakedTensor& tensor : result.tensors) {
                       fates.push_back(name_of(tensor.fate));
                     }
                     return fates;
                   })
      .def(
          "reason_of",
          [](const BakeResult& result, std::size_t tensor) {
            return result.tensors.at(tensor).reason;
          },
          "tensor"_a, "Why a tensor is opaque, or by what it is overwritten.")
      .def_ro("needs_loader", &BakeResult::needs_loader)
      .def_prop_ro("tensor_names",
                   [](const BakeResult& result) { return names_of(result.layout.tensors); })
      .def_prop_ro("parameter_names",
                   [](const BakeResult& result) { return names_of(result.layout.parameters); })
      .def_prop_ro("reserves", [](const BakeResult& result) { return reserves_of(result.layout); });
  m.def("lay_out_record", &bake, "record"_a, "book"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Returns the layout that does what a recorded load did.");
  m.def(
      "merge_layouts",
      [](const std::vector<Layout>& layout_of_rank) { return merge(layout_of_rank); },
      "layout_of_rank"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Returns the layout of all ranks, from the layout of each.");
  nb::class_<Putter>(m, "Putter", "One rank's part of a layout, with the memory that it writes.")
      .def(
          "__init__",
          [](Putter* self, const Layout& layout, int rank,
             const std::vector<std::uintptr_t>& parameters) {
            new (self) Putter(layout, rank, pointers_of(parameters));
          },
          "layout"_a, "rank"_a, "parameters"_a, nb::keep_alive<1, 2>())
      .def(
          "put",
          [](const Putter& putter, int tensor, DType dtype, std::uintptr_t address) {
            putter.put(tensor, {dtype, reinterpret_cast<const std::byte*>(address)});
          },
          "tensor"_a, "dtype"_a, "address"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Writes the pieces of a whole tensor that lies at `address`, in row-major order.")
      .def("put_fills", &Putter::put_fills, nb::call_guard<nb::gil_scoped_release>(),
           "Writes the constants of all parameters.");
}

}  // namespace crossmesh::python
