// SPDX-License-Identifier: Apache-2.0
// How nouns show themselves in a prompt and in a notebook: their name and a few facts, as one line
// and as a small table.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace crossmesh::python {

using Facts = std::vector<std::pair<std::string, std::string>>;

template <typename Value>
std::pair<std::string, std::string> fact(std::string_view key, const Value& value) {
  return {std::string(key), fmt::format("{}", value)};
}

// `Catalog(tensors=20, bytes=1234)`
std::string line_of(std::string_view noun, const Facts& facts);

// A table of two columns under the noun's name. Texts are escaped.
std::string table_of(std::string_view noun, const Facts& facts);

// Gives a bound type the `__repr__` and `_repr_html_` of the facts that `facts_of` tells of it.
template <typename T, typename... Extra, typename FactsOf>
void show(nanobind::class_<T, Extra...>& type, FactsOf facts_of) {
  const std::string noun = nanobind::cast<std::string>(type.attr("__name__"));
  type.def("__repr__", [=](const T& value) { return line_of(noun, facts_of(value)); });
  type.def("_repr_html_", [=](const T& value) { return table_of(noun, facts_of(value)); });
}

// Compares values; what is of another type is not equal.
template <typename T, typename... Extra>
void compare(nanobind::class_<T, Extra...>& type) {
  type.def("__eq__", [](const T& a, nanobind::handle b) {
    return nanobind::isinstance<T>(b) && a == nanobind::cast<const T&>(b);
  });
}

}  // namespace crossmesh::python
