// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/catalog/write.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/read.h"
#include "crossmesh/catalog/temporary_folder.h"

namespace crossmesh {
namespace {

using catalog_testing::bytes_of_file;
using catalog_testing::TemporaryFolder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string error_of(const std::filesystem::path& folder, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    std::string text = fmt::format("{}: {}", name_of(error.code()), error.text());
    const auto at = text.find(folder.string());
    if (at != text.npos) text.replace(at, folder.string().size(), "FOLDER");
    return text;
  }
  return "no error";
}

// One tensor of every dtype, of 8 elements, and the bytes of all of them, each different.
std::vector<TensorInfo> tensors_of_every_dtype() {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.push_back({fmt::format("t.{}", name_of(dtype)), dtype, {2, 4}});
  }
  tensors.push_back({"t.scalar", DType::f32, {}});
  tensors.push_back({"t.empty", DType::f32, {0, 3}});
  return tensors;
}

std::string data_for(const std::vector<TensorInfo>& tensors) {
  std::string data(static_cast<std::size_t>(byte_count(Catalog{tensors})), '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + i / 256);
  return data;
}

TEST(Write, what_is_written_is_read_back_for_every_dtype_and_shard_count) {
  const auto tensors = tensors_of_every_dtype();
  const std::string data = data_for(tensors);
  for (const int shard_count : {1, 2, 7, static_cast<int>(tensors.size())}) {
    for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{13}, data.size()}) {
      const TemporaryFolder folder;
      CheckpointWriter writer({folder.path(), tensors, shard_count});
      for (std::size_t at = 0; at < data.size(); at += piece_bytes) {
        writer.append(bytes_of(std::string_view(data).substr(at, piece_bytes)));
      }
      writer.publish();
      const Checkpoint checkpoint = read(folder.path());
      ASSERT_EQ(checkpoint.catalog(), Catalog{tensors}) << shard_count;
      std::string whole;
      for (const TensorInfo& tensor : tensors) whole += text_of(checkpoint.bytes(tensor.name));
      ASSERT_EQ(whole, data);
      ASSERT_EQ(std::ssize(checkpoint.files()), shard_count);
      for (const auto& file : checkpoint.files()) {
        ASSERT_EQ(file.metadata, (Metadata{{"format", "pt"}}));
        ASSERT_GE(file.tensor_count, 1);
      }
    }
  }
}

TEST(Write, bfloat16_one_is_80_3f_on_disk_and_padding_is_spaces) {
  const TemporaryFolder folder;
  FileWriter writer(folder / "m.safetensors", {{"one", DType::bf16, {1}}});
  const std::uint16_t one = 0x3F80;
  writer.append(std::as_bytes(std::span(&one, 1)));
  writer.seal();
  writer.publish();
  EXPECT_EQ(bytes_of_file(folder / "m.safetensors"),
            std::string("\x40\0\0\0\0\0\0\0", 8) +
                R"({"one":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}       )" + "\x80\x3F");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"m.safetensors"}));
}

TEST(Write, the_bytes_depend_on_nothing_but_the_plan_and_the_data) {
  const auto tensors = tensors_of_every_dtype();
  const std::string data = data_for(tensors);
  std::string first;
  for (int round = 0; round < 2; ++round) {
    const TemporaryFolder folder;
    CheckpointWriter writer({folder.path(), tensors, 2});
    writer.append(bytes_of(data));
    writer.publish();
    std::string all;
    for (const auto& name : names_in(folder.path())) all += name + bytes_of_file(folder / name);
    if (round == 0) first = all;
    EXPECT_EQ(all, first);
  }
}

