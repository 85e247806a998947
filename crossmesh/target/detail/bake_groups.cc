// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/bake_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/geometry/cover.h"

namespace crossmesh::detail {
namespace {

const BakeParameter& at(std::span<const BakeParameter> parameters, int index) {
  return parameters[static_cast<std::size_t>(index)];
}

StridedRegion region_of(const BakeParameter& parameter) {
  return {parameter.shape, {parameter.offset, parameter.strides}};
}

struct Window {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The bytes between the first and the last that a region reaches.
Window window_of(const StridedRegion& region, DType dtype) {
  const std::int64_t bytes = byte_size(dtype);
  const std::int64_t begin = checked_mul(region.view.offset, bytes);
  const std::int64_t size = storage_elements(region.shape, region.view.strides);
  return {begin, checked_add(begin, checked_mul(size, bytes))};
}

Window window_of(const BakeParameter& parameter) {
  return window_of(region_of(parameter), parameter.dtype);
}

int find_owner(std::span<const BakeParameter> parameters, const BakeGroup& group) {
  for (const int member : group.members) {
    const Window window = window_of(at(parameters, member));
    if (window.begin == group.begin && window.end == group.end) return member;
  }
  Error error(ErrorCode::unsupported, "bake: parameters overlap in part");
  for (const int member : group.members) error.with("parameter", at(parameters, member).name);
  throw error;
}

void check_region(const BakeEvent& event) {
  bool is_sound = event.region.shape.size() == event.region.view.strides.size();
  is_sound = is_sound && event.region.view.offset >= 0 && is_byte_sized(event.dtype);
  for (int d = 0; is_sound && d < event.region.shape.size(); ++d) {
    is_sound = event.region.shape[d] >= 0 && event.region.view.strides[d] >= 0;
  }
  if (is_sound) return;
  throw Error(ErrorCode::invalid_argument, "bake: the region of a write is malformed")
      .with("dtype", name_of(event.dtype))
      .with("region", to_string(event.region));
}

int find_group(const BakeEvent& event, std::span<const BakeGroup> groups,
               std::span<const int> of_storage) {
  const Window window = window_of(event.region, event.dtype);
  const bool is_empty = window.begin == window.end;
  for (const int g : of_storage) {
    const BakeGroup& group = groups[static_cast<std::size_t>(g)];
    if (group.begin <= window.begin && window.end <= group.end) {
      if (is_empty || group.begin < group.end) return g;
    }
  }
  return is_empty && !of_storage.empty() ? of_storage.front() : -1;
}

// Whether each element shows exactly one copy.
bool is_plain(const BakeRecord& record, const BakeGroup& group,
              std::span<const StridedRegion> regions) {
  for (const int e : group.events) {
    const BakeEvent& event = record.events[static_cast<std::size_t>(e)];
    if (event.kind != BakeEvent::Kind::copy && element_count(event.region) > 0) return false;
  }
  return !find_cover_fault(regions, (group.end - group.begin) / group.unit_bytes);
}

}  // namespace

std::int64_t element_count(const StridedRegion& region) { return volume(whole(region.shape)); }

StridedRegion in_units(const StridedRegion& region, DType dtype, std::int64_t unit_bytes,
                       std::int64_t begin) {
  const std::int64_t ratio = byte_size(dtype) / unit_bytes;
  StridedRegion units = region;
  units.view.offset = checked_mul(region.view.offset, ratio) - begin / unit_bytes;
  for (int d = 0; d < region.shape.size(); ++d) {
    units.view.strides[d] = checked_mul(region.view.strides[d], ratio);
  }
  if (ratio == 1) return units;
  if (units.shape.full()) {
    throw Error(ErrorCode::unsupported, "bake: a write has too many dimensions")
        .with("region", to_string(region))
        .with("most", kDimsMax - 1);
  }
  units.shape.push_back(ratio);
  units.view.strides.push_back(1);
  return units;
}

std::vector<BakeGroup> group_parameters(std::span<const BakeParameter> parameters) {
  std::map<int, std::vector<int>> members_of_storage;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    members_of_storage[parameters[p].storage].push_back(static_cast<int>(p));
  }
  std::vector<BakeGroup> groups;
  for (auto& [storage, members] : members_of_storage) {
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return window_of(at(parameters, a)).begin < window_of(at(parameters, b)).begin;
    });
    const std::size_t first_of_storage = groups.size();
    for (const int member : members) {
      const Window window = window_of(at(parameters, member));
      const bool joins = groups.size() > first_of_storage && window.begin < groups.back().end &&
                         window.begin < window.end;
      if (!joins) {
        groups.push_back({});
        groups.back().storage = storage;
        groups.back().begin = window.begin;
        groups.back().end = window.begin;
      }
      groups.back().members.push_back(member);
      groups.back().end = std::max(groups.back().end, window.end);
    }
  }
  for (BakeGroup& group : groups) {
    std::sort(group.members.begin(), group.members.end());
    group.owner = find_owner(parameters, group);
  }
  std::sort(groups.begin(), groups.end(), [](const BakeGroup& a, const BakeGroup& b) {
    return a.members.front() < b.members.front();
  });
  return groups;
}

