// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "crossmesh/layout/layout.h"
#include "crossmesh/layout/opaque.h"
#include "crossmesh/layout/wire.h"
#include "crossmesh/session/place.h"
#include "python/bind/bind.h"
#include "python/bind/convert.h"
#include "python/bind/show.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace crossmesh::python {

template <>
struct Words<Reserve::Kind> {
  static constexpr auto kLiteral =
      nb::detail::const_name("typing.Literal['fill', 'kept', 'derived']");
  static constexpr std::string_view kWhat = "reserve";
  static constexpr std::pair<std::string_view, Reserve::Kind> kWords[] = {
      {"fill", Reserve::Kind::fill},
      {"kept", Reserve::Kind::kept},
      {"derived", Reserve::Kind::derived}};
};

namespace {

using IndexOrName = std::variant<std::int64_t, std::string>;

int checked_rank(const Layout& layout, std::int64_t rank) {
  return checked_index(rank, static_cast<std::size_t>(layout.rank_count), "layout: no such rank");
}

template <typename Values>
int index_in(const Values& values, const IndexOrName& key, std::string_view what) {
  if (const auto* index = std::get_if<std::int64_t>(&key)) {
    return checked_index(*index, values.size(), what);
  }
  const std::string& name = std::get<std::string>(key);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].name == name) return static_cast<int>(i);
  }
  throw Error(ErrorCode::invalid_argument, std::string(what)).with("name", name);
}

int tensor_of(const Layout& layout, const IndexOrName& tensor) {
  return index_in(layout.tensors, tensor, "layout: no such tensor");
}

// A parameter that the rank has.
int parameter_of(const Layout& layout, std::int64_t rank, const IndexOrName& parameter) {
  const int index = index_in(layout.parameters, parameter, "layout: no such parameter");
  if (has_parameter(layout, checked_rank(layout, rank), index)) return index;
  throw Error(ErrorCode::invalid_argument, "layout: the rank does not have the parameter")
      .with("parameter", layout.parameters[static_cast<std::size_t>(index)].name)
      .with("rank", rank);
}

nlohmann::json parse(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  throw Error(ErrorCode::corrupt_file, "read layout: the text is not JSON");
}

void bind_geometry_of_layouts(nb::module_& m) {
  nb::class_<Piece> piece(m, "Piece", "A box of a tensor, and where it lies in a parameter.");
  piece.def_ro("box", &Piece::box).def_ro("view", &Piece::view);
  compare(piece);
  show(piece, [](const Piece& p) {
    return Facts{fact("box", to_string(p.box)), fact("offset", p.view.offset),
                 fact("strides", to_string(p.view.strides))};
  });

  nb::class_<LayoutClass> layout_class(m, "LayoutClass", "Geometry over roles.");
  layout_class.def_ro("space", &LayoutClass::space)
      .def_ro("dtype", &LayoutClass::dtype, "Of the elements as they lie; views count in it.")
      .def_ro("pieces_of_role", &LayoutClass::pieces_of_role)
      .def("fingerprint", [](const LayoutClass& c) { return to_string(fingerprint(c)); });
  compare(layout_class);
  show(layout_class, [](const LayoutClass& c) {
    return Facts{fact("space", to_string(c.space)), fact("dtype", name_of(c.dtype)),
                 fact("roles", c.pieces_of_role.size())};
  });

  nb::class_<Binding> binding(m, "Binding", "Which ranks play which role.");
  binding.def_ro("role_of_rank", &Binding::role_of_rank, "By rank; -1 where it has no part.");
  compare(binding);
  show(binding, [](const Binding& b) {
    return Facts{fact("role_of_rank", fmt::format("[{}]", fmt::join(b.role_of_rank, ", ")))};
  });
}

