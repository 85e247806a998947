// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/layout/spec.h"

#include <algorithm>
#include <charconv>

#include "crossmesh/base/error.h"

namespace crossmesh {
namespace {

constexpr std::string_view kHint = "write axis=size,..., for example fsdp=2,tp=2";
constexpr int kAxisSizeMax = 1'000'000;

void add_word(Spec& spec, std::string_view word) {
  const auto refuse = [&](const char* what) {
    return Error(ErrorCode::invalid_argument, what)
        .with("spec", spec.text)
        .with("word", word)
        .hint(kHint);
  };
  if (word.empty()) {
    throw Error(ErrorCode::invalid_argument, "read spec: a word is empty")
        .with("spec", spec.text)
        .hint(kHint);
  }
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) {
    spec.options.emplace_back(word);
    return;
  }
  Axis axis{std::string(word.substr(0, equals)), std::string(word.substr(equals + 1))};
  if (axis.name.empty()) throw refuse("read spec: an axis has no name");
  if (axis.value.empty()) throw refuse("read spec: an axis has no value");
  const bool repeated = std::any_of(spec.axes.begin(), spec.axes.end(),
                                    [&](const Axis& a) { return a.name == axis.name; });
  if (repeated) throw refuse("read spec: an axis is given twice");
  spec.axes.push_back(std::move(axis));
}

}  // namespace

Spec parse_spec(std::string_view text) {
  Spec spec;
  spec.text = text;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    add_word(spec, text.substr(begin, end - begin));
    begin = end + 1;
  }
  return spec;
}

int axis_size(const Spec& spec, std::string_view name) {
  for (const Axis& axis : spec.axes) {
    if (axis.name != name) continue;
    const char* end = axis.value.data() + axis.value.size();
    int size = 0;
    const auto [stop, error] = std::from_chars(axis.value.data(), end, size);
    if (error != std::errc() || stop != end || size < 1 || size > kAxisSizeMax) {
      throw Error(ErrorCode::invalid_argument, "read spec: a size is not a number in its range")
          .with("spec", spec.text)
          .with("axis", axis.name)
          .with("size", axis.value)
          .with("range", "1 to 1000000");
    }
    return size;
  }
  return 1;
}

}  // namespace crossmesh
