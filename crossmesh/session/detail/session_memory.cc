// SPDX-License-Identifier: Apache-2.0
// A rank's memory as its session uses it: what peers may reach, and what moves between them.
#include "crossmesh/base/error.h"
#include "crossmesh/session/detail/agreement.h"
#include "crossmesh/session/detail/session_impl.h"
#include "crossmesh/session/staging.h"

namespace crossmesh {

void Session::Impl::enroll_memory(const Layout& layout, const ParameterMemory& memory) {
  check_memory(layout, side_rank(), memory);
  std::vector<Region> region_of_buffer;
  for (const Buffer& buffer : memory.buffers) {
    const bool empty = buffer.size_bytes == 0;
    region_of_buffer.push_back(empty ? -1 : transport->enroll(buffer));
    if (!empty) region_bytes.push_back(buffer.data);
  }
  for (const ParameterPlace& place : memory.places) {
    const Region region =
        place.buffer < 0 ? -1 : region_of_buffer[static_cast<std::size_t>(place.buffer)];
    places.push_back({region, place.offset_bytes});
  }
}

void Session::Impl::enroll_staging() {
  const Schedule& s = *schedule;
  if (is_source()) {
    Moves moves = moves_of_source(s, side_rank(), places);
    if (s.options.route == Route::packed && !moves.transfers_of_peer.empty()) {
      const int peers = static_cast<int>(moves.transfers_of_peer.size());
      giver_staging.share = share_staging(s.options.staging_bytes_max, peers, options.rank);
      const std::int64_t bytes =
          giver_staging.share.slot_bytes * giver_staging.share.slot_count * peers;
      staging = reserve_shared("crossmesh-staging", bytes);
      giver_staging.data = staging.mapping.data();
      giver_staging.region =
          transport->enroll({staging.mapping.data(), bytes, staging.fd.get(), 0});
    }
    giver.emplace(*transport, std::move(moves), options.source_count, region_bytes, giver_staging);
    given_digests.emplace(desk, s, options.digest,
                          GivenDigests(giver->moves(), region_bytes, options.digest));
    return;
  }
  const std::int64_t bytes = fallback_bytes(s, side_rank());
  if (bytes == 0) return;
  if (!loader) {
    throw Error(ErrorCode::invalid_argument, "agree: opaque tensors need the engine's loader")
        .with("rank", options.rank)
        .with("fallback bytes", bytes);
  }
  fallback = reserve_private(bytes);
  fallback_region = transport->enroll({fallback.data(), bytes, -1, 0});
}

SourcePlaces Session::Impl::own_places(int peer) const {
  SourcePlaces own;
  own.parameters = places;
  own.staging_region = giver_staging.region;
  own.staging_offset_bytes = giver->staging_offset_bytes(peer);
  own.slot_bytes = giver_staging.share.slot_bytes;
  own.slot_count = giver_staging.share.slot_count;
  return own;
}

void Session::Impl::load_opaque(int tensor) {
  const TensorInfo& info = schedule->plan.source.tensors[static_cast<std::size_t>(tensor)];
  loader(info, fallback.span().first(static_cast<std::size_t>(byte_count(info))));
}

void Session::Impl::prepare_moves(const std::map<int, SourcePlaces>& sources) {
  if (is_source()) return;
  Moves moves = moves_of_target(*schedule, side_rank(), places, fallback_region, sources);
  if (schedule->options.route == Route::packed) moves = staged_moves(moves, sources);
  taker.emplace(*transport, std::move(moves), [this](int tensor) { load_opaque(tensor); });
  taken_digests.emplace(taker->moves());
}

}  // namespace crossmesh
