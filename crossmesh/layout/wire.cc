// SPDX-License-Identifier: Apache-2.0
// Grammar, version 1. All indices are into the tables of the same object.
//
//   layout          := {"schema": "crossmesh.layout", "version": 1, "model": text,
//                       "rank_count": n, "replica_of_rank": runs, "tensors": [tensor...],
//                       "classes": [class...], "bindings": [runs...],
//                       "parameter_classes": [parameter_class...], "parameters": [parameter...],
//                       "instances": [instance...], "reasons": [text...], "unused": [unused...]}
//   runs            := [[first, count, step]...]           first, first + step, ...; step is 0 or 1
//   tensor          := [name, dtype, shape]                dtype as safetensors names it
//   class           := {"factors": ints, "factor_count": ints, "dtype": dtype,
//                       "roles": [[piece...]...]}
//   piece           := [origin, shape, offset, strides]
//   parameter_class := {"dtype": dtype, "roles": [[shape, strides]...], "reserves": [reserve...]}
//   reserve         := [kind, role, shape, offset, strides, value_bits, reason]
//   parameter       := [name, parameter_class, binding, storage]
//   instance        := [tensor, parameter, class, binding, offset, opaque_reason]
//   unused          := [name, why]
#include "crossmesh/layout/wire.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "crossmesh.layout";
constexpr int kVersion = 1;

// Roles of all bindings together: what runs may unpack to.
constexpr std::int64_t kRolesMax = std::int64_t{1} << 26;

// -- Writing -------------------------------------------------------------------------------------

Json ints(const DimVector& values) {
  Json json = Json::array();
  for (const std::int64_t value : values) json.push_back(value);
  return json;
}

Json runs(const std::vector<int>& values) {
  Json json = Json::array();
  for (std::size_t begin = 0; begin < values.size();) {
    std::size_t end = begin + 1;
    const int step = end < values.size() && values[end] == values[begin] + 1 ? 1 : 0;
    while (end < values.size() && values[end] == values[end - 1] + step) ++end;
    json.push_back({values[begin], end - begin, step});
    begin = end;
  }
  return json;
}

Json write_class(const LayoutClass& c) {
  Json roles = Json::array();
  for (const std::vector<Piece>& pieces_of_role : c.pieces_of_role) {
    Json role = Json::array();
    for (const Piece& p : pieces_of_role) {
      role.push_back(Json::array(
          {ints(p.box.origin), ints(p.box.shape), p.view.offset, ints(p.view.strides)}));
    }
    roles.push_back(std::move(role));
  }
  return {{"factors", ints(c.space.factors)},
          {"factor_count", ints(c.space.factor_count)},
          {"dtype", name_of(c.dtype)},
          {"roles", std::move(roles)}};
}

std::string_view name_of_kind(Reserve::Kind kind) {
  switch (kind) {
    case Reserve::Kind::fill:
      return "fill";
    case Reserve::Kind::kept:
      return "kept";
    case Reserve::Kind::derived:
      return "derived";
  }
  return "unknown";
}

Json write_parameter_class(const ParameterClass& c) {
  Json roles = Json::array();
  for (std::size_t r = 0; r < c.shape_of_role.size(); ++r) {
    roles.push_back(Json::array({ints(c.shape_of_role[r]), ints(c.strides_of_role[r])}));
  }
  Json reserves = Json::array();
  for (const Reserve& r : c.reserves) {
    reserves.push_back(
        Json::array({name_of_kind(r.kind), r.role, ints(r.region.shape), r.region.view.offset,
                     ints(r.region.view.strides), r.value_bits, r.reason}));
  }
  return {{"dtype", name_of(c.dtype)}, {"roles", std::move(roles)}, {"reserves", reserves}};
}

// -- Reading -------------------------------------------------------------------------------------

// A value of the document and the path to it, for errors.
struct Node {
  const Json& json;
  const Node* parent = nullptr;
  std::string_view key = {};
  std::size_t index = 0;
};

// Written only when an error needs it.
std::string path_of(const Node& node) {
  if (node.parent == nullptr) return "";
  const std::string above = path_of(*node.parent);
  if (node.key.empty()) return fmt::format("{}[{}]", above, node.index);
  return above.empty() ? std::string(node.key) : fmt::format("{}.{}", above, node.key);
}

Error refuse(const Node& node, std::string_view what) {
  return Error(ErrorCode::corrupt_file, fmt::format("read layout: {}", what))
      .with("field", path_of(node));
}

Node member(const Node& node, std::string_view key) {
  if (!node.json.is_object()) throw refuse(node, "a field is not an object");
  const auto found = node.json.find(key);
  if (found == node.json.end()) {
    static const Json nothing;
    throw refuse(Node{nothing, &node, key}, "a field is missing");
  }
  return {*found, &node, key};
}

const Json::array_t& array_of(const Node& node) {
  const auto* array = node.json.get_ptr<const Json::array_t*>();
  if (array == nullptr) throw refuse(node, "a field is not an array");
  return *array;
}

Node element(const Node& node, std::size_t index) {
  return {array_of(node)[index], &node, {}, index};
}

