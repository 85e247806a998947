// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/target/detail/live_index.h"

#include <algorithm>

#include "crossmesh/base/error.h"

namespace crossmesh::detail {
namespace {

bool lies_under(std::string_view name, std::string_view path) {
  if (path.empty()) return true;
  return name.size() > path.size() && name.substr(0, path.size()) == path &&
         name[path.size()] == '.';
}

}  // namespace

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

LiveIndex::LiveIndex(const ResolveRequest& request) : request_(request) {
  for (std::size_t p = 0; p < request.parameters.size(); ++p) {
    if (!by_name_.emplace(request.parameters[p].name, static_cast<int>(p)).second) {
      throw Error(ErrorCode::invalid_argument, "resolve: two parameters have one name")
          .with("parameter", request.parameters[p].name);
    }
  }
  for (const LiveParameter& parameter : request.parameters) {
    if (parameter.alias_of.empty()) continue;
    const auto first = by_name_.find(parameter.alias_of);
    if (first == by_name_.end() ||
        !request.parameters[static_cast<std::size_t>(first->second)].alias_of.empty()) {
      throw Error(ErrorCode::invalid_argument, "resolve: a second name of no parameter")
          .with("parameter", parameter.name)
          .with("alias of", parameter.alias_of);
    }
  }
  names_.resize(request.parameters.size());
  for (const LiveParameter& parameter : request.parameters) {
    if (parameter.alias_of.empty()) names_[index_of(parameter.name)] = {parameter.name};
  }
  for (const LiveParameter& parameter : request.parameters) {
    if (!parameter.alias_of.empty()) names_[index_of(parameter.alias_of)].push_back(parameter.name);
  }
  for (const LiveModule& module : request.modules) {
    const auto type =
        std::find(request.distrusted_types.begin(), request.distrusted_types.end(), module.type);
    if (type == request.distrusted_types.end()) continue;
    for (const LiveParameter& parameter : request.parameters) {
      if (lies_under(parameter.name, module.path)) distrusted_[owner(parameter.name)] = *type;
    }
  }
}

std::size_t LiveIndex::index_of(std::string_view name) const {
  return static_cast<std::size_t>(by_name_.at(name));
}

int LiveIndex::owner(std::string_view name) const {
  const int parameter = by_name_.at(name);
  const std::string& first = request_.parameters[static_cast<std::size_t>(parameter)].alias_of;
  return first.empty() ? parameter : by_name_.at(first);
}

std::optional<int> LiveIndex::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  if (at == by_name_.end() || alias(name) != nullptr) return std::nullopt;
  return at->second;
}

const LiveParameter* LiveIndex::alias(std::string_view name) const {
  const auto at = by_name_.find(name);
  if (at == by_name_.end()) return nullptr;
  const LiveParameter& parameter = request_.parameters[static_cast<std::size_t>(at->second)];
  return parameter.alias_of.empty() ? nullptr : &parameter;
}

std::string_view LiveIndex::distrusted_by(int parameter) const {
  const auto at = distrusted_.find(parameter);
  return at == distrusted_.end() ? std::string_view() : at->second;
}

std::optional<std::vector<int>> LiveIndex::fed_by(const AnnouncedTensor& tensor) const {
  std::vector<int> fed;
  if (!tensor.feeds) {
    if (by_name_.count(tensor.name) == 0) return std::nullopt;
    return std::vector<int>{owner(tensor.name)};
  }
  for (const std::string& name : *tensor.feeds) {
    if (by_name_.count(name) == 0) {
      throw Error(ErrorCode::invalid_argument, "resolve: a tensor feeds no such parameter")
          .with("tensor", tensor.name)
          .with("parameter", name);
    }
    fed.push_back(owner(name));
  }
  return fed;
}

}  // namespace crossmesh::detail
