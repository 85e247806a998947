// SPDX-License-Identifier: Apache-2.0
// Hashes from the leaves up: geometry once per class, ranks once per binding, and names on top of
// those, so that the cost grows with names plus ranks and not with their product.
#include <numeric>

#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

template <typename Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

std::int64_t count(std::size_t size) { return static_cast<std::int64_t>(size); }

void add_region(FingerprintBuilder& builder, const StridedRegion& region) {
  builder.add(region.shape.span()).add(region.view.offset).add(region.view.strides.span());
}

struct Parts {
  std::vector<Fingerprint> classes;
  std::vector<Fingerprint> bindings;
  std::vector<Fingerprint> parameter_classes;
  std::vector<Fingerprint> parameters;
};

template <typename Value>
std::vector<Fingerprint> fingerprint_each(const std::vector<Value>& values) {
  std::vector<Fingerprint> parts;
  parts.reserve(values.size());
  for (const Value& value : values) parts.push_back(fingerprint(value));
  return parts;
}

Parts fingerprint_parts(const Layout& layout) {
  Parts parts{fingerprint_each(layout.classes),
              fingerprint_each(layout.bindings),
              fingerprint_each(layout.parameter_classes),
              {}};
  parts.parameters.reserve(layout.parameters.size());
  for (const Parameter& p : layout.parameters) {
    FingerprintBuilder builder;
    builder.add(p.name)
        .add(parts.parameter_classes[static_cast<std::size_t>(p.parameter_class)])
        .add(parts.bindings[static_cast<std::size_t>(p.binding)])
        .add(layout.parameters[static_cast<std::size_t>(p.storage)].name);
    parts.parameters.push_back(builder.finish());
  }
  return parts;
}

// Indices of instances, those of one tensor side by side and in their order.
struct InstancesByTensor {
  std::vector<int> instances;
  std::vector<std::size_t> begin_of_tensor;  // and one past the last
};

InstancesByTensor group_by_tensor(const Layout& layout) {
  InstancesByTensor grouped;
  grouped.begin_of_tensor.assign(layout.tensors.size() + 1, 0);
  for (const Instance& i : layout.instances) {
    ++grouped.begin_of_tensor[static_cast<std::size_t>(i.tensor) + 1];
  }
  std::partial_sum(grouped.begin_of_tensor.begin(), grouped.begin_of_tensor.end(),
                   grouped.begin_of_tensor.begin());
  grouped.instances.resize(layout.instances.size());
  std::vector<std::size_t> next(grouped.begin_of_tensor);
  for (std::size_t i = 0; i < layout.instances.size(); ++i) {
    grouped.instances[next[static_cast<std::size_t>(layout.instances[i].tensor)]++] =
        static_cast<int>(i);
  }
  return grouped;
}

std::vector<Fingerprint> fingerprint_tensors(const Layout& layout, const Parts& parts) {
  const InstancesByTensor grouped = group_by_tensor(layout);
  std::vector<Fingerprint> fingerprints;
  fingerprints.reserve(layout.tensors.size());
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorInfo& tensor = layout.tensors[t];
    FingerprintBuilder builder;
    builder.add(layout.model).add(tensor.name).add(number(tensor.dtype));
    builder.add(std::span<const std::int64_t>(tensor.shape));
    for (std::size_t at = grouped.begin_of_tensor[t]; at < grouped.begin_of_tensor[t + 1]; ++at) {
      const Instance& i = layout.instances[static_cast<std::size_t>(grouped.instances[at])];
      builder.add(parts.parameters[static_cast<std::size_t>(i.parameter)])
          .add(parts.classes[static_cast<std::size_t>(i.layout_class)])
          .add(parts.bindings[static_cast<std::size_t>(i.binding)])
          .add(i.offset);
      builder.add(std::int64_t{i.opaque_reason >= 0});
      if (i.opaque_reason >= 0) {
        builder.add(layout.reasons[static_cast<std::size_t>(i.opaque_reason)]);
      }
    }
    fingerprints.push_back(builder.finish());
  }
  return fingerprints;
}

void add_all(FingerprintBuilder& builder, const std::vector<Fingerprint>& parts) {
  builder.add(count(parts.size()));
  for (const Fingerprint& part : parts) builder.add(part);
}

}  // namespace

Fingerprint fingerprint(const LayoutClass& value) {
  FingerprintBuilder builder;
  builder.add(value.space.factors.span()).add(value.space.factor_count.span());
  builder.add(number(value.dtype)).add(count(value.pieces_of_role.size()));
  for (const std::vector<Piece>& pieces_of_role : value.pieces_of_role) {
    builder.add(count(pieces_of_role.size()));
    for (const Piece& piece : pieces_of_role) {
      builder.add(piece.box.origin.span());
      add_region(builder, {piece.box.shape, piece.view});
    }
  }
  return builder.finish();
}

Fingerprint fingerprint(const Binding& value) {
  FingerprintBuilder builder;
  builder.add(count(value.role_of_rank.size()));
  for (const int role : value.role_of_rank) builder.add(std::int64_t{role});
  return builder.finish();
}

Fingerprint fingerprint(const ParameterClass& value) {
  FingerprintBuilder builder;
  builder.add(number(value.dtype)).add(count(value.shape_of_role.size()));
  for (const Shape& shape : value.shape_of_role) builder.add(shape.span());
  builder.add(count(value.strides_of_role.size()));
  for (const Strides& strides : value.strides_of_role) builder.add(strides.span());
  builder.add(count(value.reserves.size()));
  for (const Reserve& reserve : value.reserves) {
    builder.add(number(reserve.kind)).add(std::int64_t{reserve.role});
    add_region(builder, reserve.region);
    builder.add(number(reserve.value_bits)).add(reserve.reason);
  }
  return builder.finish();
}

std::vector<Fingerprint> fingerprints_by_tensor(const Layout& layout) {
  return fingerprint_tensors(layout, fingerprint_parts(layout));
}

Fingerprint fingerprint(const Layout& layout) {
  const Parts parts = fingerprint_parts(layout);
  FingerprintBuilder builder;
  builder.add(layout.model).add(std::int64_t{layout.rank_count});
  builder.add(count(layout.replica_of_rank.size()));
  for (const int replica : layout.replica_of_rank) builder.add(std::int64_t{replica});
  add_all(builder, fingerprint_tensors(layout, parts));
  add_all(builder, parts.classes);
  add_all(builder, parts.bindings);
  add_all(builder, parts.parameter_classes);
  add_all(builder, parts.parameters);
  for (const Parameter& p : layout.parameters) {
    builder.add(std::int64_t{p.parameter_class})
        .add(std::int64_t{p.binding})
        .add(std::int64_t{p.storage});
  }
  builder.add(count(layout.instances.size()));
  for (const Instance& i : layout.instances) {
    builder.add(std::int64_t{i.tensor})
        .add(std::int64_t{i.parameter})
        .add(std::int64_t{i.layout_class})
        .add(std::int64_t{i.binding})
        .add(i.offset)
        .add(std::int64_t{i.opaque_reason});
  }
  builder.add(count(layout.reasons.size()));
  for (const std::string& reason : layout.reasons) builder.add(reason);
  builder.add(count(layout.unused.size()));
  for (const Unused& unused : layout.unused) builder.add(unused.name).add(unused.why);
  return builder.finish();
}

}  // namespace crossmesh