// An array of exactly `size` elements.
const Node& tuple(const Node& node, std::size_t size) {
  if (array_of(node).size() != size) {
    throw refuse(node, "an array has another length")
        .with("length", array_of(node).size())
        .with("expected", size);
  }
  return node;
}

const std::string& read_text(const Node& node) {
  const auto* text = node.json.get_ptr<const std::string*>();
  if (text == nullptr) throw refuse(node, "a field is not a text");
  return *text;
}

std::uint64_t read_bits(const Node& node) {
  const auto* number = node.json.get_ptr<const Json::number_unsigned_t*>();
  if (number == nullptr) throw refuse(node, "a field is not a natural number");
  return *number;
}

std::int64_t read_number(const Node& node) {
  if (!node.json.is_number_integer()) throw refuse(node, "a field is not an integer");
  if (node.json.is_number_unsigned() &&
      node.json.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    throw refuse(node, "a number is out of range").with("value", node.json.get<std::uint64_t>());
  }
  return node.json.get<std::int64_t>();
}

int read_int(const Node& node) {
  const std::int64_t number = read_number(node);
  if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
    throw refuse(node, "a number is out of range").with("value", number);
  }
  return static_cast<int>(number);
}

DimVector read_dims(const Node& node) {
  const std::size_t size = array_of(node).size();
  if (size > kDimsMax) {
    throw refuse(node, "a field has too many dimensions")
        .with("dimensions", size)
        .with("limit", kDimsMax);
  }
  DimVector values;
  for (std::size_t i = 0; i < size; ++i) values.push_back(read_number(element(node, i)));
  return values;
}

DType read_dtype(const Node& node) {
  const std::string& name = read_text(node);
  const auto dtype = dtype_from_name(name);
  if (!dtype) throw refuse(node, "a dtype is unknown").with("dtype", name);
  return *dtype;
}

// `read` of every element.
template <typename Read>
auto read_all(const Node& node, Read read) {
  std::vector<std::decay_t<decltype(read(node))>> values;
  const std::size_t size = array_of(node).size();
  values.reserve(size);
  for (std::size_t i = 0; i < size; ++i) values.push_back(read(element(node, i)));
  return values;
}

// Requires: rank_count is within its limit, so that runs that lie unpack to no more.
std::vector<int> read_runs(const Node& node, int rank_count) {
  std::vector<int> values;
  for (std::size_t i = 0; i < array_of(node).size(); ++i) {
    const Node run = element(node, i);
    tuple(run, 3);
    const int first = read_int(element(run, 0));
    const int count = read_int(element(run, 1));
    const int step = read_int(element(run, 2));
    const int room = rank_count - static_cast<int>(values.size());
    if (count < 1 || count > room || step < 0 || step > 1 || first < -1 || first > kWireRanksMax) {
      throw refuse(run, "a run is out of range")
          .with("first", first)
          .with("count", count)
          .with("step", step)
          .with("ranks left", room);
    }
    for (int k = 0; k < count; ++k) values.push_back(first + k * step);
  }
  return values;
}

Piece read_piece(const Node& node) {
  tuple(node, 4);
  return {{read_dims(element(node, 0)), read_dims(element(node, 1))},
          {read_number(element(node, 2)), read_dims(element(node, 3))}};
}

LayoutClass read_class(const Node& node) {
  return {
      {read_dims(member(node, "factors")), read_dims(member(node, "factor_count"))},
      read_dtype(member(node, "dtype")),
      read_all(member(node, "roles"), [](const Node& role) { return read_all(role, read_piece); })};
}

Reserve read_reserve(const Node& node) {
  tuple(node, 7);
  const std::string& kind = read_text(element(node, 0));
  Reserve reserve;
  if (kind == "fill") {
    reserve.kind = Reserve::Kind::fill;
  } else if (kind == "kept") {
    reserve.kind = Reserve::Kind::kept;
  } else if (kind == "derived") {
    reserve.kind = Reserve::Kind::derived;
  } else {
    throw refuse(node, "the kind of a reserve is unknown").with("kind", kind);
  }
  reserve.role = read_int(element(node, 1));
  reserve.region = {read_dims(element(node, 2)),
                    {read_number(element(node, 3)), read_dims(element(node, 4))}};
  reserve.value_bits = read_bits(element(node, 5));
  reserve.reason = read_text(element(node, 6));
  return reserve;
}

ParameterClass read_parameter_class(const Node& node) {
  ParameterClass c;
  c.dtype = read_dtype(member(node, "dtype"));
  const Node roles = member(node, "roles");
  for (std::size_t r = 0; r < array_of(roles).size(); ++r) {
    const Node role = element(roles, r);
    tuple(role, 2);
    c.shape_of_role.push_back(read_dims(element(role, 0)));
    c.strides_of_role.push_back(read_dims(element(role, 1)));
  }
  c.reserves = read_all(member(node, "reserves"), read_reserve);
  return c;
}

TensorInfo read_tensor(const Node& node) {
  tuple(node, 3);
  return {read_text(element(node, 0)), read_dtype(element(node, 1)),
          read_all(element(node, 2), read_number)};
}

