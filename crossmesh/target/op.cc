// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/op.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::array<std::string_view, kOpKindCount> kOpNames = {
    "narrow",  "view",    "reshape",    "__getitem__", "unsqueeze", "squeeze", "transpose", "t",
    "permute", "flatten", "contiguous", "chunk",       "unbind",    "split",   "select",
};

constexpr std::array<std::string_view, 4> kMemoryFormatNames = {
    "contiguous_format",
    "channels_last",
    "channels_last_3d",
    "preserve_format",
};

constexpr std::array<std::string_view, static_cast<std::size_t>(Keyword::other) + 1> kKeywordNames =
    {
        "chunks", "dim",           "dim0",  "dim1", "dims",       "dtype", "end_dim",   "index",
        "length", "memory_format", "shape", "size", "split_size", "start", "start_dim", "?",
};

constexpr std::array<std::string_view, kDTypeCount> kTorchNames = {
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
};

constexpr std::array<std::string_view, 4> kRefusedNames = {"boolean", "number", "text", "tensor"};

// Appends the value that starts at token `at`, and returns where the next one starts.
int append_value(const Op& op, int at, std::string& text) {
  const auto append_items = [&](int first, std::int64_t count) {
    int next = first;
    for (std::int64_t i = 0; i < count && next < op.token_count(); ++i) {
      if (i > 0) text += ",";
      next = append_value(op, next, text);
    }
    return next;
  };
  const Token token = op.token(at);
  const std::size_t value = static_cast<std::size_t>(token.value);
  int next = at + 1;
  switch (token.kind) {
    case Token::Kind::integer:
      text += fmt::format("{}", token.value);
      break;
    case Token::Kind::none:
      text += "null";
      break;
    case Token::Kind::ellipsis:
      text += R"({"ellipsis":true})";
      break;
    case Token::Kind::slice:
      text += R"({"slice":[)";
      next = append_items(next, 3);
      text += "]}";
      break;
    case Token::Kind::tuple:
      text += R"({"tuple":[)";
      next = append_items(next, token.value);
      text += "]}";
      break;
    case Token::Kind::list:
      text += "[";
      next = append_items(next, token.value);
      text += "]";
      break;
    case Token::Kind::dtype:
      text += fmt::format(R"({{"dtype":"{}"}})", kTorchNames[value]);
      break;
    case Token::Kind::memory_format:
      text += fmt::format(R"({{"memory_format":"{}"}})", kMemoryFormatNames[value]);
      break;
    case Token::Kind::keyword:
      break;
    default:
      text += fmt::format(R"({{"refused":"{}"}})",
                          kRefusedNames[static_cast<std::size_t>(token.kind) -
                                        static_cast<std::size_t>(Token::Kind::boolean)]);
  }
  return next;
}

Op with_integers(OpKind kind, std::initializer_list<std::int64_t> values) {
  Op op(kind);
  for (const std::int64_t value : values) op.add_integer(value);
  return op;
}

}  // namespace

std::string_view name_of(OpKind kind) { return kOpNames[static_cast<std::size_t>(kind)]; }

bool yields_several(OpKind kind) {
  return kind == OpKind::chunk || kind == OpKind::unbind || kind == OpKind::split;
}

std::string_view name_of(MemoryFormat format) {
  return kMemoryFormatNames[static_cast<std::size_t>(format)];
}

std::string_view name_of(Keyword keyword) {
  return kKeywordNames[static_cast<std::size_t>(keyword)];
}

Keyword keyword_from_name(std::string_view name) {
  const auto found = std::find(kKeywordNames.begin(), kKeywordNames.end() - 1, name);
  return static_cast<Keyword>(found - kKeywordNames.begin());
}

Op& Op::add(Token::Kind kind, std::int64_t value) {
  if (token_count_ == kTokensMax) {
    throw Error(ErrorCode::unsupported, "record: a call has too many arguments")
        .with("operation", name_of(kind_))
        .with("limit", kTokensMax);
  }
  const std::size_t at = static_cast<std::size_t>(token_count_++);
  kinds_[at] = kind;
  values_[at] = value;
  return *this;
}

