// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/bake.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "crossmesh/base/error.h"
#include "crossmesh/layout/interner.h"
#include "crossmesh/target/detail/bake_groups.h"
#include "crossmesh/target/detail/copy_classes.h"

namespace crossmesh {
namespace {

using detail::BakeGroup;
using detail::LoweredClass;
using Kind = BakeEvent::Kind;

class Baker {
 public:
  Baker(const BakeRecord& record, const ChainBook& book)
      : record_(record),
        book_(book),
        interner_(result_.layout),
        reason_of_tensor_(record.tensors.size()),
        reason_of_event_(record.events.size()),
        lowered_(record.events.size()),
        copy_classes_(book, interner_) {}

  BakeResult bake() {
    result_.layout.rank_count = 1;
    result_.layout.replica_of_rank = {0};
    here_ = interner_.binding({{0}});
    groups_ = detail::group_parameters(record_.parameters);
    group_of_event_ = detail::place_events(record_, groups_);
    for (BakeGroup& group : groups_) detail::look_through(record_, group);
    for (const BakeRefusal& refusal : record_.refusals) make_opaque(refusal.tensor, refusal.reason);
    for (std::size_t e = 0; e < record_.events.size(); ++e) judge(static_cast<int>(e));
    judge_hidden();
    close();
    add_parameters();
    add_instances();
    tell_fates();
    check(result_.layout);
    return std::move(result_);
  }

 private:
  const BakeEvent& event_at(int e) const { return record_.events[static_cast<std::size_t>(e)]; }
  const TensorInfo& tensor_at(int t) const { return record_.tensors[static_cast<std::size_t>(t)]; }
  BakeGroup& group_of(int e) {
    return groups_[static_cast<std::size_t>(group_of_event_[static_cast<std::size_t>(e)])];
  }
  const std::string& name_of_group(const BakeGroup& group) const {
    return record_.parameters[static_cast<std::size_t>(group.owner)].name;
  }
  std::string& event_reason(int e) { return reason_of_event_[static_cast<std::size_t>(e)]; }
  bool is_opaque(int tensor) const {
    return !reason_of_tensor_[static_cast<std::size_t>(tensor)].empty();
  }

  bool make_opaque(int tensor, const std::string& reason) {
    std::string& known = reason_of_tensor_[static_cast<std::size_t>(tensor)];
    if (!known.empty()) return false;
    known = reason;
    return true;
  }

  // The tensors without which the loader would not make this write.
  std::vector<int> actors(const BakeEvent& event) const {
    std::vector<int> actors = event.tensors;
    if (event.tensor >= 0) actors.push_back(event.tensor);
    if (event.source >= 0) actors.push_back(event.source);
    std::sort(actors.begin(), actors.end());
    actors.erase(std::unique(actors.begin(), actors.end()), actors.end());
    return actors;
  }

  void judge(int e);
  void judge_hidden();
  void close();
  bool spread(int e);
  bool close_group(BakeGroup& group);
  bool overlaps_in_part(const BakeGroup& group) const;
  void add_parameters();
  std::vector<Reserve> reserves_of(const BakeGroup& group);
  void add_reserves(const BakeGroup& group, const std::vector<Box>& boxes, const Reserve& as,
                    std::vector<Reserve>& reserves) const;
  void add_instances();
  void add_direct(int e);
  void add_opaque(int tensor, const BakeGroup& group, const StridedRegion& region, DType dtype);
  void tell_fates();
  int layout_tensor(int tensor, DType dtype);

