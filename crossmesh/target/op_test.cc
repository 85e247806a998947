// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/op.h"

#include <gtest/gtest.h>

#include <set>

namespace crossmesh {
namespace {

TEST(Op, every_keyword_is_found_by_its_name) {
  for (int i = 0; i < static_cast<int>(Keyword::other); ++i) {
    const Keyword keyword = static_cast<Keyword>(i);
    EXPECT_EQ(keyword_from_name(name_of(keyword)), keyword);
  }
  EXPECT_EQ(keyword_from_name("?"), Keyword::other);
  EXPECT_EQ(keyword_from_name("dim2"), Keyword::other);
}

TEST(Op, a_dtype_is_told_by_the_name_that_torch_gives_it) {
  std::set<std::string> texts;
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::string text = to_string(Op::view(static_cast<DType>(i)));
    const std::string head = R"(["view",[{"dtype":")";
    const std::string tail = R"("}],{}])";
    ASSERT_EQ(text.substr(0, head.size()), head);
    const std::string name = text.substr(head.size(), text.size() - head.size() - tail.size());
    EXPECT_EQ(text, head + name + tail);
    EXPECT_EQ(dtype_from_name(name), static_cast<DType>(i));
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(kDTypeCount));
}

TEST(Op, every_spelling_has_a_text_of_its_own) {
  const auto text = [](Op op) { return to_string(op); };
  EXPECT_EQ(text(Op::narrow(0, -1, 2)), R"(["narrow",[0,-1,2],{}])");
  EXPECT_EQ(text(Op(OpKind::narrow)
                     .add_integer(0)
                     .add_keyword(Keyword::start)
                     .add_integer(1)
                     .add_keyword(Keyword::length)
                     .add_integer(2)),
            R"(["narrow",[0],{"length":2,"start":1}])");
  EXPECT_EQ(text(Op(OpKind::view).add_list(2).add_integer(4).add_integer(-1)),
            R"(["view",[[4,-1]],{}])");
  EXPECT_EQ(text(Op::view(std::span<const std::int64_t>())), R"(["view",[{"tuple":[]}],{}])");
  EXPECT_EQ(text(Op(OpKind::getitem)
                     .add_tuple(3)
                     .add_ellipsis()
                     .add_slice()
                     .add_none()
                     .add_integer(2)
                     .add_none()
                     .add_none()),
            R"(["__getitem__",[{"tuple":[{"ellipsis":true},{"slice":[null,2,null]},null]}],{}])");
  EXPECT_EQ(text(Op(OpKind::contiguous)
                     .add_keyword(Keyword::memory_format)
                     .add_memory_format(MemoryFormat::channels_last)),
            R"(["contiguous",[],{"memory_format":{"memory_format":"channels_last"}}])");
}

TEST(Op, calls_are_equal_token_by_token) {
  EXPECT_EQ(Op::narrow(0, 1, 2), Op::narrow(0, 1, 2));
  EXPECT_FALSE(Op::narrow(0, 1, 2) == Op::narrow(0, 1, 3));
  EXPECT_FALSE(Op::squeeze() == Op::squeeze(0));
  EXPECT_FALSE(Op::unsqueeze(0) == Op::squeeze(0));
  const Op tuple = Op(OpKind::permute).add_tuple(1).add_integer(0);
  const Op list = Op(OpKind::permute).add_list(1).add_integer(0);
  EXPECT_FALSE(tuple == list);
  EXPECT_EQ(hash_of(Op::narrow(0, 1, 2)), hash_of(Op::narrow(0, 1, 2)));
  EXPECT_NE(hash_of(tuple), hash_of(list));
}

}  // namespace
}  // namespace crossmesh
