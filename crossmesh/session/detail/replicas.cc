// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/session/detail/replicas.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/base/fingerprint.h"
#include "crossmesh/memory/digest.h"

namespace crossmesh {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

using Parameters = std::vector<const std::byte*>;

// Ranks that play one role of a binding, in ascending order: they hold the same.
using Twins = std::vector<int>;

std::map<int, Twins> twins_of(const Binding& binding) {
  std::map<int, Twins> ranks_of_role;
  for (std::size_t rank = 0; rank < binding.role_of_rank.size(); ++rank) {
    const int role = binding.role_of_rank[rank];
    if (role >= 0) ranks_of_role[role].push_back(static_cast<int>(rank));
  }
  std::erase_if(ranks_of_role, [](const auto& one) { return one.second.size() < 2; });
  return ranks_of_role;
}

// Of a piece, its elements numbered in row-major order from `offset_bytes` on. Elements that share
// a byte lie side by side, as no shard cuts a byte.
Digest digest_of_piece(const std::byte* parameter, DType dtype, const Piece& piece,
                       std::int64_t offset_bytes) {
  const std::int64_t elements = volume(piece.box);
  const std::int64_t bytes = bytes_of(dtype, elements).value_or(0);
  if (elements == 0) return {};
  if (!is_byte_sized(dtype)) {
    return digest(parameter + bytes_of(dtype, piece.view.offset).value_or(0), offset_bytes, bytes);
  }
  const auto width = static_cast<std::int32_t>(byte_size(dtype));
  const LoopNest nest = coalesce(
      {piece.box.shape, piece.view.strides, contiguous_strides(piece.box.shape), width, width});
  const Numbering numbering{{}, {}, {}, bytes, offset_bytes};
  return digest(parameter + piece.view.offset * width, {&numbering, 0}, nest, dtype, dtype);
}

// What one rank holds of one instance.
Digest digest_of(const Layout& layout, const Instance& instance, int rank,
                 const Parameters& parameters) {
  const LayoutClass& c = layout.classes[at(instance.layout_class)];
  const int role = layout.bindings[at(instance.binding)].role_of_rank[at(rank)];
  const std::byte* parameter = parameters[at(instance.parameter)];
  Digest sum;
  for (const Piece& piece : c.pieces_of_role[at(role)]) {
    if (is_empty(piece.box)) continue;
    sum += digest_of_piece(parameter + bytes_of(c.dtype, instance.offset).value_or(0), c.dtype,
                           piece, sum.bytes);
  }
  return sum;
}

// A rank's digests of the instances of one binding, in order.
using Digests = std::vector<std::pair<const Instance*, Digest>>;

Digests digests_of(const Layout& layout, int binding, int rank, const Parameters& parameters) {
  Digests digests;
  for (const Instance& instance : layout.instances) {
    if (instance.binding != binding) continue;
    digests.emplace_back(&instance, digest_of(layout, instance, rank, parameters));
  }
  return digests;
}

std::string fingerprint_text(const Digests& digests) {
  FingerprintBuilder builder;
  for (const auto& [instance, digest] : digests) {
    builder.add(static_cast<std::int64_t>(digest.sums[0]));
    builder.add(static_cast<std::int64_t>(digest.sums[1]));
    builder.add(digest.bytes);
  }
  return to_string(builder.finish());
}

// Two ranks whose fingerprints of a binding differ.
struct Difference {
  int binding = 0;
  int first = 0;
  int second = 0;
};

std::optional<Difference> find_difference(const std::vector<std::map<int, Twins>>& twins,
                                          const std::vector<nlohmann::json>& told) {
  for (std::size_t b = 0; b < twins.size(); ++b) {
    const std::string key = std::to_string(b);
    for (const auto& [role, ranks] : twins[b]) {
      for (const int rank : ranks) {
        if (told[at(rank)].at(key) == told[at(ranks.front())].at(key)) continue;
        return Difference{static_cast<int>(b), ranks.front(), rank};
      }
    }
  }
  return std::nullopt;
}

// The error of two ranks' digests of one binding, as all ranks see it.
Error error_of(const Layout& layout, const Difference& difference, const nlohmann::json& first,
               const nlohmann::json& second) {
  std::vector<const Instance*> instances;
  for (const Instance& instance : layout.instances) {
    if (instance.binding == difference.binding) instances.push_back(&instance);
  }
  std::optional<std::size_t> found;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    if (first.at(i) == second.at(i)) continue;
    if (!found) found = i;
    ++count;
  }
  const std::size_t i = found.value_or(0);
  return Error(ErrorCode::mismatch, "replicas: two trainer ranks hold different weights")
      .with("tensor", layout.tensors[at(instances.at(i)->tensor)].name)
      .with(fmt::format("trainer {}", difference.first), first.at(i).get<std::string>())
      .with(fmt::format("trainer {}", difference.second), second.at(i).get<std::string>())
      .with("tensors that differ", count)
      .hint("engines would serve a mixture: make the trainer's replicas equal before the update");
}

}  // namespace

void compare_replicas(const Layout& layout, int rank, const Parameters& parameters,
                      const Exchange& exchange) {
  std::vector<std::map<int, Twins>> twins;
  for (const Binding& binding : layout.bindings) twins.push_back(twins_of(binding));
  const auto has_twins = [&](std::size_t binding) {
    if (rank >= layout.rank_count) return false;
    return twins[binding].contains(layout.bindings[binding].role_of_rank[at(rank)]);
  };

  nlohmann::json own = nlohmann::json::object();
  std::map<int, Digests> digests;
  for (std::size_t b = 0; b < twins.size(); ++b) {
    if (!has_twins(b)) continue;
    const int binding = static_cast<int>(b);
    own[std::to_string(b)] =
        fingerprint_text(digests[binding] = digests_of(layout, binding, rank, parameters));
  }
  const auto difference = find_difference(twins, exchange("replicas", own));
  if (!difference) return;

  nlohmann::json texts;
  if (rank == difference->first || rank == difference->second) {
    texts = nlohmann::json::array();
    for (const auto& [instance, digest] : digests[difference->binding]) {
      texts.push_back(to_string(digest));
    }
  }
  const std::vector<nlohmann::json> all = exchange("replicas that differ", texts);
  throw error_of(layout, *difference, all[at(difference->first)], all[at(difference->second)]);
}

}  // namespace crossmesh