  const BakeRecord& record_;
  const ChainBook& book_;
  BakeResult result_;
  Interner interner_;
  int here_ = 0;
  std::vector<BakeGroup> groups_;
  std::vector<int> group_of_event_;
  std::vector<std::string> reason_of_tensor_;
  std::vector<std::string> reason_of_event_;  // of an opaque event
  std::vector<LoweredClass> lowered_;         // of copies
  std::vector<bool> is_hidden_ = std::vector<bool>(record_.events.size(), false);
  detail::CopyClasses copy_classes_;
  std::vector<int> parameter_of_record_ = std::vector<int>(record_.parameters.size(), -1);
  std::vector<int> tensor_of_record_ = std::vector<int>(record_.tensors.size(), -1);
  std::map<std::string, int> index_of_reason_;
  std::set<std::tuple<int, int, std::int64_t, int>> opaque_instances_;
};

// -- What each event is by itself ----------------------------------------------------------------

void Baker::judge(int e) {
  const BakeEvent& event = event_at(e);
  const BakeGroup& group = group_of(e);
  std::string& reason = event_reason(e);
  if (group.is_whole_opaque) {
    reason = fmt::format("the regions of {} are too many to tell apart", name_of_group(group));
  } else if (event.kind == Kind::write) {
    reason = event.reason;
  } else if (event.kind == Kind::fill) {
    const BakeParameter& owner = record_.parameters[static_cast<std::size_t>(group.owner)];
    if (event.dtype != owner.dtype && detail::element_count(event.region) > 0) {
      reason = fmt::format("a fill as {}", name_of(event.dtype));
    }
  } else {
    LoweredClass& copy = lowered_[static_cast<std::size_t>(e)];
    try {
      copy = copy_classes_.find(event);
    } catch (Error& error) {
      throw error.with("tensor", tensor_at(event.source).name)
          .with("parameter", name_of_group(group))
          .with("chain", book_.calls(event.chain));
    }
    const std::int64_t bytes = event.region.view.offset * byte_size(event.dtype) - group.begin;
    if (!copy.reason.empty()) {
      reason = copy.reason;
    } else if (bytes % byte_size(copy.dtype) != 0) {
      reason = "the copy moves parts of elements";
    }
  }
}

// Copies that are hidden whole are dropped; in part, and nothing says what is left of them.
void Baker::judge_hidden() {
  const auto volume_of = [](const std::vector<Box>& boxes) {
    std::int64_t sum = 0;
    for (const Box& box : boxes) sum += volume(box);
    return sum;
  };
  for (BakeGroup& group : groups_) {
    if (!group.is_mixed || group.is_whole_opaque) continue;
    for (std::size_t i = 0; i < group.events.size(); ++i) {
      const int e = group.events[i];
      const std::int64_t shown = volume_of(group.shown[i]);
      if (shown == 0 && !group.boxes[i].empty()) {
        is_hidden_[static_cast<std::size_t>(e)] = true;
        // What a hidden write holds is nowhere to be seen.
        if (event_at(e).kind == Kind::write) event_reason(e).clear();
      } else if (event_at(e).kind == Kind::copy && shown < volume_of(group.boxes[i]) &&
                 event_reason(e).empty()) {
        event_reason(e) = "later writes hide a part of the copy";
      }
    }
  }
}

// -- What is opaque with what --------------------------------------------------------------------

// An event whose tensors go to the loader is the loader's, and so are all that take part in it.
bool Baker::spread(int e) {
  const BakeEvent& event = event_at(e);
  std::string& reason = event_reason(e);
  const std::vector<int> tensors = actors(event);
  if (reason.empty()) {
    const auto opaque =
        std::find_if(tensors.begin(), tensors.end(), [&](int tensor) { return is_opaque(tensor); });
    if (opaque == tensors.end()) return false;
    const std::string& why = reason_of_tensor_[static_cast<std::size_t>(*opaque)];
    reason = tensors.size() == 1 ? why : fmt::format("takes {}: {}", tensor_at(*opaque).name, why);
  }
  bool changed = false;
  for (const int tensor : tensors) changed |= make_opaque(tensor, reason);
  return changed;
}

bool Baker::overlaps_in_part(const BakeGroup& group) const {
  std::vector<const std::vector<Box>*> regions;
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    const int e = group.events[i];
    if (reason_of_event_[static_cast<std::size_t>(e)].empty() || actors(event_at(e)).empty()) {
      continue;
    }
    for (const std::vector<Box>* other : regions) {
      if (*other != group.boxes[i] && detail::meet(*other, group.boxes[i])) return true;
    }
    regions.push_back(&group.boxes[i]);
  }
  return false;
}

bool Baker::close_group(BakeGroup& group) {
  if (!group.is_mixed || group.is_whole_opaque) return false;
  bool changed = false;
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    const std::string& why = event_reason(group.events[i]);
    if (why.empty()) continue;
    for (std::size_t j = 0; j < group.events.size(); ++j) {
      std::string& reason = event_reason(group.events[j]);
      const BakeEvent& other = event_at(group.events[j]);
      // An earlier constant is put in place before the loader runs.
      const bool is_apart = other.kind == Kind::fill && j < i;
      if (!reason.empty() || is_apart || actors(other).empty()) continue;
      if (!detail::meet(group.boxes[i], group.boxes[j])) continue;
      reason = fmt::format("shares elements of {}: {}", name_of_group(group), why);
      changed = true;
    }
  }
  if (!changed && overlaps_in_part(group)) {
    group.is_whole_opaque = true;
    for (const int e : group.events) {
      if (event_reason(e).empty()) {
        event_reason(e) = fmt::format("the loader's regions of {} overlap", name_of_group(group));
      }
    }
    changed = true;
  }
  return changed;
}

