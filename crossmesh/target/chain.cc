// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/chain.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>

#include "crossmesh/base/error.h"
#include "crossmesh/target/detail/evaluate.h"

namespace crossmesh {
namespace {

constexpr std::uint64_t kMix = 0x9e3779b97f4a7c15U;

std::uint64_t mixed(std::uint64_t hash, std::int64_t value) {
  hash = (hash ^ static_cast<std::uint64_t>(value)) * kMix;
  return hash ^ (hash >> 32);
}

std::uint64_t hash_of(const StridedTensor& tensor) {
  std::uint64_t hash = mixed(static_cast<std::uint64_t>(tensor.dtype), tensor.offset);
  for (const std::int64_t size : tensor.sizes) hash = mixed(hash, size);
  for (const std::int64_t stride : tensor.strides) hash = mixed(hash, stride);
  return hash;
}

std::uint64_t hash_of_step(int parent, const Op& op) { return mixed(hash_of(op), parent); }

// The first slot for `hash` that is free or whose index `matches`.
template <typename Slots, typename Matches>
std::size_t probe(const Slots& slots, std::uint64_t hash, const Matches& matches) {
  const std::size_t mask = slots.size() - 1;
  std::size_t slot = static_cast<std::size_t>(hash) & mask;
  while (slots[slot] >= 0 && !matches(slots[slot])) slot = (slot + 1) & mask;
  return slot;
}

// Room for one more of `count` at half load, every index moved to its place by `hash_of_index`.
template <typename Slots, typename HashOfIndex>
void make_room(Slots& slots, std::size_t count, const HashOfIndex& hash_of_index) {
  if (2 * (count + 1) <= slots.size()) return;
  Slots larger(std::max<std::size_t>(64, slots.size() * 2), -1);
  for (const int index : slots) {
    if (index < 0) continue;
    larger[probe(larger, hash_of_index(index), [](int) { return false; })] = index;
  }
  slots = std::move(larger);
}

// A whole tensor is kept like a call on no chain: its dtype and its shape.
Op start_of(DType dtype, std::span<const std::int64_t> shape) {
  return Op(OpKind::view).add_dtype(dtype).add_integers(shape);
}

}  // namespace

std::optional<int> ChainBook::find_step(int parent, const Op& op, std::uint64_t hash) const {
  if (step_slots_.empty()) return std::nullopt;
  const std::size_t slot = probe(step_slots_, hash, [&](int index) {
    if (at(hashes_, index) != hash) return false;
    const Step& step = at(steps_, index);
    return step.parent == parent && step.op == op;
  });
  const int found = step_slots_[slot];
  return found < 0 ? std::nullopt : std::optional<int>(found);
}

int ChainBook::add_step(Step step, std::uint64_t hash) {
  make_room(step_slots_, steps_.size(), [&](int index) { return at(hashes_, index); });
  const int index = chain_count();
  step_slots_[probe(step_slots_, hash, [](int) { return false; })] = index;
  steps_.push_back(std::move(step));
  hashes_.push_back(hash);
  return index;
}

int ChainBook::intern(const StridedTensor& geometry) {
  make_room(geometry_slots_, geometries_.size(),
            [&](int index) { return hash_of(at(geometries_, index)); });
  const std::size_t slot = probe(geometry_slots_, hash_of(geometry),
                                 [&](int index) { return at(geometries_, index) == geometry; });
  if (geometry_slots_[slot] < 0) {
    geometry_slots_[slot] = geometry_count();
    geometries_.push_back(geometry);
  }
  return geometry_slots_[slot];
}

int ChainBook::start(DType dtype, std::span<const std::int64_t> shape) {
  const StridedTensor tensor = fresh_tensor(dtype, shape);
  const Op op = start_of(dtype, shape);
  const std::uint64_t hash = hash_of_step(-1, op);
  if (const std::optional<int> found = find_step(-1, op, hash)) return *found;
  Step step;
  step.geometry = intern(tensor);
  step.op = op;
  return add_step(step, hash);
}

int ChainBook::apply(int chain, const Op& op) {
  std::uint64_t hash = hash_of_step(chain, op);
  if (const std::optional<int> found = find_step(chain, op, hash)) return *found;
  try {
    if (yields_several(op.kind())) {
      throw Error(ErrorCode::invalid_argument,
                  std::string(name_of(op.kind())) + ": it yields several tensors");
    }
    Step step;
    step.parent = chain;
    step.op = op.kind() == OpKind::select ? detail::getitem_of(geometry(chain), op) : op;
    if (op.kind() == OpKind::select) {
      const std::uint64_t getitem_hash = hash_of_step(chain, step.op);
      if (const std::optional<int> found = find_step(chain, step.op, getitem_hash)) return *found;
      hash = getitem_hash;
    }
    const detail::Outcome outcome = detail::evaluate(geometry(chain), step.op);
    step.storage = at(steps_, chain).storage;
    if (outcome.copied) {
      storages_.push_back({step.storage, intern(*outcome.copied)});
      step.storage = static_cast<int>(storages_.size()) - 1;
    }
    step.geometry = intern(outcome.result);
    return add_step(step, hash);
  } catch (Error& error) {
    throw std::move(error)
        .with("call", to_string(op))
        .with("geometry", to_string(geometry(chain)))
        .with("chain", calls(chain));
  }
}

std::span<const int> ChainBook::parts_of(int call) const {
  const Step& step = at(steps_, call);
  return std::span<const int>(parts_).subspan(static_cast<std::size_t>(step.parts),
                                              static_cast<std::size_t>(step.part_count));
}

std::span<const int> ChainBook::apply_several(int chain, const Op& op) {
  const std::uint64_t hash = hash_of_step(chain, op);
  if (const std::optional<int> found = find_step(chain, op, hash)) return parts_of(*found);
  const StridedTensor tensor = geometry(chain);
  std::vector<StridedTensor> results;
  std::vector<Op> narrows;
  try {
    if (!yields_several(op.kind())) {
      throw Error(ErrorCode::invalid_argument,
                  std::string(name_of(op.kind())) + ": it yields one tensor");
    }
    if (op.kind() == OpKind::split) {
      narrows = detail::narrows_of(tensor, op);
    } else {
      results = detail::evaluate_parts(tensor, op);
    }
  } catch (Error& error) {
    throw std::move(error)
        .with("call", to_string(op))
        .with("geometry", to_string(tensor))
        .with("chain", calls(chain));
  }
  std::vector<int> parts;
  for (const Op& narrow : narrows) parts.push_back(apply(chain, narrow));
  Step call;
  call.parent = chain;
  call.op = op;
  call.storage = at(steps_, chain).storage;
  call.parts = static_cast<std::int64_t>(parts_.size());
  call.part_count = static_cast<std::int64_t>(narrows.size() + results.size());
  const int index = add_step(call, hash);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Step part;
    part.parent = index;
    part.op = Op::getitem(static_cast<std::int64_t>(i));
    part.storage = call.storage;
    part.geometry = intern(results[i]);
    parts.push_back(add_step(part, hash_of_step(index, part.op)));
  }
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  return parts_of(index);
}

ElementMap ChainBook::element_map(int chain) const {
  ElementMap map;
  map.result = geometry(chain);
  for (int s = at(steps_, chain).storage; s >= 0; s = at(storages_, s).parent) {
    map.copies.push_back(at(geometries_, at(storages_, s).geometry));
  }
  std::reverse(map.copies.begin(), map.copies.end());
  int whole = chain;
  while (at(steps_, whole).parent >= 0) whole = at(steps_, whole).parent;
  map.tensor = geometry(whole);
  return map;
}

std::string ChainBook::calls(int chain) const {
  std::vector<const Op*> ops;
  for (int step = chain; at(steps_, step).parent >= 0; step = at(steps_, step).parent) {
    ops.push_back(&at(steps_, step).op);
  }
  std::string text = "[";
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    if (op != ops.rbegin()) text += ",";
    text += to_string(**op);
  }
  return text + "]";
}

std::string ChainBook::wire_key(std::string_view tensor_name, int chain) const {
  // Names come from files: the JSON library escapes them, and puts a sign where they are not UTF-8.
  const nlohmann::json name = std::string(tensor_name);
  return "[" + name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "," +
         calls(chain) + "]";
}

}  // namespace crossmesh
