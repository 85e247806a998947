// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/write.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "crossmesh/base/checked.h"
#include "crossmesh/base/error.h"
#include "crossmesh/catalog/detail/text.h"
#include "crossmesh/catalog/shard_index.h"

namespace crossmesh {
namespace {

using catalog_detail::printable;

constexpr std::string_view kPartialSuffix = ".partial";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

Error system_refusal(std::string_view what, const std::filesystem::path& path, int number) {
  return Error(ErrorCode::io_failed, fmt::format("write: {}", what))
      .with("reason", std::generic_category().message(number))
      .with("file", path.string());
}

// A file under its partial name; unlinked unless it is published.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path)
      : path_(std::move(path)), partial_(path_.string() + std::string(kPartialSuffix)) {
    file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) throw system_refusal("cannot make a file", partial_, errno);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (file_ >= 0) ::close(file_);
    if (!is_published_) ::unlink(partial_.c_str());
  }

  const std::filesystem::path& path() const { return path_; }

  // Takes the space now, where the file system can, so that a full disk shows first.
  void reserve(std::int64_t bytes) {
    if (bytes == 0 || ::fallocate(file_, 0, 0, bytes) == 0) return;
    const int error = errno;
    if (error == EOPNOTSUPP || error == ENOSYS || error == EINTR) return;
    throw system_refusal("cannot reserve a file", partial_, error).with("file_bytes", bytes);
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        throw system_refusal("cannot write a file", partial_, errno)
            .with("offset", written_bytes_)
            .with("bytes", bytes.size());
      }
      written_bytes_ += written;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void seal() {
    // Some file systems say only here that the bytes had no room.
    if (::close(std::exchange(file_, -1)) != 0) {
      throw system_refusal("cannot close a file", partial_, errno);
    }
  }

  void publish() {
    if (::rename(partial_.c_str(), path_.c_str()) != 0) {
      throw system_refusal("cannot name a file", path_, errno);
    }
    is_published_ = true;
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  int file_ = -1;
  std::int64_t written_bytes_ = 0;
  bool is_published_ = false;
};

[[noreturn]] void refuse_excess(std::size_t bytes, std::int64_t remaining_bytes) {
  throw Error(ErrorCode::invalid_argument, "write: there are more bytes than planned")
      .with("bytes", bytes)
      .with("remaining_bytes", remaining_bytes);
}

// What the format's own writers and this one leave in a folder.
bool is_checkpoint_file(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

std::vector<std::filesystem::path> checkpoint_files(const std::filesystem::path& folder) {
  std::error_code failure;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure)) {
    if (is_checkpoint_file(at->path().filename().string())) files.push_back(at->path());
  }
  if (failure) throw system_refusal("cannot list a folder", folder, failure.value());
  std::sort(files.begin(), files.end());
  return files;
}

// The first tensor of each shard, and the tensor count at the end. Every shard has a tensor.
std::vector<std::size_t> deal(std::span<const TensorInfo> tensors, int shard_count) {
  const auto shards = static_cast<std::size_t>(shard_count);
  std::int64_t total = 0;
  for (const TensorInfo& tensor : tensors) total = checked_add(total, byte_count(tensor));
  std::vector<std::size_t> firsts = {0};
  std::int64_t before = 0;
  for (std::size_t i = 0; i < tensors.size() && firsts.size() < shards; ++i) {
    const std::size_t shard = firsts.size();
    // Written so that it does not overflow: share = total * shard / shards.
    const std::int64_t share = total / shard_count * static_cast<std::int64_t>(shard);
    const bool must_begin = tensors.size() - i == shards - shard;
    if (i > firsts.back() && (must_begin || before >= share)) firsts.push_back(i);
    before += byte_count(tensors[i]);
  }
  firsts.push_back(tensors.size());
  return firsts;
}

}  // namespace

struct FileWriter::State {
  State(std::filesystem::path path, std::vector<TensorInfo> planned)
      : file(std::move(path)), tensors(std::move(planned)) {}

  PartialFile file;
  std::vector<TensorInfo> tensors;
  std::int64_t data_bytes = 0;
  std::int64_t appended_bytes = 0;
};

FileWriter::FileWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                       const Metadata& metadata) {
  const std::string header = encode_header(tensors, metadata);
  state_ = std::make_unique<State>(std::move(path), std::move(tensors));
  for (const TensorInfo& tensor : state_->tensors) {
    state_->data_bytes = checked_add(state_->data_bytes, byte_count(tensor));
  }
  state_->file.reserve(checked_add(std::ssize(header), state_->data_bytes));
  state_->file.append(std::as_bytes(std::span(header)));
}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

std::int64_t FileWriter::remaining_bytes() const {
  return state_->data_bytes - state_->appended_bytes;
}

