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

FileDescriptor open_of_process(std::int64_t pid, std::int64_t fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  FileDescriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened.get() < 0) {
    throw Error(ErrorCode::io_failed, "floor: cannot open an engine's memory")
        .with("path", path)
        .with("system", std::strerror(errno))
        .hint("--no-floor leaves the floor out");
  }
  return opened;
}

}  // namespace

MoveFloor::MoveFloor(Session& session, int rank, int trainer_count, std::int64_t bytes)
    : rank_(rank), trainer_count_(trainer_count), bytes_(bytes) {
  nlohmann::json own;
  if (!is_trainer() && bytes > 0) {
    source_ = reserve_shared("crossmesh-floor", bytes, PeerAccess::read_write);
    target_ = reserve_private(bytes);
    own = {{"pid", ::getpid()}, {"fd", source_.fd.get()}, {"bytes", bytes}};
  }
  const std::vector<nlohmann::json> all = session.exchange("floor memory", own);
  for (std::size_t r = 0; is_trainer() && r < all.size(); ++r) {
    if (all[r].is_null() || static_cast<int>(r) % trainer_count != rank) continue;
    const FileDescriptor fd = open_of_process(all[r]["pid"], all[r]["fd"]);
    rewritten_.push_back(map_shared(fd.get(), all[r]["bytes"], MapAccess::read_write));
  }
}

double MoveFloor::measure(Session& session, int round) {
  for (const Mapping& mapping : rewritten_) {
    std::memset(mapping.data(), round & 0xff, static_cast<std::size_t>(mapping.bytes()));
  }
  session.exchange("floor written", {});
  nlohmann::json own;
  if (!is_trainer() && bytes_ > 0) {
    const double begin = host_seconds();
    std::memcpy(target_.data(), source_.mapping.data(), static_cast<std::size_t>(bytes_));
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

}  // namespace crossmesh::cli
