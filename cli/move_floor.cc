// SPDX-License-Identifier: Apache-2.0
#include "cli/move_floor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "crossmesh/base/error.h"

namespace crossmesh::cli {
namespace {

// Seconds of a clock that all processes of a host share.
double host_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Another process's memory, as it told: {pid, fd, bytes}.
Mapping map_of_process(const nlohmann::json& told, MapAccess access) {
  const std::string path = fmt::format("/proc/{}/fd/{}", told.at("pid").get<std::int64_t>(),
                                       told.at("fd").get<std::int64_t>());
  const int flags = access == MapAccess::read_write ? O_RDWR : O_RDONLY;
  const FileDescriptor opened(::open(path.c_str(), flags | O_CLOEXEC));
  if (opened.get() < 0) {
    throw Error(ErrorCode::io_failed, "floor: cannot open another rank's memory")
        .with("path", path)
        .with("system", std::strerror(errno))
        .hint("--no-floor leaves the floor out");
  }
  return map_shared(opened.get(), told.at("bytes"), access);
}

// A loop over the runs, each by one memcpy.
void copy_runs(const std::byte* source, std::byte* target, const LoopNest& nest, int loop = 0) {
  if (loop == nest.counts.size()) {
    std::memcpy(target, source,
                static_cast<std::size_t>(nest.run_count) *
                    static_cast<std::size_t>(nest.source_element_bytes));
    return;
  }
  for (std::int64_t i = 0; i < nest.counts[loop]; ++i) {
    copy_runs(source + i * nest.source_strides[loop], target + i * nest.target_strides[loop], nest,
              loop + 1);
  }
}

LoopNest nest_of(const Step& step, DType dtype) {
  const auto width = static_cast<std::int32_t>(byte_size(dtype));
  return coalesce({step.counts, step.source.strides, step.target.strides, width, width});
}

}  // namespace

double Floor::measure(Session& session, int round) {
  rewrite(round);
  session.exchange("floor written", {});
  nlohmann::json own;
  if (copies()) {
    const double begin = host_seconds();
    copy();
    own = {{"begin", begin}, {"end", host_seconds()}};
  }
  double begin = 0, end = 0;
  bool any = false;
  for (const nlohmann::json& span : session.exchange("floor", own)) {
    if (span.is_null()) continue;
    begin = any ? std::min(begin, span["begin"].get<double>()) : span["begin"].get<double>();
    end = any ? std::max(end, span["end"].get<double>()) : span["end"].get<double>();
    any = true;
  }
  return end - begin;
}

MemcpyFloor::MemcpyFloor(Session& session, int rank, int trainer_count, std::int64_t bytes) {
  const bool is_trainer = rank < trainer_count;
  nlohmann::json own;
  if (!is_trainer && bytes > 0) {
    source_ = reserve_shared("crossmesh-floor", bytes, PeerAccess::read_write);
    target_ = reserve_private(bytes);
    own = {{"pid", ::getpid()}, {"fd", source_.fd.get()}, {"bytes", bytes}};
  }
  const std::vector<nlohmann::json> all = session.exchange("floor memory", own);
  for (std::size_t r = 0; is_trainer && r < all.size(); ++r) {
    if (all[r].is_null() || static_cast<int>(r) % trainer_count != rank) continue;
    rewritten_.push_back(map_of_process(all[r], MapAccess::read_write));
  }
}

void MemcpyFloor::rewrite(int round) {
  for (const Mapping& mapping : rewritten_) {
    std::memset(mapping.data(), round & 0xff, static_cast<std::size_t>(mapping.bytes()));
  }
}

void MemcpyFloor::copy() {
  std::memcpy(target_.data(), source_.mapping.data(), static_cast<std::size_t>(target_.bytes()));
}

RunsFloor::RunsFloor(Session& session, int rank, int trainer_count, const ParameterMemory& memory) {
  const bool is_trainer = rank < trainer_count;
  const Buffer& buffer = memory.buffers.at(0);
  // Both: an engine reads where trainers' parameters lie, and its own.
  nlohmann::json own = {
      {"pid", ::getpid()}, {"fd", buffer.shareable_fd}, {"bytes", buffer.size_bytes}};
  for (const ParameterPlace& place : memory.places) own["places"].push_back(place.offset_bytes);
  const std::vector<nlohmann::json> all = session.exchange("floor memory", own);
  if (is_trainer && buffer.size_bytes > 0 && buffer.shareable_fd < 0) {
    throw Error(ErrorCode::unsupported, "floor: another process cannot loop over private memory")
        .with("rank", rank)
        .hint("--way memfd, or --floor memcpy");
  }
  if (is_trainer) weights_ = buffer;
  if (is_trainer) return;
  for (int r = 0; r < trainer_count; ++r) {
    const nlohmann::json& told = all[static_cast<std::size_t>(r)];
    sources_.push_back(told.at("bytes") == 0 ? Mapping()
                                             : map_of_process(told, MapAccess::read_only));
  }
  target_ = reserve_private(buffer.size_bytes);
  const Schedule& schedule = session.schedule();
  for (const auto& steps : expand(schedule, Side::target, rank - trainer_count).steps_of_group) {
    for (const Step& step : steps) {
      const PlanInstance& instance =
          schedule.plan.instances[static_cast<std::size_t>(step.instance)];
      const DType dtype = source_dtype(schedule.plan, instance);
      if (step.whole_tensor || dtype != target_dtype(schedule.plan, instance)) {
        throw Error(ErrorCode::unsupported, "floor: only copies as they are can be looped over")
            .hint("--floor memcpy");
      }
      const std::int64_t width = byte_size(dtype);
      const auto peer = static_cast<std::size_t>(step.peer);
      const std::int64_t there =
          all[peer].at("places")[static_cast<std::size_t>(step.source_parameter)];
      const std::int64_t here =
          memory.places[static_cast<std::size_t>(step.target_parameter)].offset_bytes;
      copies_.push_back({sources_[peer].data() + there + step.source.offset * width,
                         target_.data() + here + step.target.offset * width, nest_of(step, dtype)});
    }
  }
}

void RunsFloor::rewrite(int round) {
  if (weights_.size_bytes == 0) return;
  std::memset(weights_.data, round & 0xff, static_cast<std::size_t>(weights_.size_bytes));
}

void RunsFloor::copy() {
  for (const Copy& one : copies_) copy_runs(one.source, one.target, one.nest);
}

}  // namespace crossmesh::cli