void FileWriter::append(std::span<const std::byte> bytes) {
  if (std::ssize(bytes) > remaining_bytes()) refuse_excess(bytes.size(), remaining_bytes());
  state_->file.append(bytes);
  state_->appended_bytes += std::ssize(bytes);
}

void FileWriter::seal() {
  if (remaining_bytes() == 0) return state_->file.seal();
  // The tensor whose bytes stop short.
  std::int64_t end = 0;
  auto tensor = state_->tensors.begin();
  for (; end + byte_count(*tensor) <= state_->appended_bytes; ++tensor) end += byte_count(*tensor);
  throw Error(ErrorCode::invalid_argument, "write: there are fewer bytes than planned")
      .with("tensor", printable(tensor->name))
      .with("tensor_bytes", byte_count(*tensor))
      .with("appended_bytes", state_->appended_bytes - end)
      .with("file", state_->file.path().string());
}

void FileWriter::publish() { state_->file.publish(); }

struct CheckpointWriter::State {
  CheckpointPlan plan;
  std::vector<std::size_t> firsts;
  std::vector<FileWriter> files;  // all sealed but the last
  std::int64_t remaining_bytes = 0;

  std::string name_of(std::size_t shard) const {
    if (plan.shard_count == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, plan.shard_count);
  }

  void open_next() {
    const auto shard = files.size();
    const auto begin = plan.tensors.begin();
    files.emplace_back(plan.folder / name_of(shard),
                       std::vector<TensorInfo>(begin + std::ptrdiff_t(firsts[shard]),
                                               begin + std::ptrdiff_t(firsts[shard + 1])),
                       plan.metadata);
  }

  bool is_last_open() const { return std::ssize(files) == plan.shard_count; }

  void write_index() const {
    ShardIndex index;
    std::int64_t total_bytes = 0;
    for (std::size_t shard = 0; shard + 1 < firsts.size(); ++shard) {
      for (std::size_t i = firsts[shard]; i < firsts[shard + 1]; ++i) {
        index.entries.push_back({plan.tensors[i].name, name_of(shard)});
        total_bytes += byte_count(plan.tensors[i]);
      }
    }
    write_text(plan.folder / kIndexName, encode_index(index, total_bytes));
  }
};

CheckpointWriter::CheckpointWriter(CheckpointPlan plan) : state_(std::make_unique<State>()) {
  check_writable(plan.tensors);
  if (plan.shard_count < 1 ||
      (plan.shard_count > 1 && plan.shard_count > std::ssize(plan.tensors))) {
    throw Error(ErrorCode::invalid_argument, "write: every shard needs a tensor")
        .with("shards", plan.shard_count)
        .with("tensors", plan.tensors.size());
  }
  std::error_code failure;
  std::filesystem::create_directories(plan.folder, failure);
  if (failure) throw system_refusal("cannot make a folder", plan.folder, failure.value());
  const auto present = checkpoint_files(plan.folder);
  if (!plan.is_replacing && !present.empty()) {
    throw Error(ErrorCode::invalid_argument, "write: the folder holds a checkpoint")
        .with("found", present.front().filename().string())
        .with("folder", plan.folder.string())
        .hint("give an empty folder, or remove the checkpoint");
  }
  state_->plan = std::move(plan);
  state_->firsts = deal(state_->plan.tensors, state_->plan.shard_count);
  for (const TensorInfo& tensor : state_->plan.tensors) {
    state_->remaining_bytes += byte_count(tensor);
  }
  state_->open_next();
}
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::append(std::span<const std::byte> bytes) {
  if (std::ssize(bytes) > state_->remaining_bytes) {
    refuse_excess(bytes.size(), state_->remaining_bytes);
  }
  while (!bytes.empty()) {
    FileWriter& file = state_->files.back();
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(bytes), file.remaining_bytes()));
    if (count == 0) {
      file.seal();
      state_->open_next();
      continue;
    }
    file.append(bytes.first(count));
    bytes = bytes.subspan(count);
    state_->remaining_bytes -= static_cast<std::int64_t>(count);
  }
}

void CheckpointWriter::publish() {
  state_->files.back().seal();
  // What is left without bytes, or the first that lacks them and says so.
  while (!state_->is_last_open()) {
    state_->open_next();
    state_->files.back().seal();
  }
  if (state_->plan.is_replacing) {
    for (const auto& path : checkpoint_files(state_->plan.folder)) {
      std::error_code failure;
      std::filesystem::remove(path, failure);
      if (failure) throw system_refusal("cannot remove a file", path, failure.value());
    }
  }
  if (state_->plan.shard_count > 1) state_->write_index();
  for (FileWriter& file : state_->files) file.publish();
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  PartialFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.seal();
  file.publish();
}

}  // namespace crossmesh
