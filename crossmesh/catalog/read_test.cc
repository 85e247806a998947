// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/read.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/shard_index.h"
#include "crossmesh/catalog/temporary_folder.h"

namespace crossmesh {
namespace {

using catalog_testing::TemporaryFolder;

// A file of u8 vectors of two elements, filled with the last character of the name.
std::string file_of(const std::vector<std::string>& names) {
  std::vector<TensorInfo> tensors;
  std::string data;
  for (const std::string& name : names) {
    tensors.push_back({name, DType::u8, {2}});
    data += std::string(2, name.back());
  }
  return encode_header(tensors, {}) + data;
}

Catalog catalog_of(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names) catalog.tensors.push_back({name, DType::u8, {2}});
  return catalog;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// `code: text` with the folder's path as FOLDER.
std::string error_of(const TemporaryFolder& folder, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    std::string text = fmt::format("{}: {}", name_of(error.code()), error.text());
    const std::string path = folder.path().string();
    for (auto at = text.find(path); at != text.npos; at = text.find(path)) {
      text.replace(at, path.size(), "FOLDER");
    }
    return text;
  }
  return "no error";
}

std::string read_error(const TemporaryFolder& folder, std::string_view name = "") {
  return error_of(folder, [&] { read(name.empty() ? folder.path() : folder / name); });
}

TEST(Read, one_file_gives_its_catalog_and_bytes) {
  const TemporaryFolder folder;
  const auto path = folder.put("m.safetensors", file_of({"b", "a"}));
  for (const auto& given : {path, folder.path()}) {
    const Checkpoint checkpoint = read(given);
    EXPECT_EQ(checkpoint.catalog(), catalog_of({"b", "a"}));
    EXPECT_EQ(text_of(checkpoint.bytes("a")), "aa");
    EXPECT_EQ(text_of(checkpoint.bytes(0)), "bb");
    EXPECT_EQ(checkpoint.find("a"), 1U);
    EXPECT_EQ(checkpoint.find("c"), std::nullopt);
    EXPECT_EQ(checkpoint.file_of(1).path, path);
    EXPECT_EQ(checkpoint.file_of(1).tensor_count, 2);
    EXPECT_EQ(checkpoint.offset_of(1), checkpoint.file_of(1).bytes - 2);
  }
}

TEST(Read, spans_outlive_a_move_of_the_checkpoint) {
  const TemporaryFolder folder;
  folder.put("m.safetensors", file_of({"a"}));
  Checkpoint first = read(folder.path());
  const auto bytes = first.bytes("a");
  const Checkpoint second = std::move(first);
  EXPECT_EQ(text_of(bytes), "aa");
  EXPECT_EQ(second.bytes("a").data(), bytes.data());
}

TEST(Read, a_metadata_only_file_opens) {
  const TemporaryFolder folder;
  folder.put("m.safetensors", encode_header({}, {{"k", "v"}}));
  const Checkpoint checkpoint = read(folder.path());
  EXPECT_EQ(checkpoint.catalog(), Catalog{});
  ASSERT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.files()[0].metadata, (Metadata{{"k", "v"}}));
}

TEST(Read, files_of_a_folder_without_an_index_come_by_name) {
  const TemporaryFolder folder;
  folder.put("m-2.safetensors", file_of({"a"}));
  folder.put("m-1.safetensors", file_of({"c", "b"}));
  folder.put("m-3.safetensors.partial", "not read");
  EXPECT_EQ(read(folder.path()).catalog(), catalog_of({"c", "b", "a"}));
}

TEST(Read, an_index_chooses_the_files) {
  const TemporaryFolder folder;
  folder.put("m-2.safetensors", file_of({"a"}));
  folder.put("m-1.safetensors", file_of({"c", "b"}));
  folder.put("consolidated.safetensors", file_of({"a", "b", "c"}));
  const ShardIndex index{
      {{"a", "m-2.safetensors"}, {"b", "m-1.safetensors"}, {"c", "m-1.safetensors"}}};
  folder.put("other.safetensors.index.json", encode_index(index, 6));
  EXPECT_EQ(read(folder.path()).catalog(), catalog_of({"c", "b", "a"}));
  EXPECT_EQ(read(folder / "other.safetensors.index.json").catalog(), catalog_of({"c", "b", "a"}));
  // The usual name wins over another.
  folder.put("model.safetensors.index.json", encode_index({{{"a", "m-2.safetensors"}}}, 2));
  EXPECT_EQ(read(folder.path()).catalog(), catalog_of({"a"}));
}

