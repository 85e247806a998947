// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/base/error.h"

#include <gtest/gtest.h>

namespace crossmesh {
namespace {

TEST(Error, text_lists_facts_then_the_hint) {
  const Error error = Error(ErrorCode::mismatch, "compile: shapes differ")
                          .with("tensor", "model.norm.weight")
                          .with("rank", 3)
                          .hint("check the config");
  EXPECT_EQ(
      error.text(),
      "compile: shapes differ\n  tensor  model.norm.weight\n  rank  3\n  hint  check the config");
}

TEST(Error, a_fact_added_by_a_caller_stays_before_the_hint) {
  Error error = Error(ErrorCode::io_failed, "read: cannot open").hint("check the path");
  error.with("file", "a.safetensors");
  EXPECT_EQ(error.text(), "read: cannot open\n  file  a.safetensors\n  hint  check the path");
  EXPECT_EQ(error.code(), ErrorCode::io_failed);
}

TEST(Error, parts_are_those_that_it_was_made_of) {
  const Error error = Error(ErrorCode::mismatch, "compile: shapes differ")
                          .with("waiting for", "start from trainer 0 (rank 0)")
                          .with("empty", "")
                          .with("boxes", "[0:1]\n[1:2]")
                          .with("rank", 3)
                          .hint("check the config");
  EXPECT_EQ(parts_of(error), (ErrorParts{"compile: shapes differ",
                                         {{"waiting for", "start from trainer 0 (rank 0)"},
                                          {"empty", ""},
                                          {"boxes", "[0:1]\n[1:2]"},
                                          {"rank", "3"}},
                                         "check the config"}));
  EXPECT_EQ(parts_of(Error(ErrorCode::internal, "")), ErrorParts());
}

}  // namespace
}  // namespace crossmesh
