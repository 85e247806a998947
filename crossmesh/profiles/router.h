// SPDX-License-Identifier: Apache-2.0
// A profile of a pull transport: from which producer an engine rank pulls a name, and to which
// producers it signals that it is done with a group. Names route; groups free.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace crossmesh::profiles {

struct RouterFacts {
  int producer_count = 1;
  int consumer_count = 1;
  int workers_per_replica = 0;  // 0: all consumers are one deployment
  std::vector<std::string> names;
  std::vector<int> group_sizes;              // names of each gather group, in order
  std::vector<std::vector<int>> owner_sets;  // none: everyone holds everything
  std::vector<int> class_of_name;            // names past its end are of class 0
};

// A name that is listed twice has its last class and its last group.
class Router {
 public:
  // Throws: invalid_argument where the width of a deployment does not divide the consumers.
  explicit Router(RouterFacts facts);
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Throws: invalid_argument: an owner set is empty or names a producer that is out of range; a
  // name's class is none.
  void validate() const;

  int class_of(std::string_view name) const;
  // Throws: invalid_argument where the class of the name is none.
  const std::vector<int>& owners(std::string_view name) const;
  // The group of a name, or 0 for one that is in none.
  int group_of(std::string_view name) const;
  int group_count() const { return static_cast<int>(group_owners_.size()); }
  // Who is told that a group is done with: every producer that holds one of its names.
  const std::vector<int>& group_owners(int group) const;

  // Producers rotate by group, so that all names of a packed pull have one. The ranks of every
  // deployment choose alike. Throws: invalid_argument where the name has no owner.
  int producer_for(int consumer, std::string_view name) const;

  const RouterFacts& facts() const { return facts_; }

 private:
  RouterFacts facts_;
  int width_ = 1;
  std::vector<std::vector<int>> owner_sets_;
  std::unordered_map<std::string_view, int> class_by_name_;  // keys point into facts_.names
  std::unordered_map<std::string_view, int> group_by_name_;
  std::vector<std::vector<int>> group_owners_;
  std::vector<int> all_;
};

// What is told once to every engine rank, before a router is made of it.
// Throws: invalid_argument: no group sizes, sizes that do not add up to the names, a class table of
// another length than the names, or no producers.
void check_announcement(const RouterFacts& facts);

}  // namespace crossmesh::profiles
