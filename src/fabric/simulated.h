// SPDX-License-Identifier: Apache-2.0
// Ranks in virtual time: the same protocol code, with delays, losses, stalls and deaths that a seed repeats.
#pragma once

#include <functional>

#include "fabric/fabric.h"

namespace motet {

/// What befalls a rank at a touch of a step: when it asks for a slot, posts, or looks for a message, just before that is done.
struct SimulatedFault {
  enum class Kind { kill, stall, lose };
  Kind kind = Kind::kill;  ///< lose: the next message that it posts to another rank never comes
  Rank rank = 0;
  StepId step = 1;
  FabricTime lasts{0};     ///< of a stall
  std::int64_t after = 0;  ///< touches of the step that go before; a step with no more than these leaves it to the next one
};

struct SimulationWishes {
  Rank ranks = 1;
  std::uint64_t seed = 0;
  FabricTime least_delay = std::chrono::microseconds(1), most_delay = std::chrono::microseconds(100);  ///< of a message
  double loss = 0;  ///< share of messages that never come
  std::vector<SimulatedFault> faults = {};
};

/// Calls body once for each rank, each on a thread of its own, of which one runs at a time: it goes on until it waits, then the
/// seed says who is next. The clock stands while somebody can run, so that time is spent by messages and stalls alone. Messages
/// between two ranks keep their order. A killed rank goes on unseen: nothing it does reaches the others, and its clock stands
/// beyond every deadline. Returns when all bodies have. `body` must wait() wherever it polls, and must not throw.
void simulate(const SimulationWishes& wishes, const std::function<void(Endpoint&)>& body);

}  // namespace motet