void Baker::close() {
  // Pieces of one tensor tell its elements in one dtype.
  std::vector<int> first_copy(record_.tensors.size(), -1);
  for (std::size_t e = 0; e < record_.events.size(); ++e) {
    const BakeEvent& event = record_.events[e];
    if (event.kind != Kind::copy || !reason_of_event_[e].empty()) continue;
    int& first = first_copy[static_cast<std::size_t>(event.source)];
    if (first < 0) first = static_cast<int>(e);
    const DType dtype = lowered_[static_cast<std::size_t>(first)].dtype;
    if (dtype == lowered_[e].dtype) continue;
    make_opaque(event.source, fmt::format("it is copied as {} and as {}", name_of(dtype),
                                          name_of(lowered_[e].dtype)));
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t e = 0; e < record_.events.size(); ++e) changed |= spread(static_cast<int>(e));
    for (BakeGroup& group : groups_) changed |= close_group(group);
  }
}

// -- The layout ----------------------------------------------------------------------------------

void Baker::add_reserves(const BakeGroup& group, const std::vector<Box>& boxes, const Reserve& as,
                         std::vector<Reserve>& reserves) const {
  const BakeParameter& owner = record_.parameters[static_cast<std::size_t>(group.owner)];
  const std::int64_t ratio = byte_size(owner.dtype) / group.unit_bytes;
  for (const Box& box : boxes) {
    StridedRegion region = group.space.front().region_of(box);
    if (ratio > 1) {
      // Whole elements: the units of one are the innermost dimension.
      const int last = region.shape.size() - 1;
      const bool is_whole = last >= 0 && region.view.strides[last] == 1 &&
                            region.shape[last] % ratio == 0 && region.view.offset % ratio == 0;
      if (!is_whole) {
        throw Error(ErrorCode::unsupported, "bake: a part of an element is written by itself")
            .with("parameter", owner.name)
            .with("region", to_string(region));
      }
      region.view.offset /= ratio;
      region.shape[last] /= ratio;
      for (int d = 0; d < last; ++d) region.view.strides[d] /= ratio;
    }
    Reserve reserve = as;
    reserve.region = region;
    reserves.push_back(std::move(reserve));
  }
}

