// SPDX-License-Identifier: Apache-2.0
// The arguments of a call, bound to the names of torch's parameters: by position, by keyword, a
// sequence spelled as a tuple, a list or as the arguments themselves.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "crossmesh/geometry/dim_vector.h"
#include "crossmesh/target/op.h"

namespace crossmesh::detail {

class Arguments {
 public:
  // Binds `op` to `parameters`, in their order. With `spread`, a call whose first argument is an
  // integer may spell the sequence of the only parameter as several arguments.
  // Throws: invalid_argument where an argument has no parameter, or a parameter two arguments.
  Arguments(const Op& op, std::initializer_list<Keyword> parameters, bool spread = false);

  bool has(Keyword parameter) const { return token_at(parameter) >= 0; }

  // Throws: invalid_argument where the argument is missing or of another kind; unsupported where
  // it is a tensor.
  std::int64_t integer(Keyword parameter) const;
  std::int64_t integer_or(Keyword parameter, std::int64_t fallback) const;
  DimVector integers(Keyword parameter) const;
  DType dtype(Keyword parameter) const;
  MemoryFormat memory_format(Keyword parameter) const;

  // Of what kind the argument is; nothing when it is absent.
  std::optional<Token::Kind> kind(Keyword parameter) const;

 private:
  int token_at(Keyword parameter) const;
  Token required(Keyword parameter) const;

  const Op& op_;
  std::array<std::int8_t, static_cast<std::size_t>(Keyword::other)> token_of_parameter_;
  int spread_count_ = 0;
};

// One past the last token of the value that starts at `at`.
// Throws: invalid_argument where the tokens end before the value does.
int end_of_value(const Op& op, int at);

// How a value is called in an error: `a tensor`, `None`.
std::string_view describe(Token::Kind kind);

}  // namespace crossmesh::detail
