// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/read.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/detail/text.h"
#include "crossmesh/catalog/shard_index.h"

namespace crossmesh {
namespace {

using catalog_detail::printable;

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
// Of an index: as long as the longest header.
constexpr std::int64_t kIndexBytesMax = kHeaderBytesMax;

Error refusal(ErrorCode code, std::string_view what, const std::filesystem::path& path) {
  return Error(code, fmt::format("read: {}", what)).with("file", path.string());
}

Error system_refusal(std::string_view what, const std::filesystem::path& path, int number) {
  const auto code = number == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::io_failed;
  return Error(code, fmt::format("read: {}", what))
      .with("reason", std::generic_category().message(number))
      .with("file", path.string());
}

// A whole file, mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    // Without O_NONBLOCK a FIFO would wait for its writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw system_refusal("cannot open a file", path, errno);
    struct stat status {};
    const bool is_known = ::fstat(file, &status) == 0;
    const bool is_regular = is_known && S_ISREG(status.st_mode);
    int error = is_known ? 0 : errno;
    if (is_regular && status.st_size > 0) {
      bytes_ = static_cast<std::size_t>(status.st_size);
      data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
      if (data_ == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (error != 0) {
      data_ = nullptr;
      throw system_refusal("cannot map a file", path, error);
    }
    if (!is_regular) throw refusal(ErrorCode::invalid_argument, "not a regular file", path);
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), data_ == nullptr ? 0 : bytes_};
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

bool has_suffix(const std::filesystem::path& path, std::string_view suffix) {
  return path.filename().string().ends_with(suffix);
}

// What is to be opened: files by name and, if there is one, the index that names them.
struct Found {
  std::optional<std::filesystem::path> index;
  std::vector<std::filesystem::path> files;
};

Found find_in_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::vector<std::filesystem::path> indexes;
  Found found;
  for (std::filesystem::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure)) {
    if (has_suffix(at->path(), kIndexSuffix)) indexes.push_back(at->path());
    if (has_suffix(at->path(), kTensorsSuffix)) found.files.push_back(at->path());
  }
  if (failure) throw system_refusal("cannot list a folder", folder, failure.value());
  std::sort(indexes.begin(), indexes.end());
  std::sort(found.files.begin(), found.files.end());
  const auto usual = std::find(indexes.begin(), indexes.end(), folder / kIndexName);
  if (usual != indexes.end()) return {*usual, {}};
  if (indexes.size() == 1) return {indexes.front(), {}};
  if (indexes.size() > 1) {
    throw Error(ErrorCode::invalid_argument, "read: a folder has several indexes")
        .with("indexes", indexes.size())
        .with("first", indexes[0].filename().string())
        .with("second", indexes[1].filename().string())
        .with("folder", folder.string())
        .hint("give the path of one index");
  }
  if (found.files.empty()) {
    throw Error(ErrorCode::invalid_argument, "read: a folder holds no .safetensors file")
        .with("folder", folder.string());
  }
  return found;
}

Found find_files(const std::filesystem::path& path) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) {
    if (status.type() == std::filesystem::file_type::not_found) {
      throw refusal(ErrorCode::invalid_argument, "there is no checkpoint at this path", path);
    }
    throw system_refusal("cannot look at a path", path, failure.value());
  }
  if (std::filesystem::is_directory(status)) return find_in_folder(path);
  if (has_suffix(path, kIndexSuffix)) return {path, {}};
  if (has_suffix(path, kTensorsSuffix)) return {std::nullopt, {path}};
  throw refusal(ErrorCode::invalid_argument, "this is neither a .safetensors file nor its index",
                path)
      .hint("give a folder, a .safetensors file or a .safetensors.index.json file");
}

ShardIndex read_index(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (std::ssize(bytes) > kIndexBytesMax) {
    throw Error(ErrorCode::corrupt_file, "read: an index is too long")
        .with("file_bytes", bytes.size())
        .with("bytes_max", kIndexBytesMax)
        .with("file", path.string());
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  return parse_index({bytes.empty() ? "" : text, bytes.size()}, path.string());
}

// The files that an index names, each once and by name; all exist.
std::vector<std::filesystem::path> files_of(const ShardIndex& index,
                                            const std::filesystem::path& index_path) {
  std::vector<const ShardIndex::Entry*> firsts;
  for (const auto& entry : index.entries) firsts.push_back(&entry);
  std::stable_sort(firsts.begin(), firsts.end(),
                   [](const auto* a, const auto* b) { return a->file < b->file; });
  firsts.erase(std::unique(firsts.begin(), firsts.end(),
                           [](const auto* a, const auto* b) { return a->file == b->file; }),
               firsts.end());
  std::vector<std::filesystem::path> files;
  for (const auto* entry : firsts) {
    files.push_back(index_path.parent_path() / entry->file);
    std::error_code failure;
    if (std::filesystem::exists(files.back(), failure) || failure) continue;
    throw Error(ErrorCode::corrupt_file, "read: an index names a file that is not there")
        .with("tensor", printable(entry->tensor))
        .with("file", files.back().string())
        .with("index", index_path.string());
  }
  return files;
}

}  // namespace

