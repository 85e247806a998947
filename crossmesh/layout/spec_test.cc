// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/spec.h"

#include <gtest/gtest.h>

#include <functional>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.text();
  }
  return "no error";
}

TEST(Spec, axes_keep_their_order_and_words_become_options) {
  EXPECT_EQ(parse_spec("fsdp=2,tp=2"), (Spec{"fsdp=2,tp=2", {{"fsdp", "2"}, {"tp", "2"}}, {}}));
  EXPECT_EQ(parse_spec("replicas=2,eager,experts=linear"),
            (Spec{"replicas=2,eager,experts=linear",
                  {{"replicas", "2"}, {"experts", "linear"}},
                  {"eager"}}));
}

TEST(Spec, a_missing_axis_has_size_one) {
  const Spec spec = parse_spec("fsdp=64,tp=1000000");
  EXPECT_EQ(axis_size(spec, "fsdp"), 64);
  EXPECT_EQ(axis_size(spec, "tp"), 1'000'000);
  EXPECT_EQ(axis_size(spec, "pp"), 1);
}

TEST(Spec, malformed_texts_are_refused) {
  struct Row {
    const char* name;
    const char* text;
    const char* expected;
  };
  const Row rows[] = {
      {"an empty text", "",
       "read spec: a word is empty\n  spec  \n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
      {"an empty word", "fsdp=2,,tp=2",
       "read spec: a word is empty\n  spec  fsdp=2,,tp=2\n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
      {"a trailing comma", "fsdp=2,",
       "read spec: a word is empty\n  spec  fsdp=2,\n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
      {"no value", "fsdp=,tp=2",
       "read spec: an axis has no value\n  spec  fsdp=,tp=2\n  word  fsdp=\n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
      {"no name", "tp=2,=2",
       "read spec: an axis has no name\n  spec  tp=2,=2\n  word  =2\n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
      {"a repeated axis", "tp=2,fsdp=2,tp=4",
       "read spec: an axis is given twice\n  spec  tp=2,fsdp=2,tp=4\n  word  tp=4\n"
       "  hint  write axis=size,..., for example fsdp=2,tp=2"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(error_of([&] { parse_spec(row.text); }), row.expected) << row.name;
  }
}

TEST(Spec, sizes_out_of_range_are_refused) {
  for (const std::string size :
       {"0", "-1", "1000001", "two", "2x", "+2", " 2", "2=2", "99999999999999999999"}) {
    const std::string text = "tp=" + size;
    EXPECT_EQ(error_of([&] { axis_size(parse_spec(text), "tp"); }),
              "read spec: a size is not a number in its range\n  spec  " + text +
                  "\n  axis  tp\n  size  " + size + "\n  range  1 to 1000000");
  }
}

}  // namespace
}  // namespace crossmesh