std::vector<Reserve> Baker::reserves_of(const BakeGroup& group) {
  std::vector<Reserve> reserves;
  if (!group.is_mixed) return reserves;
  std::vector<Box> taken;  // by the loader
  bool is_all_taken = false;
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    const int e = group.events[i];
    if (event_reason(e).empty() || actors(event_at(e)).empty()) continue;
    is_all_taken |= group.is_whole_opaque;
    taken.insert(taken.end(), group.boxes[i].begin(), group.boxes[i].end());
  }
  if (is_all_taken) return reserves;
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    const int e = group.events[i];
    const BakeEvent& event = event_at(e);
    const bool derives = event.kind == Kind::write && actors(event).empty();
    if (event.kind != Kind::fill && !derives) continue;
    if (event.kind == Kind::fill && !event_reason(e).empty()) continue;
    std::vector<Box> boxes = group.shown[i];
    for (const Box& box : taken) boxes = detail::subtract(boxes, box);
    if (boxes.empty()) continue;
    if (derives) result_.needs_loader = true;
    const Reserve::Kind kind = derives ? Reserve::Kind::derived : Reserve::Kind::fill;
    const std::string reason = derives ? event.reason : "the loader fills it";
    add_reserves(group, boxes, {kind, 0, {}, event.value_bits, reason}, reserves);
  }
  add_reserves(group, group.left, {Reserve::Kind::kept, 0, {}, 0, "no tensor feeds it"}, reserves);
  return reserves;
}

void Baker::add_parameters() {
  for (const BakeGroup& group : groups_) {
    const auto is_listed = [&](int member) {
      return group.is_written || !record_.parameters[static_cast<std::size_t>(member)].is_buffer;
    };
    if (std::none_of(group.members.begin(), group.members.end(), is_listed)) continue;
    const auto add = [&](int member, std::vector<Reserve> reserves, int storage) {
      const BakeParameter& p = record_.parameters[static_cast<std::size_t>(member)];
      const int c =
          interner_.parameter_class({p.dtype, {p.shape}, {p.strides}, std::move(reserves)});
      const int index = static_cast<int>(result_.layout.parameters.size());
      result_.layout.parameters.push_back({p.name, c, here_, storage < 0 ? index : storage});
      parameter_of_record_[static_cast<std::size_t>(member)] = index;
      return index;
    };
    const int owner = add(group.owner, reserves_of(group), -1);
    for (const int member : group.members) {
      const BakeParameter& p = record_.parameters[static_cast<std::size_t>(member)];
      // A name further inside is a view: what is written through it lies in the owner.
      const bool is_tied = p.offset * byte_size(p.dtype) == group.begin;
      if (member != group.owner && is_tied && is_listed(member)) add(member, {}, owner);
    }
  }
}

int Baker::layout_tensor(int tensor, DType dtype) {
  int& index = tensor_of_record_[static_cast<std::size_t>(tensor)];
  if (index < 0) {
    index = static_cast<int>(result_.layout.tensors.size());
    result_.layout.tensors.push_back(tensor_at(tensor));
    result_.layout.tensors.back().dtype = dtype;
  }
  return index;
}

void Baker::add_direct(int e) {
  const BakeEvent& event = event_at(e);
  const BakeGroup& group = group_of(e);
  const LoweredClass& copy = lowered_[static_cast<std::size_t>(e)];
  const std::int64_t bytes = event.region.view.offset * byte_size(event.dtype) - group.begin;
  result_.layout.instances.push_back(
      {layout_tensor(event.source, copy.dtype),
       parameter_of_record_[static_cast<std::size_t>(group.owner)], copy.layout_class, here_,
       detail::element_count(event.region) == 0 ? 0 : bytes / byte_size(copy.dtype), -1});
}

