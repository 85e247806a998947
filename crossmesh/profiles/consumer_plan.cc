// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/consumer_plan.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

template <typename Value>
const Value& at(const std::vector<Value>& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

class Planner {
 public:
  Planner(const Router& router, const std::vector<BakedModule>& modules)
      : router_(router), modules_(modules) {}

  ConsumerPlan plan(int consumer) {
    find_modules();
    ConsumerPlan result;
    result.consumer = consumer;
    for (int group = 0; group < static_cast<int>(names_.size()); ++group) {
      const std::size_t before = result.chunks.size();
      cut(group, result.chunks);
      if (result.chunks.size() == before) {
        result.free_first.push_back(group);
      } else {
        result.chunks.back().free.push_back(group);
      }
    }
    mark_modules(result.chunks);
    std::map<int, int> pulls;
    for (Chunk& chunk : result.chunks) {
      pack(chunk);
      chunk.producer = router_.producer_for(consumer, scatter_of(chunk.scatters[0]).key.source);
      chunk.sequence = pulls[chunk.producer]++;
    }
    return result;
  }

 private:
  const Scatter& scatter_of(const PlannedScatter& planned) const {
    return at(at(modules_, planned.module).scatters, planned.scatter);
  }

  // Names by group, and for each name the modules that it feeds.
  void find_modules() {
    const RouterFacts& facts = router_.facts();
    names_.resize(static_cast<std::size_t>(router_.group_count()));
    for (const std::string& name : facts.names) {
      if (!modules_by_name_.emplace(name, std::vector<int>()).second) continue;
      names_.at(static_cast<std::size_t>(router_.group_of(name))).push_back(name);
    }
    for (std::size_t m = 0; m < modules_.size(); ++m) {
      for (const Scatter& scatter : modules_[m].scatters) {
        const auto feeds = modules_by_name_.find(scatter.key.source);
        if (feeds == modules_by_name_.end()) {
          throw Error(ErrorCode::invalid_argument, "plan: a recorded source is not announced")
              .with("source", scatter.key.source)
              .with("module", modules_[m].name);
        }
        if (feeds->second.empty() || feeds->second.back() != static_cast<int>(m)) {
          feeds->second.push_back(static_cast<int>(m));
        }
      }
    }
  }

  // The chunks of one group: one for each owner class, in the order of their numbers.
  void cut(int group, std::vector<Chunk>& chunks) const {
    std::vector<int> reached;
    std::unordered_set<int> is_reached;
    for (const std::string& name : names_[static_cast<std::size_t>(group)]) {
      for (const int module : modules_by_name_.at(name)) {
        if (is_reached.insert(module).second) reached.push_back(module);
      }
    }
    std::map<int, Chunk> chunk_of_class;
    for (const int module : reached) {
      const std::vector<Scatter>& scatters = at(modules_, module).scatters;
      for (std::size_t s = 0; s < scatters.size(); ++s) {
        const std::string& source = scatters[s].key.source;
        if (router_.group_of(source) != group) continue;
        Chunk& chunk = chunk_of_class[router_.class_of(source)];
        chunk.group = group;
        chunk.scatters.push_back({module, static_cast<int>(s), 0});
      }
    }
    for (auto& [owner_class, chunk] : chunk_of_class) chunks.push_back(std::move(chunk));
  }

  // A module is materialised by its first chunk and processed after its last.
  static void mark_modules(std::vector<Chunk>& chunks) {
    std::vector<int> modules;  // in the order of their first chunks
    std::map<int, std::size_t> last_chunk;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (const PlannedScatter& planned : chunks[c].scatters) {
        if (last_chunk.insert_or_assign(planned.module, c).second) {
          chunks[c].materialize.push_back(planned.module);
          modules.push_back(planned.module);
        }
      }
    }
    for (const int module : modules) chunks[last_chunk.at(module)].process.push_back(module);
  }

  void pack(Chunk& chunk) const {
    using Text = std::pair<std::string_view, std::string_view>;
    std::map<Text, int> key_by_text;
    for (PlannedScatter& planned : chunk.scatters) {
      const Scatter& scatter = scatter_of(planned);
      const int next = static_cast<int>(chunk.keys.size());
      const auto [key, is_new] =
          key_by_text.emplace(Text(scatter.key.source, scatter.key.calls), next);
      planned.key = key->second;
      if (is_new) {
        chunk.keys.push_back(scatter.key);
        add_slice(chunk.layout, scatter, planned.module);
      } else {
        check_same_slice(at(chunk.layout.slices, planned.key), scatter, planned.module);
      }
    }
  }

  void add_slice(PackedLayout& layout, const Scatter& scatter, int module) const {
    try {
      layout.add(scatter.dtype, scatter.shape);
    } catch (Error& error) {
      throw error.with("source", scatter.key.source)
          .with("module", at(modules_, module).name)
          .with("parameter", scatter.parameter);
    }
  }

  // A slice is sized once; each copy views it in its own shape.
  void check_same_slice(const PackedSlice& slice, const Scatter& scatter, int module) const {
    PackedLayout alone;
    add_slice(alone, scatter, module);
    if (alone.slices[0].size == slice.size && alone.slices[0].dtype == slice.dtype) return;
    throw Error(ErrorCode::mismatch, "plan: two copies of one slice differ in size or dtype")
        .with("source", scatter.key.source)
        .with("calls", scatter.key.calls)
        .with("module", at(modules_, module).name)
        .with("parameter", scatter.parameter)
        .with("first", fmt::format("{} {}", name_of(slice.dtype), to_string(slice.shape)))
        .with("this", fmt::format("{} {}", name_of(scatter.dtype), to_string(scatter.shape)));
  }

  const Router& router_;
  const std::vector<BakedModule>& modules_;
  std::vector<std::vector<std::string>> names_;
  std::map<std::string_view, std::vector<int>> modules_by_name_;
};

void check_baked(const Router& router, const std::vector<std::string>& live_unbaked) {
  const std::vector<std::string>& names = router.facts().names;
  const std::unordered_set<std::string_view> is_announced(names.begin(), names.end());
  std::string first;
  int count = 0;
  for (const std::string& name : live_unbaked) {
    if (is_announced.count(name) == 0) continue;
    if (++count <= 3) first += (first.empty() ? "" : ", ") + name;
  }
  if (count == 0) return;
  throw Error(ErrorCode::unsupported, "plan: tensors that a loader copies did not bake")
      .with("tensors", count)
      .with("first", first);
}

}  // namespace

ConsumerPlan plan_consumer(const Router& router, int consumer,
                           const std::vector<BakedModule>& modules,
                           const std::vector<std::string>& live_unbaked) {
  check_baked(router, live_unbaked);
  return Planner(router, modules).plan(consumer);
}

std::vector<std::int64_t> serve_bytes(const ConsumerPlan& plan, int producer_count) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(std::max(producer_count, 1)), 0);
  for (const Chunk& chunk : plan.chunks) {
    std::int64_t& most = bytes.at(static_cast<std::size_t>(chunk.producer));
    most = std::max(most, chunk.layout.bytes);
  }
  return bytes;
}

std::int64_t receive_slot_bytes(const ConsumerPlan& plan, std::int64_t presize_bytes) {
  std::int64_t most = 0;
  for (const Chunk& chunk : plan.chunks) most = std::max(most, chunk.layout.bytes);
  return plan.chunks.empty() ? 0 : buffer_alloc_bytes(most, presize_bytes);
}

}  // namespace crossmesh::profiles
