// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/arguments.h"

#include "crossmesh/base/error.h"
#include "crossmesh/target/strided_tensor.h"

namespace crossmesh::detail {
namespace {

Error refuse_type(const Op& op, std::string_view what) {
  return torch_refusal(op.kind(), what, TorchRaises::type_error);
}

// Tensors are legal in torch, but their values are not known while a loader is recorded.
Error refuse_value(const Op& op, std::string_view parameter, Token::Kind kind) {
  if (kind == Token::Kind::tensor) {
    return Error(ErrorCode::unsupported,
                 std::string(name_of(op.kind())) + ": a tensor cannot be recorded as an argument")
        .with("argument", parameter);
  }
  return refuse_type(op, "an argument is of the wrong type")
      .with("argument", parameter)
      .with("given", describe(kind));
}

bool is_sequence(Token::Kind kind) {
  return kind == Token::Kind::tuple || kind == Token::Kind::list;
}

}  // namespace

int end_of_value(const Op& op, int at) {
  const Token token = op.token(at);
  std::int64_t items = 0;
  if (is_sequence(token.kind)) items = token.value;
  if (token.kind == Token::Kind::slice) items = 3;
  if (token.kind == Token::Kind::keyword) items = 1;
  int end = at + 1;
  for (std::int64_t i = 0; i < items; ++i) {
    if (end >= op.token_count()) throw refuse_type(op, "a sequence is cut short");
    end = end_of_value(op, end);
  }
  return end;
}

std::string_view describe(Token::Kind kind) {
  constexpr std::array<std::string_view, 13> kNames = {
      "an integer",      "None",      "Ellipsis",  "a slice",  "a tuple", "a list",   "a dtype",
      "a memory format", "a keyword", "a boolean", "a number", "text",    "a tensor",
  };
  return kNames[static_cast<std::size_t>(kind)];
}

Arguments::Arguments(const Op& op, std::initializer_list<Keyword> parameters, bool spread)
    : op_(op) {
  token_of_parameter_.fill(-1);
  const auto bind = [&](Keyword parameter, int at) {
    std::int8_t& token = token_of_parameter_[static_cast<std::size_t>(parameter)];
    if (token >= 0) {
      throw refuse_type(op, "an argument is given twice").with("argument", name_of(parameter));
    }
    token = static_cast<std::int8_t>(at);
  };
  std::size_t position = 0;
  for (int at = 0; at < op.token_count(); at = end_of_value(op, at)) {
    const Token token = op.token(at);
    if (token.kind == Token::Kind::keyword) {
      const Keyword keyword = static_cast<Keyword>(token.value);
      if (std::find(parameters.begin(), parameters.end(), keyword) == parameters.end()) {
        throw refuse_type(op, "a keyword is none of its parameters")
            .with("keyword", name_of(keyword));
      }
      bind(keyword, at + 1);
      continue;
    }
    if (position < parameters.size()) {
      bind(parameters.begin()[position++], at);
      if (spread && token.kind == Token::Kind::integer) spread_count_ = 1;
    } else if (spread_count_ > 0) {
      if (token.kind != Token::Kind::integer) {
        throw refuse_value(op, name_of(*parameters.begin()), token.kind);
      }
      ++spread_count_;
    } else {
      throw refuse_type(op, "there are too many arguments").with("limit", parameters.size());
    }
  }
}

int Arguments::token_at(Keyword parameter) const {
  return token_of_parameter_[static_cast<std::size_t>(parameter)];
}

std::optional<Token::Kind> Arguments::kind(Keyword parameter) const {
  if (!has(parameter)) return std::nullopt;
  return op_.token(token_at(parameter)).kind;
}

Token Arguments::required(Keyword parameter) const {
  if (!has(parameter)) {
    throw refuse_type(op_, "an argument is missing").with("argument", name_of(parameter));
  }
  return op_.token(token_at(parameter));
}

std::int64_t Arguments::integer(Keyword parameter) const {
  const Token token = required(parameter);
  if (token.kind != Token::Kind::integer) {
    throw refuse_value(op_, name_of(parameter), token.kind);
  }
  return token.value;
}

std::int64_t Arguments::integer_or(Keyword parameter, std::int64_t fallback) const {
  return has(parameter) ? integer(parameter) : fallback;
}

DimVector Arguments::integers(Keyword parameter) const {
  const Token token = required(parameter);
  int first = token_at(parameter);
  std::int64_t count = spread_count_;
  if (is_sequence(token.kind)) {
    ++first;
    count = token.value;
  } else if (count == 0 || token.kind != Token::Kind::integer) {
    throw refuse_value(op_, name_of(parameter), token.kind);
  }
  if (count > kDimsMax) {
    throw Error(ErrorCode::unsupported,
                std::string(name_of(op_.kind())) + ": a sequence has too many items")
        .with("items", count)
        .with("limit", kDimsMax);
  }
  DimVector values;
  for (int i = 0; i < count; ++i) {
    const Token item = op_.token(first + i);
    if (item.kind != Token::Kind::integer) {
      throw refuse_value(op_, name_of(parameter), item.kind);
    }
    values.push_back(item.value);
  }
  return values;
}

DType Arguments::dtype(Keyword parameter) const {
  const Token token = required(parameter);
  if (token.kind != Token::Kind::dtype) throw refuse_value(op_, name_of(parameter), token.kind);
  return static_cast<DType>(token.value);
}

MemoryFormat Arguments::memory_format(Keyword parameter) const {
  const Token token = required(parameter);
  if (token.kind != Token::Kind::memory_format) {
    throw refuse_value(op_, name_of(parameter), token.kind);
  }
  return static_cast<MemoryFormat>(token.value);
}

}  // namespace crossmesh::detail
