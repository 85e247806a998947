// SPDX-License-Identifier: Apache-2.0
// Names that differ in numbers only are told together: `model.layers.{0-27}.mlp.down_proj.weight`.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "crossmesh/layout/layout.h"

namespace crossmesh {
namespace {

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// `0-3, 6`. Requires: ascending and distinct.
std::string join_ranges(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += fmt::format("{}", numbers[begin]);
    if (end - begin > 1) text += fmt::format("-{}", numbers[end - 1]);
    begin = end;
  }
  return text;
}

// -- Names ---------------------------------------------------------------------------------------

// A name cut at its numbers: `layers.7.bias` is {"layers.", ".bias"} and {7}.
struct NumberedName {
  std::vector<std::string> texts;
  std::vector<std::int64_t> numbers;
};

// Only whole words between dots count as numbers, and none that would print in another way.
bool is_number(std::string_view word) {
  if (word.empty() || word.size() > 9 || (word.size() > 1 && word[0] == '0')) return false;
  return std::all_of(word.begin(), word.end(), [](char c) { return '0' <= c && c <= '9'; });
}

NumberedName cut_name(std::string_view name) {
  NumberedName cut{{""}, {}};
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (begin > 0) cut.texts.back() += '.';
    if (is_number(word)) {
      cut.numbers.push_back(std::stoll(std::string(word)));
      cut.texts.emplace_back();
    } else {
      cut.texts.back() += word;
    }
    begin = end + 1;
  }
  return cut;
}

// `texts` with a set of numbers in each gap, from `sets[begin]` on.
std::string fill_gaps(const std::vector<std::string>& texts,
                      const std::vector<std::set<std::int64_t>>& sets, std::size_t begin) {
  std::string text = texts[0];
  for (std::size_t gap = 0; gap + 1 < texts.size(); ++gap) {
    const std::set<std::int64_t>& set = sets[begin + gap];
    const std::string ranges = join_ranges({set.begin(), set.end()});
    text += set.size() == 1 ? ranges : "{" + ranges + "}";
    text += texts[gap + 1];
  }
  return text;
}

// Pairs of names whose texts are equal, and the places of each in its parameter.
struct NamePairs {
  std::vector<std::string> tensor_texts;
  std::vector<std::string> parameter_texts;
  // Numbers are the tensor's, then the parameter's.
  std::map<std::vector<std::int64_t>, std::set<std::int64_t>> offsets_of_numbers;
};

std::string show_offsets(const std::set<std::int64_t>& offsets) {
  if (offsets.size() == 1) return fmt::format("+{}", *offsets.begin());
  return fmt::format("+{} to +{}", *offsets.begin(), *offsets.rbegin());
}

std::string show_pair(const NamePairs& names, const std::vector<std::set<std::int64_t>>& sets,
                      const std::set<std::int64_t>& offsets) {
  const std::string tensor = fill_gaps(names.tensor_texts, sets, 0);
  const std::string parameter =
      fill_gaps(names.parameter_texts, sets, names.tensor_texts.size() - 1);
  const std::string arrow = tensor == parameter ? "" : " -> " + parameter;
  return fmt::format("{}{} {}", tensor, arrow, show_offsets(offsets));
}

// One line when the numbers are a full product and the parameter's repeat the tensor's first ones,
// so that nobody can read another set of names into it; a line per pair otherwise.
std::vector<std::string> show_pairs(const NamePairs& names) {
  std::vector<std::set<std::int64_t>> sets(names.offsets_of_numbers.begin()->first.size());
  std::set<std::int64_t> all_offsets;
  const std::size_t of_tensor = names.tensor_texts.size() - 1;
  bool clear = sets.size() - of_tensor <= of_tensor;
  for (const auto& [numbers, offsets] : names.offsets_of_numbers) {
    for (std::size_t i = 0; i < sets.size(); ++i) {
      sets[i].insert(numbers[i]);
      if (clear && i >= of_tensor) clear = numbers[i] == numbers[i - of_tensor];
    }
    all_offsets.insert(offsets.begin(), offsets.end());
  }
  std::size_t product = 1;
  for (std::size_t i = 0; i < of_tensor; ++i) product *= sets[i].size();
  if (clear && product == names.offsets_of_numbers.size()) {
    return {show_pair(names, sets, all_offsets)};
  }
  std::vector<std::string> lines;
  for (const auto& [numbers, offsets] : names.offsets_of_numbers) {
    std::vector<std::set<std::int64_t>> one;
    for (const std::int64_t number : numbers) one.push_back({number});
    lines.push_back(show_pair(names, one, offsets));
  }
  return lines;
}