void bind_parameters(nb::module_& m) {
  nb::class_<Reserve> reserve(m, "Reserve", "A region of a parameter that no piece fills.");
  reserve
      .def_prop_ro(
          "kind", [](const Reserve& r) { return word_of(r.kind); },
          "`fill`: holds a constant; `kept`: no tensor feeds it; `derived`: the engine computes "
          "it.")
      .def_ro("role", &Reserve::role)
      .def_ro("region", &Reserve::region)
      .def_ro("value_bits", &Reserve::value_bits, "Of a fill: one element.")
      .def_ro("reason", &Reserve::reason);
  compare(reserve);
  show(reserve, [](const Reserve& r) {
    return Facts{fact("kind", word_of(r.kind)), fact("role", r.role),
                 fact("region", to_string(r.region))};
  });

  nb::class_<ParameterClass> parameter_class(m, "ParameterClass",
                                             "The shape of a parameter on each role.");
  parameter_class.def_ro("dtype", &ParameterClass::dtype)
      .def_ro("shape_of_role", &ParameterClass::shape_of_role)
      .def_ro("strides_of_role", &ParameterClass::strides_of_role, "In elements.")
      .def_ro("reserves", &ParameterClass::reserves);
  compare(parameter_class);
  show(parameter_class, [](const ParameterClass& c) {
    return Facts{fact("dtype", name_of(c.dtype)), fact("roles", c.shape_of_role.size()),
                 fact("reserves", c.reserves.size())};
  });

  nb::class_<Parameter> parameter(m, "Parameter", "A name that some ranks have memory for.");
  parameter.def_ro("name", &Parameter::name)
      .def_ro("parameter_class", &Parameter::parameter_class)
      .def_ro("binding", &Parameter::binding)
      .def_ro("storage", &Parameter::storage, "The parameter whose memory it is; often itself.");
  compare(parameter);
  show(parameter, [](const Parameter& p) { return Facts{fact("name", p.name)}; });

  nb::class_<Instance> instance(m, "Instance", "One tensor's part in one parameter.");
  instance.def_ro("tensor", &Instance::tensor)
      .def_ro("parameter", &Instance::parameter)
      .def_ro("layout_class", &Instance::layout_class)
      .def_ro("binding", &Instance::binding)
      .def_ro("offset", &Instance::offset, "Elements, added to every view of the class.")
      .def_ro("opaque_reason", &Instance::opaque_reason,
              "Why it takes the fallback, an index of `reasons`; -1 where it does not.");
  compare(instance);
  show(instance, [](const Instance& i) {
    return Facts{fact("tensor", i.tensor), fact("parameter", i.parameter),
                 fact("layout_class", i.layout_class)};
  });

  nb::class_<Unused> unused(m, "Unused", "A tensor that a side does not want, and why.");
  unused.def_ro("name", &Unused::name).def_ro("why", &Unused::why);
  compare(unused);
  show(unused, [](const Unused& u) { return Facts{fact("name", u.name), fact("why", u.why)}; });

  nb::class_<PlacedPiece> placed(m, "PlacedPiece", "A piece in its parameter.");
  placed.def_ro("instance", &PlacedPiece::instance)
      .def_ro("parameter", &PlacedPiece::parameter)
      .def_ro("piece", &PlacedPiece::piece);
  show(placed, [](const PlacedPiece& p) {
    return Facts{fact("parameter", p.parameter), fact("box", to_string(p.piece.box)),
                 fact("offset", p.piece.view.offset),
                 fact("strides", to_string(p.piece.view.strides))};
  });
}

void bind_fields(nb::class_<Layout>& layout) {
  layout.def_ro("model", &Layout::model, "Which model of a job it is of.")
      .def_ro("rank_count", &Layout::rank_count)
      .def_ro("replica_of_rank", &Layout::replica_of_rank, "The commit unit of each rank.")
      .def_ro("tensors", &Layout::tensors, "That this side speaks of, with whole shapes.")
      .def_ro("classes", &Layout::classes)
      .def_ro("bindings", &Layout::bindings)
      .def_ro("parameter_classes", &Layout::parameter_classes)
      .def_ro("parameters", &Layout::parameters)
      .def_ro("instances", &Layout::instances)
      .def_ro("reasons", &Layout::reasons)
      .def_ro("unused", &Layout::unused, "Tensors that this side does not want, and why.");
}