TEST(Write, shards_have_about_equal_bytes_and_an_index) {
  const TemporaryFolder folder;
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back({std::string(1, "abcdef"[i]), DType::u8, {10}});
  CheckpointWriter writer({folder.path(), tensors, 3});
  writer.append(bytes_of(std::string(60, 'x')));
  writer.publish();
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{
                "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(bytes_of_file(folder / "model.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 60\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"model-00001-of-00003.safetensors\",\n"
            "    \"b\": \"model-00001-of-00003.safetensors\",\n"
            "    \"c\": \"model-00002-of-00003.safetensors\",\n"
            "    \"d\": \"model-00002-of-00003.safetensors\",\n"
            "    \"e\": \"model-00003-of-00003.safetensors\",\n"
            "    \"f\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
}

TEST(Write, a_checkpoint_without_tensors_is_written) {
  const TemporaryFolder folder;
  CheckpointWriter writer({folder.path(), {}, 1});
  writer.publish();
  EXPECT_EQ(read(folder.path()).catalog(), Catalog{});
}

TEST(Write, an_abandoned_checkpoint_leaves_nothing) {
  const TemporaryFolder folder;
  {
    CheckpointWriter writer({folder.path(), {{"a", DType::u8, {2}}, {"b", DType::u8, {2}}}, 2});
    writer.append(bytes_of("aab"));
    EXPECT_EQ(names_in(folder.path()),
              (std::vector<std::string>{"model-00001-of-00002.safetensors.partial",
                                        "model-00002-of-00002.safetensors.partial"}));
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
}

TEST(Write, too_many_and_too_few_bytes_are_refused) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> tensors = {
      {"a", DType::u8, {2}}, {"e", DType::u8, {0}}, {"b", DType::u8, {3}}};
  CheckpointWriter writer({folder.path(), tensors, 1});
  writer.append(bytes_of("aab"));
  const std::string excess =
      "invalid_argument: write: there are more bytes than planned\n  bytes  3\n"
      "  remaining_bytes  2";
  EXPECT_EQ(error_of(folder.path(), [&] { writer.append(bytes_of("bbb")); }), excess);
  const std::string missing =
      "invalid_argument: write: there are fewer bytes than planned\n  tensor  b\n"
      "  tensor_bytes  3\n  appended_bytes  1\n  file  FOLDER/model.safetensors";
  EXPECT_EQ(error_of(folder.path(), [&] { writer.publish(); }), missing);
  // Nothing has changed: what was missing may still come.
  writer.append(bytes_of("bb"));
  writer.publish();
  EXPECT_EQ(text_of(read(folder.path()).bytes("b")), "bbb");

  FileWriter file(folder / "x.safetensors", tensors);
  file.append(bytes_of("aa"));
  EXPECT_EQ(error_of(folder.path(), [&] { file.append(bytes_of("bbbb")); }),
            "invalid_argument: write: there are more bytes than planned\n  bytes  4\n"
            "  remaining_bytes  3");
  EXPECT_EQ(error_of(folder.path(), [&] { file.seal(); }),
            "invalid_argument: write: there are fewer bytes than planned\n  tensor  b\n"
            "  tensor_bytes  3\n  appended_bytes  0\n  file  FOLDER/x.safetensors");
}

TEST(Write, bad_plans_are_refused) {
  const TemporaryFolder folder;
  const auto error = [&](std::vector<TensorInfo> tensors, int shard_count) {
    return error_of(folder.path(), [&] {
      CheckpointWriter({folder.path(), tensors, shard_count});
    });
  };
  EXPECT_EQ(error({{"a", DType::u8, {}}}, 0),
            "invalid_argument: write: every shard needs a tensor\n  shards  0\n  tensors  1");
  EXPECT_EQ(error({{"a", DType::u8, {}}}, 2),
            "invalid_argument: write: every shard needs a tensor\n  shards  2\n  tensors  1");
  EXPECT_EQ(error({{"a", DType::u8, {}}, {"a", DType::u8, {}}}, 2),
            "invalid_argument: write: two tensors have one name\n  tensor  a");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
}

TEST(Write, a_checkpoint_in_the_folder_is_kept_unless_it_is_to_be_replaced) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> old_tensors = {{"a", DType::u8, {1}}, {"b", DType::u8, {1}}};
  CheckpointWriter old_writer({folder.path(), old_tensors, 2});
  old_writer.append(bytes_of("ab"));
  old_writer.publish();

  CheckpointPlan plan{folder.path(), {{"c", DType::u8, {1}}}};
  EXPECT_EQ(error_of(folder.path(), [&] { CheckpointWriter{plan}; }),
            "invalid_argument: write: the folder holds a checkpoint\n"
            "  found  model-00001-of-00002.safetensors\n  folder  FOLDER\n"
            "  hint  give an empty folder, or remove the checkpoint");
  plan.is_replacing = true;
  CheckpointWriter writer(plan);
  writer.append(bytes_of("c"));
  EXPECT_EQ(read(folder.path()).catalog(), Catalog{old_tensors});
  writer.publish();
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"model.safetensors"}));
  EXPECT_EQ(read(folder.path()).catalog(), Catalog{plan.tensors});
}

TEST(Write, a_folder_that_cannot_be_made_is_an_error) {
  const TemporaryFolder folder;
  folder.put("file", "");
  EXPECT_EQ(error_of(folder.path(),
                     [&] {
                       CheckpointWriter({folder / "file/inner", {}});
                     }),
            "io_failed: write: cannot make a folder\n  reason  Not a directory\n"
            "  file  FOLDER/file/inner");
  EXPECT_EQ(error_of(folder.path(), [&] { write_text(folder / "absent/x", "text"); }),
            "io_failed: write: cannot make a file\n  reason  No such file or directory\n"
            "  file  FOLDER/absent/x.partial");
}

TEST(Write, a_limit_on_the_size_of_files_is_an_error) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string planned = error_of(folder.path(), [&] {
    FileWriter(folder / "m.safetensors", {{"a", DType::u8, {8192}}});
  });
  const std::string text =
      error_of(folder.path(), [&] { write_text(folder / "t", std::string(5000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(planned,
            "io_failed: write: cannot reserve a file\n  reason  File too large\n"
            "  file  FOLDER/m.safetensors.partial\n  file_bytes  8264");
  EXPECT_EQ(text,
            "io_failed: write: cannot write a file\n  reason  File too large\n"
            "  file  FOLDER/t.partial\n  offset  4096\n  bytes  904");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
}

// Runs on a file system of 64 KiB that only this process sees; 77 where that may not be made.
int write_to_a_full_disk(const std::filesystem::path& folder) {
  if (::unshare(CLONE_NEWNS) != 0) return 77;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") != 0) return 77;
  const std::string planned = error_of(folder, [&] {
    CheckpointWriter({folder, {{"a", DType::u8, {100'000}}}});
  });
  const std::string text =
      error_of(folder, [&] { write_text(folder / "t", std::string(100'000, 'x')); });
  const bool is_empty = names_in(folder).empty();
  const bool is_right =
      planned ==
          "io_failed: write: cannot reserve a file\n  reason  No space left on device\n"
          "  file  FOLDER/model.safetensors.partial\n  file_bytes  100104" &&
      text ==
          "io_failed: write: cannot write a file\n  reason  No space left on device\n"
          "  file  FOLDER/t.partial\n  offset  65536\n  bytes  34464";
  if (!is_right) fmt::print(stderr, "{}\n{}\n", planned, text);
  return is_right && is_empty ? 0 : 1;
}

TEST(Write, a_full_disk_is_an_error_and_leaves_nothing) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_to_a_full_disk(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user may not mount a small file system";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace crossmesh
