// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/transport/detail/enrolment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

Announcement about_file(int file, int fd) {
  return {{.kind = MessageKind::file, .file = file}, fd};
}

Announcement about_region(Region region, const Buffer& buffer, int file) {
  Message message{.kind = MessageKind::region, .region = region, .file = file};
  message.size_bytes = buffer.size_bytes;
  message.address = reinterpret_cast<std::uintptr_t>(buffer.data);
  if (file >= 0) message.offset_bytes = buffer.shareable_offset_bytes;
  return {message};
}

struct stat status_of(const Buffer& buffer) {
  struct stat status {};
  if (::fstat(buffer.shareable_fd, &status) != 0) {
    throw Error(ErrorCode::invalid_argument, "enroll: the buffer's file cannot be looked at")
        .with("system", std::generic_category().message(errno));
  }
  const std::int64_t room = status.st_size - buffer.shareable_offset_bytes;
  if (buffer.shareable_offset_bytes < 0 || room < buffer.size_bytes) {
    throw Error(ErrorCode::invalid_argument, "enroll: the buffer leaves its file")
        .with("offset_bytes", buffer.shareable_offset_bytes)
        .with("size_bytes", buffer.size_bytes)
        .with("file_bytes", static_cast<std::int64_t>(status.st_size));
  }
  return status;
}

}  // namespace

Region Enrolment::add(const Buffer& buffer) {
  const Region region = static_cast<Region>(regions_.size());
  if (buffer.data == nullptr || buffer.size_bytes <= 0) {
    throw Error(ErrorCode::invalid_argument, "enroll: the buffer is empty")
        .with("region", region)
        .with("size_bytes", buffer.size_bytes);
  }
  int file = -1;
  const bool maps_files =
      !shares_addresses_ && (way_ == ShmWay::automatic || way_ == ShmWay::memfd);
  if (maps_files && buffer.shareable_fd >= 0) {
    const struct stat status = status_of(buffer);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const OwnFile& known = files_[i];
      if (known.use_count > 0 && known.device == status.st_dev && known.inode == status.st_ino) {
        file = static_cast<int>(i);
      }
    }
    if (file < 0) {
      FileDescriptor fd(::fcntl(buffer.shareable_fd, F_DUPFD_CLOEXEC, 0));
      if (fd.get() < 0) {
        throw Error(ErrorCode::io_failed, "enroll: the system gives no more descriptors")
            .with("system", std::generic_category().message(errno));
      }
      file = static_cast<int>(files_.size());
      news_.push_back(about_file(file, fd.get()));
      files_.push_back({status.st_dev, status.st_ino, 0, std::move(fd)});
    }
    ++files_[static_cast<std::size_t>(file)].use_count;
  }
  ++changes_;
  regions_.push_back({buffer, file, true});
  news_.push_back(about_region(region, buffer, file));
  return region;
}

void Enrolment::remove(Region region) {
  OwnRegion& own = regions_[static_cast<std::size_t>(region)];
  news_.push_back({{.kind = MessageKind::retire, .region = region}});
  ++changes_;
  own.is_live = false;
  if (own.file < 0) return;
  OwnFile& file = files_[static_cast<std::size_t>(own.file)];
  if (--file.use_count > 0) return;
  news_.push_back({{.kind = MessageKind::forget, .file = own.file}});
  file.fd = FileDescriptor();
}

const Buffer* Enrolment::find(Region region) const {
  if (region < 0 || static_cast<std::size_t>(region) >= regions_.size()) return nullptr;
  const OwnRegion& own = regions_[static_cast<std::size_t>(region)];
  return own.is_live ? &own.buffer : nullptr;
}

bool Enrolment::is_reachable(Region region) const {
  return shares_addresses_ || way_ != ShmWay::memfd || is_mapped(region);
}

bool Enrolment::is_mapped(Region region) const {
  return regions_[static_cast<std::size_t>(region)].file >= 0;
}

std::vector<Announcement> Enrolment::take_news() { return std::exchange(news_, {}); }

std::vector<Announcement> Enrolment::all() const {
  std::vector<Announcement> announcements;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].use_count == 0) continue;
    announcements.push_back(about_file(static_cast<int>(i), files_[i].fd.get()));
  }
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const auto region = static_cast<Region>(i);
    if (!regions_[i].is_live) continue;
    announcements.push_back(about_region(region, regions_[i].buffer, regions_[i].file));
  }
  return announcements;
}

}  // namespace crossmesh::detail
