// Node groups over the host's memory: members are threads of one process.
#pragma once

#include <memory>
#include <string>

#include "client/group/node_communicator.h"

namespace gradwire::testing {

// Where the members of all groups of a test meet. Thread-safe. An operation is done when all
// members of the group have called it, never earlier: who leaves one out leaves the others waiting.
// What does not fit together is an error for all.
class HostMeetingPlace {
 public:
  HostMeetingPlace();
  ~HostMeetingPlace();

  // One for each member.
  std::shared_ptr<client::NodeCommunicators> ForMember(const std::string& name = "host memory 1");

  // After so many more operations none is done any more, as if a member hung.
  void HangAfter(int operations);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gradwire::testing
