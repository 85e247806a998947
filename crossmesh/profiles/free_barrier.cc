// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/profiles/free_barrier.h"

#include <algorithm>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::profiles {
namespace {

Error gather_error(const std::string& why) {
  return Error(ErrorCode::aborted, "serve: the gather errored").with("reason", why);
}

}  // namespace

bool may_gather(int unfreed_count, int lookahead) {
  return unfreed_count <= std::max(lookahead, 0);
}

std::string stall_text(const ProgressWatch& watch, std::int64_t now_ms) {
  return fmt::format("RDT stall: no progress for {} ms, the limit is {} ms", now_ms - watch.last_ms,
                     watch.timeout_ms);
}

int FreeBarrier::begin(int live_count) {
  live_count_ = std::max(live_count, 1);
  names_of_group_.clear();
  served_.clear();
  signals_.clear();
  freed_.clear();
  error_.reset();
  return ++update_;
}

void FreeBarrier::publish(int group, const std::vector<std::string>& names) {
  if (!names_of_group_.emplace(group, names).second) {
    throw Error(ErrorCode::invalid_argument, "publish: the group is already served")
        .with("group", group);
  }
  served_.insert(names.begin(), names.end());
  release_if_done(group);
}

void FreeBarrier::signal(int update, int group) {
  if (update != update_) return;
  ++signals_[group];
  release_if_done(group);
}

void FreeBarrier::release_if_done(int group) {
  const auto served = names_of_group_.find(group);
  if (served == names_of_group_.end() || signal_count(group) < live_count_) return;
  for (const std::string& name : served->second) served_.erase(served_.find(name));
  names_of_group_.erase(served);
  signals_.erase(group);
  freed_.push_back(group);
}

void FreeBarrier::fail(std::string why) {
  if (!error_) error_ = std::move(why);
}

std::optional<std::vector<int>> FreeBarrier::take_freed() {
  if (error_) throw gather_error(*error_);
  if (freed_.empty()) return std::nullopt;
  return std::exchange(freed_, {});
}

std::optional<std::vector<int>> FreeBarrier::finish() {
  if (!error_ && !names_of_group_.empty()) return std::nullopt;
  return std::exchange(freed_, {});
}

bool FreeBarrier::serves(const std::string& name) const {
  if (error_) throw gather_error(*error_);
  return served_.count(name) > 0;
}

std::vector<int> FreeBarrier::in_flight() const {
  std::vector<int> groups;
  for (const auto& [group, names] : names_of_group_) groups.push_back(group);
  return groups;
}

int FreeBarrier::signal_count(int group) const {
  const auto at = signals_.find(group);
  return at == signals_.end() ? 0 : at->second;
}

}  // namespace crossmesh::profiles
