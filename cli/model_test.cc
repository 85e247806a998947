// SPDX-License-Identifier: Apache-2.0
#include "cli/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "crossmesh/base/error.h"
#include "crossmesh/catalog/write.h"

namespace crossmesh::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiedConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4,
  "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 3, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16"})";

// A folder of its own, gone with the test.
class ModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "crossmesh-model-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A checkpoint of an embedding and a head, with these bytes.
  void write_pair(const TensorInfo& embedding, const TensorInfo& head, int difference_at) {
    CheckpointWriter writer({.folder = folder_, .tensors = {embedding, head}});
    std::vector<std::byte> bytes(static_cast<std::size_t>(byte_count(embedding)), std::byte{7});
    writer.append(bytes);
    bytes.resize(static_cast<std::size_t>(byte_count(head)), std::byte{7});
    if (difference_at >= 0) bytes[static_cast<std::size_t>(difference_at)] = std::byte{8};
    writer.append(bytes);
    writer.publish();
    write_text(folder_ / "config.json", kTiedConfig);
  }

  // The error's text, with this test's folder as DIR.
  std::string error_of(const std::function<void()>& call) const {
    try {
      call();
    } catch (const Error& error) {
      std::string text = std::string(name_of(error.code())) + "\n" + error.text();
      for (std::size_t at; (at = text.find(folder_.string())) != std::string::npos;) {
        text.replace(at, folder_.string().size(), "DIR");
      }
      return text;
    }
    return "no error";
  }

  fs::path folder_;
};

const TensorInfo kEmbedding{"model.embed_tokens.weight", DType::bf16, {3, 4}};
const TensorInfo kHead{"lm_head.weight", DType::bf16, {3, 4}};

TEST_F(ModelTest, a_config_alone_gives_the_catalog_that_its_checkpoint_would_have) {
  write_text(folder_ / "config.json", kTiedConfig);
  const Model model = open_model(folder_ / "config.json");
  EXPECT_FALSE(model.checkpoint.has_value());
  EXPECT_EQ(model.config_text, kTiedConfig);
  EXPECT_EQ(model.catalog.tensors, tensors_of(family_of(model.config), model.config));
  EXPECT_NO_THROW(check_tied(model));
}

TEST_F(ModelTest, a_folder_gives_what_lies_in_it) {
  write_pair(kEmbedding, kHead, -1);
  const Model model = open_model(folder_);
  ASSERT_TRUE(model.checkpoint.has_value());
  EXPECT_EQ(model.catalog.tensors, (std::vector<TensorInfo>{kEmbedding, kHead}));
}

TEST_F(ModelTest, what_is_no_model_is_refused) {
  EXPECT_EQ(error_of([&] { open_model(folder_ / "nowhere"); }),
            "invalid_argument\n"
            "open model: there is no such file or folder\n"
            "  path  DIR/nowhere");
  EXPECT_EQ(error_of([&] { open_model(folder_); }),
            "invalid_argument\n"
            "open model: the folder has no config.json\n"
            "  folder  DIR");
  write_text(folder_ / "model.safetensors", "x");
  EXPECT_EQ(error_of([&] { open_model(folder_ / "model.safetensors"); }),
            "invalid_argument\n"
            "open model: neither a folder nor a config.json\n"
            "  path  DIR/model.safetensors\n"
            "  hint  give the folder that holds config.json and the .safetensors files");
}

TEST_F(ModelTest, an_equal_twin_of_a_tied_embedding_passes) {
  write_pair(kEmbedding, kHead, -1);
  std::int64_t seen = 0;
  check_tied(open_model(folder_), [&](std::int64_t bytes) { seen = bytes; });
  EXPECT_EQ(seen, 24);
}

TEST_F(ModelTest, a_twin_with_other_bytes_is_refused_with_the_place) {
  write_pair(kEmbedding, kHead, 23);
  const Model model = open_model(folder_);
  EXPECT_EQ(error_of([&] { check_tied(model); }),
            "mismatch\n"
            "check tied: lm_head differs from the embedding that the config ties it to\n"
            "  tensor  lm_head.weight\n"
            "  tied to  model.embed_tokens.weight\n"
            "  file  DIR/model.safetensors\n"
            "  first byte that differs  23\n"
            "  bytes  24\n"
            "  hint  set tie_word_embeddings to false in config.json if the two are meant to "
            "differ");
}

TEST_F(ModelTest, a_twin_of_another_shape_is_refused) {
  write_pair(kEmbedding, {"lm_head.weight", DType::f16, {4, 3}}, -1);
  const Model model = open_model(folder_);
  EXPECT_EQ(error_of([&] { check_tied(model); }),
            "mismatch\n"
            "check tied: lm_head is not the embedding's twin\n"
            "  tensor  lm_head.weight\n"
            "  tied to  model.embed_tokens.weight\n"
            "  file  DIR/model.safetensors\n"
            "  dtypes  F16 and BF16\n"
            "  shapes  [4, 3] and [3, 4]");
}

TEST_F(ModelTest, opaque_marks_every_instance_that_matches_and_nothing_else) {
  write_text(folder_ / "config.json", kTiedConfig);
  const Model model = open_model(folder_ / "config.json");
  Request request;
  request.engine = "tp=2";
  const Layout plain = target_layout(model, request);
  request.opaque = {"*.q_proj.weight", "*norm.weight"};
  const Layout marked = target_layout(model, request);

  Layout expected = plain;
  expected.reasons.push_back("asked for by --opaque *.q_proj.weight");
  expected.reasons.push_back("asked for by --opaque *norm.weight");
  const int first = static_cast<int>(plain.reasons.size());
  int found = 0;
  for (Instance& instance : expected.instances) {
    const std::string& name = expected.tensors[static_cast<std::size_t>(instance.tensor)].name;
    if (name == "model.layers.0.self_attn.q_proj.weight") instance.opaque_reason = first;
    if (name.ends_with("norm.weight")) instance.opaque_reason = first + 1;
    found += instance.opaque_reason >= 0 ? 1 : 0;
  }
  EXPECT_EQ(found, 6);
  EXPECT_EQ(marked, expected);
}

TEST_F(ModelTest, opaque_that_matches_nothing_is_refused) {
  write_text(folder_ / "config.json", kTiedConfig);
  const Model model = open_model(folder_ / "config.json");
  Request request;
  request.engine = "tp=1";
  request.opaque = {"*.bias"};
  EXPECT_EQ(error_of([&] { target_layout(model, request); }),
            "invalid_argument\n"
            "mark opaque: no tensor of the engine matches\n"
            "  pattern  *.bias");
}

}  // namespace
}  // namespace crossmesh::cli
