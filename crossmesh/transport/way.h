// SPDX-License-Identifier: Apache-2.0
// The ways in which a rank takes bytes from the memory of another process of its host. A way is
// chosen per pair of ranks; it says nothing of what is moved.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace crossmesh {

enum class ShmWay : std::uint32_t {
  automatic,  // memfd for shareable memory; for private memory attach, or ring where that fails
  memfd,      // maps what the source shares; private memory cannot be given
  attach,     // reads the source's memory by process_vm_readv
  ring,       // unpacks what the source packs into a bounded ring while it advances
};

inline constexpr std::array kShmWays = {ShmWay::automatic, ShmWay::memfd, ShmWay::attach,
                                        ShmWay::ring};

constexpr std::string_view name_of(ShmWay way) {
  switch (way) {
    case ShmWay::automatic:
      return "automatic";
    case ShmWay::memfd:
      return "memfd";
    case ShmWay::attach:
      return "attach";
    case ShmWay::ring:
      return "ring";
  }
  return "";
}

}  // namespace crossmesh