Op& Op::add_integers(std::span<const std::int64_t> values) {
  for (const std::int64_t value : values) add_integer(value);
  return *this;
}

Op Op::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) {
  return with_integers(OpKind::narrow, {dim, start, length});
}

// A sequence, so that no sizes at all (a scalar) can be told from no argument.
Op Op::view(std::span<const std::int64_t> sizes) {
  return Op(OpKind::view).add_tuple(static_cast<std::int64_t>(sizes.size())).add_integers(sizes);
}

Op Op::view(DType dtype) { return Op(OpKind::view).add_dtype(dtype); }

Op Op::reshape(std::span<const std::int64_t> sizes) {
  return Op(OpKind::reshape).add_tuple(static_cast<std::int64_t>(sizes.size())).add_integers(sizes);
}

Op Op::getitem(std::int64_t index) { return with_integers(OpKind::getitem, {index}); }
Op Op::unsqueeze(std::int64_t dim) { return with_integers(OpKind::unsqueeze, {dim}); }
Op Op::squeeze() { return Op(OpKind::squeeze); }
Op Op::squeeze(std::int64_t dim) { return with_integers(OpKind::squeeze, {dim}); }

Op Op::transpose(std::int64_t dim0, std::int64_t dim1) {
  return with_integers(OpKind::transpose, {dim0, dim1});
}

Op Op::t() { return Op(OpKind::t); }

Op Op::permute(std::span<const std::int64_t> dims) {
  return Op(OpKind::permute).add_tuple(static_cast<std::int64_t>(dims.size())).add_integers(dims);
}

Op Op::flatten(std::int64_t start_dim, std::int64_t end_dim) {
  return with_integers(OpKind::flatten, {start_dim, end_dim});
}

Op Op::contiguous() { return Op(OpKind::contiguous); }

Op Op::chunk(std::int64_t chunks, std::int64_t dim) {
  return with_integers(OpKind::chunk, {chunks, dim});
}

Op Op::unbind(std::int64_t dim) { return with_integers(OpKind::unbind, {dim}); }

Op Op::split(std::int64_t split_size, std::int64_t dim) {
  return with_integers(OpKind::split, {split_size, dim});
}

Op Op::select(std::int64_t dim, std::int64_t index) {
  return with_integers(OpKind::select, {dim, index});
}

std::uint64_t hash_of(const Op& op) {
  // One multiplication and shift per token: tables are small, and every recorded call hashes once.
  std::uint64_t hash = static_cast<std::uint64_t>(op.kind()) + 1;
  for (int i = 0; i < op.token_count(); ++i) {
    const Token token = op.token(i);
    hash = (hash ^ static_cast<std::uint64_t>(token.value)) * 0x9e3779b97f4a7c15U;
    hash ^= (hash >> 29) + static_cast<std::uint64_t>(token.kind);
  }
  return hash * 0xff51afd7ed558ccdU;
}

std::string to_string(const Op& op) {
  std::string arguments;
  std::vector<std::pair<std::string_view, std::string>> by_keyword;
  for (int at = 0; at < op.token_count();) {
    const Token token = op.token(at);
    if (token.kind == Token::Kind::keyword && at + 1 < op.token_count()) {
      auto& entry = by_keyword.emplace_back(name_of(static_cast<Keyword>(token.value)), "");
      at = append_value(op, at + 1, entry.second);
      continue;
    }
    if (!arguments.empty()) arguments += ",";
    at = append_value(op, at, arguments);
  }
  std::sort(by_keyword.begin(), by_keyword.end());
  std::string keywords;
  for (const auto& [name, value] : by_keyword) {
    keywords += fmt::format("{}\"{}\":{}", keywords.empty() ? "" : ",", name, value);
  }
  return fmt::format(R"(["{}",[{}],{{{}}}])", name_of(op.kind()), arguments, keywords);
}

}  // namespace crossmesh