void bind_questions(nb::class_<Layout>& layout) {
  layout
      .def(
          "pieces",
          [](const Layout& l, std::int64_t rank, const IndexOrName& tensor) {
            return pieces(l, checked_rank(l, rank), tensor_of(l, tensor));
          },
          "rank"_a, "tensor"_a,
          R"(Returns what a rank holds of a tensor, and where in its parameters it lies.

Args:
    rank: Of this side, from 0.
    tensor: A name, or an index of `tensors`.

Raises:
    crossmesh.Error: invalid_argument: there is no such rank or tensor.

Example:
    >>> crossmesh.shard(catalog, "fsdp=2").pieces(1, "model.norm.weight")
    [PlacedPiece(parameter=33, box=[20:40], offset=0, strides=[1])]
)")
      .def(
          "has_parameter",
          [](const Layout& l, std::int64_t rank, const IndexOrName& parameter) {
            return has_parameter(l, checked_rank(l, rank),
                                 index_in(l.parameters, parameter, "layout: no such parameter"));
          },
          "rank"_a, "parameter"_a, "Whether a rank has memory for a parameter (a name or index).")
      .def(
          "local_shape",
          [](const Layout& l, std::int64_t rank, const IndexOrName& parameter) {
            return local_shape(l, static_cast<int>(rank), parameter_of(l, rank, parameter));
          },
          "rank"_a, "parameter"_a,
          R"(Returns the shape of a parameter on a rank, in elements.

Raises:
    crossmesh.Error: invalid_argument: there is no such rank or parameter, or not there.
)")
      .def(
          "local_strides",
          [](const Layout& l, std::int64_t rank, const IndexOrName& parameter) {
            return local_strides(l, static_cast<int>(rank), parameter_of(l, rank, parameter));
          },
          "rank"_a, "parameter"_a,
          R"(Returns the strides of a parameter on a rank, in elements.

Raises:
    crossmesh.Error: as local_shape.
)");
}

void bind_more_questions(nb::class_<Layout>& layout) {
  layout
      .def(
          "parameter_bytes",
          [](const Layout& l, std::int64_t rank, const IndexOrName& parameter) {
            return parameter_bytes(l, static_cast<int>(rank), parameter_of(l, rank, parameter));
          },
          "rank"_a, "parameter"_a,
          R"(Returns the bytes of a parameter's storage on a rank.

Raises:
    crossmesh.Error: as local_shape; unsupported: it does not end on a byte.
)")
      .def(
          "mark_opaque",
          [](const Layout& l, std::string_view pattern, std::string_view reason) {
            Layout marked = l;
            mark_opaque(marked, pattern, reason);
            return marked;
          },
          "pattern"_a, "reason"_a,
          R"(Returns the layout with the tensors that `pattern` matches given to the fallback.

Each goes whole to the engine's own loader; `reason` says why. In the pattern `*` matches any text.

Raises:
    crossmesh.Error: invalid_argument: no wanted tensor matches.
)");
}

}  // namespace

void bind_layout(nb::module_& m) {
  bind_geometry_of_layouts(m);
  bind_parameters(m);
  nb::class_<Layout> layout(m, "Layout",
                            R"(Who holds which elements of which tensor, and how they lie.

`shard` makes the trainers', `family` and `lay_out` the engines'. It is a value: nothing changes it.

Example:
    >>> layout = crossmesh.shard(catalog, "fsdp=2")
    >>> layout.rank_count, layout.local_shape(0, "model.norm.weight")
    (2, (20,))
)");
  bind_fields(layout);
  bind_questions(layout);
  bind_more_questions(layout);
  layout
      .def(
          "fingerprint", [](const Layout& l) { return to_string(fingerprint(l)); },
          "Returns 32 hexadecimal digits: equal for equal layouts, on any machine.")
      .def(
          "explain", [](const Layout& l) { return explain(l); },
          "Returns a stable text: ranks, classes with boxes and views, then instances.")
      .def(
          "to_json", [](const Layout& l) { return to_json(l).dump(); },
          "Returns the layout as JSON of the schema in docs/layout.schema.json.")
      .def_static(
          "from_json", [](const std::string& text) { return layout_from_json(parse(text)); },
          "text"_a,
          R"(Reads what `to_json`, or another program, wrote. It is checked whole.

Raises:
    crossmesh.Error: corrupt_file: it is not JSON, or no layout; mismatch: another version of the
        schema; limit_exceeded: too many ranks.

Example:
    >>> layout = crossmesh.shard(catalog, "fsdp=2")
    >>> crossmesh.Layout.from_json(layout.to_json()) == layout
    True
)");
  compare(layout);
  show(layout, [](const Layout& l) {
    return Facts{fact("ranks", l.rank_count), fact("tensors", l.tensors.size()),
                 fact("parameters", l.parameters.size()), fact("classes", l.classes.size())};
  });
}

}  // namespace crossmesh::python