// -- Tables --------------------------------------------------------------------------------------

// A line per value; one for values that count up with their only ranks.
std::string explain_ranks(const std::vector<int>& value_of_rank, std::string_view what) {
  std::map<int, std::vector<std::int64_t>> ranks_of_value;
  for (std::size_t rank = 0; rank < value_of_rank.size(); ++rank) {
    ranks_of_value[value_of_rank[rank]].push_back(static_cast<std::int64_t>(rank));
  }
  std::string text;
  for (auto begin = ranks_of_value.begin(); begin != ranks_of_value.end();) {
    auto last = begin, next = std::next(begin);
    std::vector<std::int64_t> ranks = begin->second;
    while (next != ranks_of_value.end() && last->first >= 0 && last->second.size() == 1 &&
           next->second == std::vector{last->second[0] + 1} && next->first == last->first + 1) {
      ranks.push_back(next->second[0]);
      last = next++;
    }
    if (begin->first < 0) {
      text += "  no part";
    } else if (last == begin) {
      text += fmt::format("  {} {}", what, begin->first);
    } else {
      text += fmt::format("  {}s {}-{}", what, begin->first, last->first);
    }
    text += fmt::format("  {} {}\n", ranks.size() == 1 ? "rank" : "ranks", join_ranges(ranks));
    begin = next;
  }
  return text;
}

std::string explain_piece(const Piece& piece) {
  return fmt::format("{} at {}+{}", to_string(piece.box), to_string(piece.view.strides),
                     piece.view.offset);
}

std::string explain_class(const LayoutClass& c) {
  std::string text = fmt::format("  {} {}\n", name_of(c.dtype), to_string(c.space));
  for (std::size_t role = 0; role < c.pieces_of_role.size(); ++role) {
    text += fmt::format("  role {}", role);
    if (c.pieces_of_role[role].empty()) text += "  nothing";
    const std::string indent(fmt::format("  role {}", role).size(), ' ');
    for (std::size_t p = 0; p < c.pieces_of_role[role].size(); ++p) {
      if (p > 0) text += "\n" + indent;
      text += "  " + explain_piece(c.pieces_of_role[role][p]);
    }
    text += "\n";
  }
  return text;
}

std::string_view name_of_kind(Reserve::Kind kind) {
  switch (kind) {
    case Reserve::Kind::fill:
      return "fill";
    case Reserve::Kind::kept:
      return "kept";
    case Reserve::Kind::derived:
      return "derived";
  }
  return "unknown";
}

std::string explain_parameter_class(const ParameterClass& c) {
  std::string text = fmt::format("  {}\n", name_of(c.dtype));
  for (std::size_t role = 0; role < c.shape_of_role.size();) {
    std::size_t end = role + 1;
    while (end < c.shape_of_role.size() && c.shape_of_role[end] == c.shape_of_role[role] &&
           c.strides_of_role[end] == c.strides_of_role[role]) {
      ++end;
    }
    text += end - role == 1 ? fmt::format("  role {}", role)
                            : fmt::format("  roles {}-{}", role, end - 1);
    text += fmt::format("  {}:{}\n", to_string(c.shape_of_role[role]),
                        to_string(c.strides_of_role[role]));
    role = end;
  }
  for (const Reserve& r : c.reserves) {
    text += fmt::format("  role {}  {}", r.role, name_of_kind(r.kind));
    if (r.kind == Reserve::Kind::fill) text += fmt::format(" {:#x}", r.value_bits);
    text += fmt::format(" {}", to_string(r.region));
    text += r.reason.empty() ? "\n" : fmt::format("  {}\n", r.reason);
  }
  return text;
}

// -- Instances -----------------------------------------------------------------------------------