TEST(Read, a_symbolic_link_is_followed) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "blobs");
  folder.put("blobs/0123", file_of({"a"}));
  std::filesystem::create_directory(folder / "model");
  std::filesystem::create_symlink("../blobs/0123", folder / "model/m.safetensors");
  EXPECT_EQ(read(folder / "model").catalog(), catalog_of({"a"}));
}

TEST(Read, what_is_no_checkpoint_is_refused) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_error(folder, "absent"),
            "invalid_argument: read: there is no checkpoint at this path\n  file  FOLDER/absent");
  EXPECT_EQ(read_error(folder),
            "invalid_argument: read: a folder holds no .safetensors file\n  folder  FOLDER");
  folder.put("x.bin", "");
  EXPECT_EQ(read_error(folder, "x.bin"),
            "invalid_argument: read: this is neither a .safetensors file nor its index\n"
            "  file  FOLDER/x.bin\n"
            "  hint  give a folder, a .safetensors file or a .safetensors.index.json file");
  folder.put("p.safetensors.index.json", "");
  folder.put("q.safetensors.index.json", "");
  EXPECT_EQ(read_error(folder),
            "invalid_argument: read: a folder has several indexes\n  indexes  2\n"
            "  first  p.safetensors.index.json\n  second  q.safetensors.index.json\n"
            "  folder  FOLDER\n  hint  give the path of one index");
  EXPECT_EQ(read_error(folder, "p.safetensors.index.json"),
            "corrupt_file: read: the index is not valid JSON\n  offset  0\n"
            "  file  FOLDER/p.safetensors.index.json");
}

TEST(Read, what_is_no_regular_file_is_refused_without_waiting) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo.safetensors").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "inner");
  std::filesystem::create_directory(folder / "inner/folder.safetensors");
  EXPECT_EQ(read_error(folder, "fifo.safetensors"),
            "invalid_argument: read: not a regular file\n  file  FOLDER/fifo.safetensors");
  EXPECT_EQ(read_error(folder, "inner"),
            "invalid_argument: read: not a regular file\n  file  FOLDER/inner/folder.safetensors");
}

TEST(Read, a_broken_file_is_named) {
  const TemporaryFolder folder;
  folder.put("empty.safetensors", "");
  EXPECT_EQ(read_error(folder),
            "corrupt_file: read: the file is too short for a header\n  file_bytes  0\n"
            "  bytes_min  8\n  file  FOLDER/empty.safetensors");
}

TEST(Read, a_file_that_cannot_be_opened_is_refused) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("m.safetensors", folder / "m.safetensors");
  EXPECT_EQ(read_error(folder),
            "io_failed: read: cannot open a file\n  reason  Too many levels of symbolic links\n"
            "  file  FOLDER/m.safetensors");
  EXPECT_EQ(read_error(folder, "m.safetensors"),
            "io_failed: read: cannot look at a path\n  reason  Too many levels of symbolic links\n"
            "  file  FOLDER/m.safetensors");
}

TEST(Read, two_files_with_one_tensor_are_refused) {
  const TemporaryFolder folder;
  folder.put("m-1.safetensors", file_of({"a", "b"}));
  folder.put("m-2.safetensors", file_of({"c", "b"}));
  EXPECT_EQ(read_error(folder),
            "corrupt_file: read: two files hold one tensor\n  tensor  b\n"
            "  file  FOLDER/m-2.safetensors\n  other_file  FOLDER/m-1.safetensors");
}

// A folder with files `1` (a, b) and `2` (c), and the given index.
std::string error_of_index(const std::vector<ShardIndex::Entry>& entries) {
  const TemporaryFolder folder;
  folder.put("1.safetensors", file_of({"a", "b"}));
  folder.put("2.safetensors", file_of({"c"}));
  folder.put("model.safetensors.index.json", encode_index({entries}, 0));
  return read_error(folder);
}