struct Checkpoint::State {
  Catalog catalog;
  std::optional<CatalogIndex> index;
  std::vector<CheckpointFile> files;
  std::vector<MappedFile> mappings;  // of each file
  std::vector<std::size_t> file_of_tensor;
  std::vector<std::int64_t> offset_of_tensor;  // in its file
  std::vector<std::int64_t> bytes_of_tensor;

  void add(const std::filesystem::path& path) {
    const auto bytes = mappings.emplace_back(path).bytes();
    Header header = parse_header(bytes, std::ssize(bytes), path.string());
    const auto count = header.catalog.tensors.size();
    for (TensorInfo& tensor : header.catalog.tensors) {
      bytes_of_tensor.push_back(byte_count(tensor));
      catalog.tensors.push_back(std::move(tensor));
    }
    offset_of_tensor.insert(offset_of_tensor.end(), header.offsets.begin(), header.offsets.end());
    file_of_tensor.insert(file_of_tensor.end(), count, files.size());
    files.push_back(
        {path, std::ssize(bytes), static_cast<std::int64_t>(count), std::move(header.metadata)});
  }

  // Throws: corrupt_file when two files hold a tensor of one name.
  void close_catalog() {
    if (const auto twice = find_duplicate(catalog)) {
      const std::string& name = catalog.tensors[*twice].name;
      throw Error(ErrorCode::corrupt_file, "read: two files hold one tensor")
          .with("tensor", printable(name))
          .with("file", files[file_of_tensor[*twice]].path.string())
          .with("other_file", files[file_of_tensor[*crossmesh::find(catalog, name)]].path.string());
    }
    index.emplace(catalog);
  }

  // Throws: corrupt_file when the files do not hold exactly what `listed` says.
  void check_against(const ShardIndex& listed, const std::filesystem::path& index_path) const {
    std::vector<bool> is_listed(catalog.tensors.size());
    for (const auto& entry : listed.entries) {
      const auto path = index_path.parent_path() / entry.file;
      const auto tensor = index->find(entry.tensor);
      if (tensor && files[file_of_tensor[*tensor]].path == path) {
        is_listed[*tensor] = true;
        continue;
      }
      throw Error(ErrorCode::corrupt_file, "read: an index lists a tensor that its file lacks")
          .with("tensor", printable(entry.tensor))
          .with("file", path.string())
          .with("found_in",
                tensor ? files[file_of_tensor[*tensor]].path.string() : "no file of the index")
          .with("index", index_path.string());
    }
    const auto unlisted = std::find(is_listed.begin(), is_listed.end(), false);
    if (unlisted == is_listed.end()) return;
    const auto tensor = static_cast<std::size_t>(unlisted - is_listed.begin());
    throw Error(ErrorCode::corrupt_file, "read: a file holds a tensor that the index does not list")
        .with("tensor", printable(catalog.tensors[tensor].name))
        .with("file", files[file_of_tensor[tensor]].path.string())
        .with("index", index_path.string());
  }

  std::size_t checked(std::size_t tensor) const {
    if (tensor < catalog.tensors.size()) return tensor;
    throw Error(ErrorCode::invalid_argument, "checkpoint: there is no tensor of this index")
        .with("index", tensor)
        .with("tensors", catalog.tensors.size());
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const Catalog& Checkpoint::catalog() const { return state_->catalog; }

std::span<const CheckpointFile> Checkpoint::files() const { return state_->files; }

std::optional<std::size_t> Checkpoint::find(std::string_view name) const {
  return state_->index->find(name);
}

std::span<const std::byte> Checkpoint::bytes(std::size_t tensor) const {
  const std::size_t at = state_->checked(tensor);
  return state_->mappings[state_->file_of_tensor[at]].bytes().subspan(
      static_cast<std::size_t>(state_->offset_of_tensor[at]),
      static_cast<std::size_t>(state_->bytes_of_tensor[at]));
}

std::span<const std::byte> Checkpoint::bytes(std::string_view name) const {
  if (const auto tensor = find(name)) return bytes(*tensor);
  throw Error(ErrorCode::invalid_argument, "checkpoint: there is no tensor of this name")
      .with("tensor", printable(name))
      .with("tensors", state_->catalog.tensors.size());
}

const CheckpointFile& Checkpoint::file_of(std::size_t tensor) const {
  return state_->files[state_->file_of_tensor[state_->checked(tensor)]];
}

std::int64_t Checkpoint::offset_of(std::size_t tensor) const {
  return state_->offset_of_tensor[state_->checked(tensor)];
}

Checkpoint read(const std::filesystem::path& path) {
  Found found = find_files(path);
  ShardIndex listed;
  if (found.index) {
    listed = read_index(*found.index);
    found.files = files_of(listed, *found.index);
  }
  auto state = std::make_unique<Checkpoint::State>();
  for (const auto& file : found.files) state->add(file);
  state->close_catalog();
  if (found.index) state->check_against(listed, *found.index);
  return Checkpoint(std::move(state));
}

std::optional<std::filesystem::path> find_config(const std::filesystem::path& path) {
  std::error_code failure;
  const bool is_folder = std::filesystem::is_directory(path, failure);
  auto config = (is_folder ? path : path.parent_path()) / "config.json";
  if (!std::filesystem::is_regular_file(config, failure)) return std::nullopt;
  return config;
}

}  // namespace crossmesh
