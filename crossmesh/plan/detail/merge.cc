// SPDX-License-Identifier: Apache-2.0
#include "crossmesh/plan/detail/merge.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace crossmesh::detail {
namespace {

bool begins_at(const Copy& later, const Copy& earlier, int dim, std::int64_t steps,
               const Copy& strides) {
  return later.source.offset - earlier.source.offset == steps * strides.source.strides[dim] &&
         later.target.offset - earlier.target.offset == steps * strides.target.strides[dim];
}

// `copy` with one more dimension of extent 1, where `like` has dimension `dim`.
Copy widened(const Copy& copy, const Copy& like, int dim) {
  Copy wide = copy;
  wide.counts = wide.source.strides = wide.target.strides = {};
  int from = 0;
  for (int d = 0; d < like.counts.size(); ++d) {
    const bool is_new = d == dim;
    wide.counts.push_back(is_new ? 1 : copy.counts[from]);
    wide.source.strides.push_back((is_new ? like : copy).source.strides[is_new ? d : from]);
    wide.target.strides.push_back((is_new ? like : copy).target.strides[is_new ? d : from]);
    if (!is_new) ++from;
  }
  return wide;
}

// Joins copies of equal ranks and strides that differ in the count of `dim` at most.
std::optional<Copy> joined_along(const Copy& a, const Copy& b, int dim) {
  for (int d = 0; d < a.counts.size(); ++d) {
    if (d != dim && a.counts[d] != b.counts[d]) return std::nullopt;
  }
  const bool a_first = begins_at(b, a, dim, a.counts[dim], a);
  if (!a_first && !begins_at(a, b, dim, b.counts[dim], a)) return std::nullopt;
  Copy both = a_first ? a : b;
  both.counts[dim] = a.counts[dim] + b.counts[dim];
  return canonical(both);
}

std::optional<Copy> joined(const Copy& a, const Copy& b) {
  const int rank = std::max(a.counts.size(), b.counts.size());
  if (std::min(a.counts.size(), b.counts.size()) < rank - 1) return std::nullopt;
  for (int d = 0; d < rank; ++d) {
    const Copy wide_a = a.counts.size() < rank ? widened(a, b, d) : a;
    const Copy wide_b = b.counts.size() < rank ? widened(b, a, d) : b;
    if (wide_a.source.strides != wide_b.source.strides) continue;
    if (wide_a.target.strides != wide_b.target.strides) continue;
    if (std::optional<Copy> both = joined_along(wide_a, wide_b, d)) return both;
  }
  return std::nullopt;
}

// Joins neighbours of [first, last) until none continues the next.
void join_run(std::vector<Copy>& copies, std::size_t first) {
  for (bool changed = true; changed;) {
    changed = false;
    std::size_t kept = first;
    for (std::size_t i = first + 1; i < copies.size(); ++i) {
      if (std::optional<Copy> both = joined(copies[kept], copies[i])) {
        copies[kept] = *both;
        changed = true;
      } else if (++kept != i) {
        copies[kept] = copies[i];
      }
    }
    if (first < copies.size()) copies.resize(kept + 1);
  }
}

}  // namespace

Copy canonical(const Copy& copy) {
  Copy out = copy;
  out.counts = out.source.strides = out.target.strides = {};
  for (int d = 0; d < copy.counts.size(); ++d) {
    if (copy.counts[d] == 1) continue;
    const int last = out.counts.size() - 1;
    const bool continues = last >= 0 &&
                           out.source.strides[last] == copy.source.strides[d] * copy.counts[d] &&
                           out.target.strides[last] == copy.target.strides[d] * copy.counts[d];
    if (!continues) {
      out.counts.push_back(copy.counts[d]);
      out.source.strides.push_back(copy.source.strides[d]);
      out.target.strides.push_back(copy.target.strides[d]);
      continue;
    }
    out.counts[last] *= copy.counts[d];
    out.source.strides[last] = copy.source.strides[d];
    out.target.strides[last] = copy.target.strides[d];
  }
  return out;
}

std::vector<Copy> merged(std::vector<Draft> drafts) {
  const auto key = [](const Draft& d) {
    return std::tuple(d.copy.source_role, d.source_piece, d.target_piece);
  };
  std::stable_sort(drafts.begin(), drafts.end(),
                   [&](const Draft& a, const Draft& b) { return key(a) < key(b); });
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < drafts.size();) {
    const std::size_t first = copies.size();
    const auto of_run = key(drafts[i]);
    for (; i < drafts.size() && key(drafts[i]) == of_run; ++i) copies.push_back(drafts[i].copy);
    if (copies.size() - first > 1) join_run(copies, first);
  }
  std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return std::tuple(a.source_role, a.target.offset) < std::tuple(b.source_role, b.target.offset);
  });
  return copies;
}

}  // namespace crossmesh::detail