Parameter read_parameter(const Node& node) {
  tuple(node, 4);
  return {read_text(element(node, 0)), read_int(element(node, 1)), read_int(element(node, 2)),
          read_int(element(node, 3))};
}

Instance read_instance(const Node& node) {
  tuple(node, 6);
  return {read_int(element(node, 0)), read_int(element(node, 1)),    read_int(element(node, 2)),
          read_int(element(node, 3)), read_number(element(node, 4)), read_int(element(node, 5))};
}

Unused read_unused(const Node& node) {
  tuple(node, 2);
  return {read_text(element(node, 0)), read_text(element(node, 1))};
}

void check_schema(const Node& root) {
  const std::string& schema = read_text(member(root, "schema"));
  if (schema != kSchema) {
    throw Error(ErrorCode::mismatch, "read layout: this is another kind of document")
        .with("schema", schema)
        .with("expected", kSchema);
  }
  const std::int64_t version = read_number(member(root, "version"));
  if (version != kVersion) {
    throw Error(ErrorCode::mismatch, "read layout: the schema has another version")
        .with("version", version)
        .with("expected", kVersion);
  }
}

int read_rank_count(const Node& root) {
  const Node node = member(root, "rank_count");
  const int ranks = read_int(node);
  if (ranks < 0) throw refuse(node, "a number is out of range").with("value", ranks);
  if (ranks > kWireRanksMax) {
    throw Error(ErrorCode::limit_exceeded, "read layout: there are too many ranks")
        .with("ranks", ranks)
        .with("limit", kWireRanksMax);
  }
  const std::int64_t roles =
      static_cast<std::int64_t>(array_of(member(root, "bindings")).size()) * ranks;
  if (roles > kRolesMax) {
    throw Error(ErrorCode::limit_exceeded, "read layout: the bindings are too large")
        .with("bindings times ranks", roles)
        .with("limit", kRolesMax);
  }
  return ranks;
}

// An invariant that a peer's layout breaks is the peer's fault and no bug here.
void check_read(const Layout& layout) {
  try {
    check(layout);
  } catch (const Error& error) {
    throw Error::from_text(ErrorCode::corrupt_file, error.text());
  }
}

}  // namespace

Json to_json(const Layout& layout) {
  Json json{{"schema", kSchema},
            {"version", kVersion},
            {"model", layout.model},
            {"rank_count", layout.rank_count},
            {"replica_of_rank", runs(layout.replica_of_rank)},
            {"reasons", layout.reasons}};
  for (const char* table : {"tensors", "classes", "bindings", "parameter_classes", "parameters",
                            "instances", "unused"}) {
    json[table] = Json::array();
  }
  for (const TensorInfo& t : layout.tensors) {
    json["tensors"].push_back(Json::array({t.name, name_of(t.dtype), t.shape}));
  }
  for (const LayoutClass& c : layout.classes) json["classes"].push_back(write_class(c));
  for (const Binding& b : layout.bindings) json["bindings"].push_back(runs(b.role_of_rank));
  for (const ParameterClass& c : layout.parameter_classes) {
    json["parameter_classes"].push_back(write_parameter_class(c));
  }
  for (const Parameter& p : layout.parameters) {
    json["parameters"].push_back(Json::array({p.name, p.parameter_class, p.binding, p.storage}));
  }
  for (const Instance& i : layout.instances) {
    json["instances"].push_back(
        Json::array({i.tensor, i.parameter, i.layout_class, i.binding, i.offset, i.opaque_reason}));
  }
  for (const Unused& u : layout.unused) json["unused"].push_back(Json::array({u.name, u.why}));
  return json;
}

Layout layout_from_json(const Json& json) {
  const Node root{json};
  check_schema(root);
  Layout layout;
  layout.model = read_text(member(root, "model"));
  layout.rank_count = read_rank_count(root);
  const auto read_roles = [&](const Node& node) { return read_runs(node, layout.rank_count); };
  layout.replica_of_rank = read_roles(member(root, "replica_of_rank"));
  layout.tensors = read_all(member(root, "tensors"), read_tensor);
  layout.classes = read_all(member(root, "classes"), read_class);
  layout.bindings = read_all(member(root, "bindings"),
                             [&](const Node& node) { return Binding{read_roles(node)}; });
  layout.parameter_classes = read_all(member(root, "parameter_classes"), read_parameter_class);
  layout.parameters = read_all(member(root, "parameters"), read_parameter);
  layout.instances = read_all(member(root, "instances"), read_instance);
  layout.reasons = read_all(member(root, "reasons"), read_text);
  layout.unused = read_all(member(root, "unused"), read_unused);
  check_read(layout);
  return layout;
}

std::vector<std::uint8_t> to_cbor(const Layout& layout) { return Json::to_cbor(to_json(layout)); }

Layout layout_from_cbor(std::span<const std::uint8_t> bytes) {
  return layout_from_json(json_from_cbor(bytes, kWireDepthMax));
}

}  // namespace crossmesh