void Baker::add_opaque(int tensor, const BakeGroup& group, const StridedRegion& region,
                       DType dtype) {
  const std::string& reason = reason_of_tensor_[static_cast<std::size_t>(tensor)];
  const auto [at, is_new] =
      index_of_reason_.emplace(reason, static_cast<int>(result_.layout.reasons.size()));
  if (is_new) result_.layout.reasons.push_back(reason);
  std::vector<Piece> pieces;
  Space space = Space::plain(region.shape.span());
  if (detail::element_count(region) > 0) {
    pieces.push_back({whole(region.shape), {0, region.view.strides}});
  }
  const int c = interner_.layout_class({space, dtype, {pieces}});
  const std::int64_t bytes = region.view.offset * byte_size(dtype) - group.begin;
  const std::int64_t offset = pieces.empty() ? 0 : bytes / byte_size(dtype);
  const int parameter = parameter_of_record_[static_cast<std::size_t>(group.owner)];
  if (!opaque_instances_.insert({tensor, parameter, offset, c}).second) return;
  result_.layout.instances.push_back(
      {layout_tensor(tensor, tensor_at(tensor).dtype), parameter, c, here_, offset, at->second});
}

void Baker::add_instances() {
  for (std::size_t e = 0; e < record_.events.size(); ++e) {
    const BakeEvent& event = record_.events[e];
    const BakeGroup& group = group_of(static_cast<int>(e));
    if (parameter_of_record_[static_cast<std::size_t>(group.owner)] < 0) continue;
    if (reason_of_event_[e].empty()) {
      if (event.kind == Kind::copy && !is_hidden_[e]) add_direct(static_cast<int>(e));
      continue;
    }
    const BakeParameter& owner = record_.parameters[static_cast<std::size_t>(group.owner)];
    for (const int tensor : actors(event)) {
      if (group.is_whole_opaque) {
        add_opaque(tensor, group, {owner.shape, {owner.offset, owner.strides}}, owner.dtype);
      } else {
        add_opaque(tensor, group, event.region, event.dtype);
      }
    }
  }
  // A tensor that the loader uses without writing it anywhere.
  for (std::size_t t = 0; t < record_.tensors.size(); ++t) {
    if (reason_of_tensor_[t].empty() || tensor_of_record_[t] >= 0) continue;
    const auto listed = std::find_if(groups_.begin(), groups_.end(), [&](const BakeGroup& group) {
      return parameter_of_record_[static_cast<std::size_t>(group.owner)] >= 0;
    });
    if (listed == groups_.end()) continue;
    add_opaque(static_cast<int>(t), *listed, {{0}, {0, {1}}},
               record_.parameters[static_cast<std::size_t>(listed->owner)].dtype);
  }
}

void Baker::tell_fates() {
  result_.tensors.resize(record_.tensors.size());
  for (std::size_t e = 0; e < record_.events.size(); ++e) {
    const BakeEvent& event = record_.events[e];
    if (event.kind != Kind::copy) continue;
    BakedTensor& tensor = result_.tensors[static_cast<std::size_t>(event.source)];
    if (!is_hidden_[e]) {
      tensor = {Fate::baked, {}};
    } else if (tensor.fate == Fate::never_copied) {
      tensor = {Fate::overwritten, fmt::format("later copies hide it in {}",
                                               name_of_group(group_of(static_cast<int>(e))))};
    }
  }
  for (std::size_t t = 0; t < record_.tensors.size(); ++t) {
    BakedTensor& tensor = result_.tensors[t];
    if (!reason_of_tensor_[t].empty()) tensor = {Fate::opaque, reason_of_tensor_[t]};
    if (tensor.fate == Fate::never_copied) {
      result_.layout.unused.push_back({record_.tensors[t].name, "the loader copies it nowhere"});
    } else if (tensor.fate == Fate::overwritten) {
      result_.layout.unused.push_back({record_.tensors[t].name, tensor.reason});
    }
  }
}

}  // namespace

std::string_view name_of(Fate fate) {
  switch (fate) {
    case Fate::never_copied:
      return "never_copied";
    case Fate::baked:
      return "baked";
    case Fate::overwritten:
      return "overwritten";
    case Fate::opaque:
      return "opaque";
  }
  return "";
}

BakeResult bake(const BakeRecord& record, const ChainBook& book) {
  return Baker(record, book).bake();
}

}  // namespace crossmesh
