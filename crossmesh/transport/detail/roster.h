// SPDX-License-Identifier: Apache-2.0
// Who is connected: it lets ranks of the session in, keeps others out, and reads what peers say.
// It knows nothing of transfers.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crossmesh/transport/detail/connection.h"
#include "crossmesh/transport/detail/venue.h"

namespace crossmesh::detail {

struct RosterOptions {
  std::string session_name;  // 32 hexadecimal digits
  int rank = 0;
  ShmWay way = ShmWay::automatic;
  bool copies_within_process = true;
};

struct Roster {
  RosterOptions options;
  int rank = 0;
  std::unique_ptr<Venue> venue;
  std::uint64_t nonce = 0;
  std::unique_ptr<std::uint64_t> word;   // peers know this process's memory by it
  pid_t allowed = 0;                     // whose descendants may attach, where one is to be named
  const Enrolment* enrolment = nullptr;  // what newcomers are told
  FileDescriptor poller;                 // readable when any of the descriptors below is
  FileDescriptor nudger;                 // readable after Listening
  bool is_nudged = false;
  std::deque<FileDescriptor> guests;   // they dialed and have not said who they are
  std::map<int, Connection> arrivals;  // they said so, and this rank has not asked for them
  int awaited = -1;                    // the peer that this rank asks for right now
  std::map<int, Connection> connections;
};

// Throws: invalid_argument when the session's name or the rank is none; io_failed.
Roster open_roster(RosterOptions options, std::unique_ptr<Venue> venue);

// As Transport::connect.
void meet(Roster& roster, int peer, const std::string& address, Deadline deadline);

// The connection of this rank to itself, which is made when it is asked for.
Connection& own_connection(Roster& roster);

// Forbids the peer to read, and waits a moment for a read that runs.
void quiesce(Roster& roster, Connection& connection);

// Closes a connection that is open; its peer went, or this rank leaves it.
void drop(Roster& roster, Connection& connection, PeerState state);

// Tells one peer.
void tell(Roster& roster, Connection& connection, const std::vector<Announcement>& announcements);

// Tells everyone who is connected.
void tell_all(Roster& roster, const std::vector<Announcement>& announcements);

// Waits until something arrives, at most to `deadline`, and handles it.
// Returns whether something did.
bool service(Roster& roster, Deadline deadline);

// Reads what the peer said, and closes the connection when it has gone.
void hear(Roster& roster, Connection& connection);

// Lets the poller be readable no more because of news that was read while waiting for other news.
void clear_nudge(Roster& roster);

// While it lives the roster is serviced outside of `advance`; then the poller becomes readable, so
// that the news that were read meanwhile are looked at.
class Listening {
 public:
  explicit Listening(Roster& roster);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  Roster& roster_;
};

}  // namespace crossmesh::detail
