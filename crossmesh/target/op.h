// SPDX-License-Identifier: Apache-2.0
// One call that a weight loader made on a checkpoint tensor, as it was spelled: which operation,
// which arguments by position and which by keyword. It is not yet checked: apply it to a chain
// (chain.h) to learn what it means there. A value that never allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "crossmesh/base/dtype.h"

namespace crossmesh {

// The operations of a recorded chain. `split` and `select` are spellings of others: they are
// recorded as the narrows and the index that they mean.
enum class OpKind : std::uint8_t {
  narrow,
  view,
  reshape,
  getitem,
  unsqueeze,
  squeeze,
  transpose,
  t,
  permute,
  flatten,
  contiguous,
  chunk,
  unbind,
  split,
  select,
};
inline constexpr int kOpKindCount = static_cast<int>(OpKind::select) + 1;

// As torch names the method: `narrow`, `__getitem__`.
std::string_view name_of(OpKind kind);

// Whether the operation yields several tensors: chunk, unbind, split.
bool yields_several(OpKind kind);

enum class MemoryFormat : std::uint8_t {
  contiguous_format,
  channels_last,
  channels_last_3d,
  preserve_format,
};
std::string_view name_of(MemoryFormat format);

// The names of torch's parameters; `other` stands for any name that is none of them.
enum class Keyword : std::uint8_t {
  chunks,
  dim,
  dim0,
  dim1,
  dims,
  dtype,
  end_dim,
  index,
  length,
  memory_format,
  shape,
  size,
  split_size,
  start,
  start_dim,
  other,
};
std::string_view name_of(Keyword keyword);
Keyword keyword_from_name(std::string_view name);

// A piece of an argument list. Sequences say how many items follow, a slice is followed by its
// start, stop and step, a keyword by its value.
struct Token {
  enum class Kind : std::uint8_t {
    integer,
    none,
    ellipsis,
    slice,
    tuple,
    list,
    dtype,
    memory_format,
    keyword,
    boolean,  // the rest are recorded only to be refused by name
    number,
    text,
    tensor,
  };
  Kind kind = Kind::none;
  std::int64_t value = 0;

  bool operator==(const Token&) const = default;
};

// Tokens of one call, at most.
inline constexpr int kTokensMax = 48;

class Op {
 public:
  explicit Op(OpKind kind = OpKind::contiguous) : kind_(kind) {}

  // Appends one token. Throws: unsupported past kTokensMax.
  Op& add(Token::Kind kind, std::int64_t value = 0);
  Op& add_integer(std::int64_t value) { return add(Token::Kind::integer, value); }
  Op& add_integers(std::span<const std::int64_t> values);
  Op& add_none() { return add(Token::Kind::none); }
  Op& add_ellipsis() { return add(Token::Kind::ellipsis); }
  Op& add_slice() { return add(Token::Kind::slice); }
  Op& add_tuple(std::int64_t items) { return add(Token::Kind::tuple, items); }
  Op& add_list(std::int64_t items) { return add(Token::Kind::list, items); }
  Op& add_dtype(DType dtype) { return add(Token::Kind::dtype, static_cast<std::int64_t>(dtype)); }
  Op& add_memory_format(MemoryFormat format) {
    return add(Token::Kind::memory_format, static_cast<std::int64_t>(format));
  }
  Op& add_keyword(Keyword keyword) {
    return add(Token::Kind::keyword, static_cast<std::int64_t>(keyword));
  }

  // The spellings by position, for callers that have the arguments at hand.
  static Op narrow(std::int64_t dim, std::int64_t start, std::int64_t length);
  static Op view(std::span<const std::int64_t> sizes);
  static Op view(DType dtype);
  static Op reshape(std::span<const std::int64_t> sizes);
  static Op getitem(std::int64_t index);
  static Op unsqueeze(std::int64_t dim);
  static Op squeeze();
  static Op squeeze(std::int64_t dim);
  static Op transpose(std::int64_t dim0, std::int64_t dim1);
  static Op t();
  static Op permute(std::span<const std::int64_t> dims);
  static Op flatten(std::int64_t start_dim, std::int64_t end_dim);
  static Op contiguous();
  static Op chunk(std::int64_t chunks, std::int64_t dim);
  static Op unbind(std::int64_t dim);
  static Op split(std::int64_t split_size, std::int64_t dim);
  static Op select(std::int64_t dim, std::int64_t index);

  OpKind kind() const { return kind_; }
  int token_count() const { return token_count_; }
  Token token(int i) const {
    const std::size_t at = static_cast<std::size_t>(i);
    return {kinds_[at], values_[at]};
  }

  bool operator==(const Op& other) const {
    return kind_ == other.kind_ && token_count_ == other.token_count_ &&
           std::equal(kinds_.begin(), kinds_.begin() + token_count_, other.kinds_.begin()) &&
           std::equal(values_.begin(), values_.begin() + token_count_, other.values_.begin());
  }

 private:
  OpKind kind_;
  std::int16_t token_count_ = 0;
  std::array<Token::Kind, kTokensMax> kinds_{};  // of each array, the first token_count_ count
  std::array<std::int64_t, kTokensMax> values_{};
};

// Equal for equal calls; not the same in every process.
std::uint64_t hash_of(const Op& op);

// The call as JSON: `["narrow",[0,1],{"length":2}]`. Keywords are sorted by name.
// Grammar: call = [NAME, [value...], {KEYWORD: value...}]; value = INTEGER | null |
// {"slice":[value,value,value]} | {"tuple":[value...]} | [value...] | {"ellipsis":true} |
// {"dtype":NAME} | {"memory_format":NAME}; what cannot be recorded is {"refused":KIND}.
std::string to_string(const Op& op);

}  // namespace crossmesh