std::vector<int> place_events(const BakeRecord& record, std::vector<BakeGroup>& groups) {
  std::map<int, std::vector<int>> groups_of_storage;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups_of_storage[groups[g].storage].push_back(static_cast<int>(g));
  }
  std::vector<int> group_of_event;
  for (std::size_t e = 0; e < record.events.size(); ++e) {
    const BakeEvent& event = record.events[e];
    check_region(event);
    const int g = find_group(event, groups, groups_of_storage[event.storage]);
    if (g < 0) {
      Error error(ErrorCode::invalid_argument, "bake: a write lies outside all parameters");
      error.with("storage", event.storage)
          .with("region", fmt::format("{}{}", name_of(event.dtype), to_string(event.region)));
      throw error;
    }
    group_of_event.push_back(g);
    groups[static_cast<std::size_t>(g)].events.push_back(static_cast<int>(e));
    groups[static_cast<std::size_t>(g)].is_written |= element_count(event.region) > 0;
  }
  return group_of_event;
}

void look_through(const BakeRecord& record, BakeGroup& group) {
  const BakeParameter& owner = at(record.parameters, group.owner);
  group.unit_bytes = byte_size(owner.dtype);
  const auto event_at = [&](std::size_t i) -> const BakeEvent& {
    return record.events[static_cast<std::size_t>(group.events[i])];
  };
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    group.unit_bytes = std::min(group.unit_bytes, byte_size(event_at(i).dtype));
  }
  std::vector<StridedRegion> regions;
  for (std::size_t i = 0; i < group.events.size(); ++i) {
    regions.push_back(
        in_units(event_at(i).region, event_at(i).dtype, group.unit_bytes, group.begin));
  }
  if (is_plain(record, group, regions)) return;
  group.is_mixed = true;
  regions.push_back(in_units(region_of(owner), owner.dtype, group.unit_bytes, group.begin));
  const DigitSpace& space = group.space.emplace_back(regions);
  const auto all = space.boxes_of(regions.back());
  group.left = all.value_or(std::vector<Box>());
  group.is_whole_opaque = !all;
  for (std::size_t i = 0; i < group.events.size() && !group.is_whole_opaque; ++i) {
    auto boxes = space.boxes_of(regions[i]);
    group.is_whole_opaque = !boxes;
    group.boxes.push_back(std::move(boxes).value_or(std::vector<Box>()));
  }
  group.boxes.resize(group.events.size());
  group.shown.resize(group.events.size());
  if (group.is_whole_opaque) return;
  for (std::size_t i = group.events.size(); i-- > 0;) {
    group.shown[i] = intersect(group.boxes[i], group.left);
    for (const Box& box : group.boxes[i]) group.left = subtract(group.left, box);
  }
}

}  // namespace crossmesh::detail