// What instances that are told on one line have in common.
struct GroupKey {
  int binding;
  int parameter_class;
  int opaque_reason;
  std::vector<std::string> tensor_texts;
  std::vector<std::string> parameter_texts;

  auto operator<=>(const GroupKey&) const = default;
};

std::string explain_instances(const Layout& layout, int layout_class) {
  std::map<GroupKey, std::size_t> index_of_key;
  std::vector<std::pair<GroupKey, NamePairs>> groups;  // in the order of their first instances
  for (const Instance& i : layout.instances) {
    if (i.layout_class != layout_class) continue;
    const Parameter& p = layout.parameters[static_cast<std::size_t>(i.parameter)];
    NumberedName tensor = cut_name(layout.tensors[static_cast<std::size_t>(i.tensor)].name);
    const NumberedName parameter = cut_name(p.name);
    const GroupKey key{i.binding, p.parameter_class, i.opaque_reason, tensor.texts,
                       parameter.texts};
    const auto [at, added] = index_of_key.try_emplace(key, groups.size());
    if (added) groups.emplace_back(key, NamePairs{tensor.texts, parameter.texts, {}});
    tensor.numbers.insert(tensor.numbers.end(), parameter.numbers.begin(), parameter.numbers.end());
    groups[at->second].second.offsets_of_numbers[std::move(tensor.numbers)].insert(i.offset);
  }
  std::string text;
  for (const auto& [key, names] : groups) {
    for (const std::string& line : show_pairs(names)) {
      text += fmt::format("  {}, binding {}, parameter class {}", line, key.binding,
                          key.parameter_class);
      if (key.opaque_reason >= 0) {
        text += fmt::format(", opaque: {}",
                            layout.reasons[static_cast<std::size_t>(key.opaque_reason)]);
      }
      text += "\n";
    }
  }
  return text;
}

std::string explain_ties(const Layout& layout) {
  std::string text;
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const std::size_t owner = static_cast<std::size_t>(layout.parameters[p].storage);
    if (owner == p) continue;
    text += fmt::format("  {} is {}\n", layout.parameters[p].name, layout.parameters[owner].name);
  }
  return text.empty() ? "" : "tied parameters\n" + text;
}

// Parameters that hold their own memory and take no tensor.
std::string explain_unfed(const Layout& layout) {
  std::vector<bool> fed(layout.parameters.size());
  for (const Instance& i : layout.instances) fed[static_cast<std::size_t>(i.parameter)] = true;
  std::string text;
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const Parameter& parameter = layout.parameters[p];
    if (fed[p] || static_cast<std::size_t>(parameter.storage) != p) continue;
    text += fmt::format("  {}, binding {}, parameter class {}\n", parameter.name, parameter.binding,
                        parameter.parameter_class);
  }
  return text.empty() ? "" : "parameters without tensors\n" + text;
}

}  // namespace

std::string explain(const Layout& layout) {
  std::string text = fmt::format("layout of {}: {}, {}, {}\n", layout.model,
                                 plural(static_cast<std::size_t>(layout.rank_count), "rank"),
                                 plural(layout.tensors.size(), "tensor"),
                                 plural(layout.parameters.size(), "parameter"));
  text += explain_ranks(layout.replica_of_rank, "replica");
  for (std::size_t b = 0; b < layout.bindings.size(); ++b) {
    text +=
        fmt::format("binding {}\n{}", b, explain_ranks(layout.bindings[b].role_of_rank, "role"));
  }
  for (std::size_t c = 0; c < layout.parameter_classes.size(); ++c) {
    text += fmt::format("parameter class {}\n{}", c,
                        explain_parameter_class(layout.parameter_classes[c]));
  }
  text += explain_ties(layout) + explain_unfed(layout);
  for (std::size_t c = 0; c < layout.classes.size(); ++c) {
    text += fmt::format("class {}\n{}", c, explain_class(layout.classes[c]));
    const std::string instances = explain_instances(layout, static_cast<int>(c));
    if (!instances.empty()) text += fmt::format("instances of class {}\n{}", c, instances);
  }
  if (!layout.unused.empty()) text += "unused\n";
  for (const Unused& unused : layout.unused) {
    text += fmt::format("  {}  {}\n", unused.name, unused.why);
  }
  return text;
}

}  // namespace crossmesh