TEST(Read, an_index_and_its_files_must_agree) {
  const ShardIndex::Entry a{"a", "1.safetensors"};
  const ShardIndex::Entry b{"b", "1.safetensors"};
  const ShardIndex::Entry c{"c", "2.safetensors"};
  const std::string index_line = "\n  index  FOLDER/model.safetensors.index.json";
  EXPECT_EQ(error_of_index({a, b, c}), "no error");
  EXPECT_EQ(error_of_index({a, b}), "no error");
  EXPECT_EQ(error_of_index({a, b, c, {"d", "3.safetensors"}}),
            "corrupt_file: read: an index names a file that is not there\n  tensor  d\n"
            "  file  FOLDER/3.safetensors" +
                index_line);
  EXPECT_EQ(error_of_index({a, b, c, {"d", "2.safetensors"}}),
            "corrupt_file: read: an index lists a tensor that its file lacks\n  tensor  d\n"
            "  file  FOLDER/2.safetensors\n  found_in  no file of the index" +
                index_line);
  EXPECT_EQ(error_of_index({a, {"b", "2.safetensors"}, c}),
            "corrupt_file: read: an index lists a tensor that its file lacks\n  tensor  b\n"
            "  file  FOLDER/2.safetensors\n  found_in  FOLDER/1.safetensors" +
                index_line);
  EXPECT_EQ(error_of_index({a, c}),
            "corrupt_file: read: a file holds a tensor that the index does not list\n  tensor  b\n"
            "  file  FOLDER/1.safetensors" +
                index_line);
}

TEST(Read, a_tensor_that_is_not_there_is_refused) {
  const TemporaryFolder folder;
  folder.put("m.safetensors", file_of({"a"}));
  const Checkpoint checkpoint = read(folder.path());
  EXPECT_EQ(error_of(folder, [&] { checkpoint.bytes("b"); }),
            "invalid_argument: checkpoint: there is no tensor of this name\n  tensor  b\n"
            "  tensors  1");
  EXPECT_EQ(error_of(folder, [&] { checkpoint.bytes(1); }),
            "invalid_argument: checkpoint: there is no tensor of this index\n  index  1\n"
            "  tensors  1");
}

TEST(Read, a_file_past_four_gibibytes_is_read) {
  const TemporaryFolder folder;
  constexpr std::int64_t kBigBytes = (std::int64_t{5} << 30) + 2;
  const std::vector<TensorInfo> tensors = {{"big", DType::bf16, {kBigBytes / 2}},
                                           {"last", DType::f32, {2}}};
  const std::string header = encode_header(tensors, {});
  const auto path = folder.put("m.safetensors", header);
  // A hole on the disk: the file has its length, and next to no blocks.
  const std::int64_t last_offset = std::ssize(header) + kBigBytes;
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool is_made =
      ::ftruncate(file, last_offset + 8) == 0 && ::pwrite(file, "12345678", 8, last_offset) == 8;
  ::close(file);
  if (!is_made) GTEST_SKIP() << "the file system has no files past 4 GiB";
  const Checkpoint checkpoint = read(path);
  EXPECT_EQ(checkpoint.catalog(), Catalog{tensors});
  EXPECT_EQ(std::ssize(checkpoint.bytes("big")), kBigBytes);
  EXPECT_EQ(checkpoint.bytes("big").back(), std::byte{0});
  EXPECT_EQ(text_of(checkpoint.bytes("last")), "12345678");
  EXPECT_EQ(checkpoint.offset_of(1), last_offset);
}

TEST(Read, a_header_past_100_kilobytes_is_read) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 20'000; ++i) {
    names.push_back(fmt::format("model.layers.{}.mlp.experts.{}.weight", i / 256, i % 256));
  }
  const std::string bytes = file_of(names);
  ASSERT_GT(bytes.size(), 1'000'000U);
  folder.put("m.safetensors", bytes);
  const Checkpoint checkpoint = read(folder.path());
  EXPECT_EQ(checkpoint.catalog(), catalog_of(names));
  EXPECT_EQ(checkpoint.find(names[12'345]), 12'345U);
}

TEST(Read, the_config_lies_beside_the_checkpoint) {
  const TemporaryFolder folder;
  const auto path = folder.put("m.safetensors", file_of({"a"}));
  EXPECT_EQ(find_config(folder.path()), std::nullopt);
  const auto config = folder.put("config.json", "{}");
  EXPECT_EQ(find_config(folder.path()), config);
  EXPECT_EQ(find_config(path), config);
  EXPECT_EQ(find_config(folder / "absent/m.safetensors"), std::nullopt);
}

}  // namespace
}  // namespace crossmesh
