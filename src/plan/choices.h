// SPDX-License-Identifier: Apache-2.0
// Which backend, target, arithmetic, residence, strategy, wire, scheduler, finalize form and threads: each name with its verdict
// (L11). A refused wish is a refusal of the plan unless the caller allows substitution; then the best that is possible is taken and
// marked. Never substituted: a name that nobody knows (a typing mistake is no wish) and the finalize form (it is the type of the
// result, L12).
#pragma once

#include <string>
#include <vector>

#include "plan/catalog.h"
#include "plan/slices.h"

namespace motet {

struct Question {
  const LayerSpec& spec;
  const Deployment& deployment;
  const Environment& environment;
  const Catalog& catalog;
  Share share;
};

struct Selection {
  Deployment as_planned;                   ///< the deployment with substituted wishes replaced by what was taken
  const BackendTraits* backend = nullptr;  ///< null when none can run the layer
  BackendStorage storage;                  ///< the chosen backend's answer for the asked tokens
  std::string target;
  const StrategyTraits* strategy = nullptr;  ///< null on one rank
  DType wire = DType::f32;
  std::string scheduler;
  int threads = 1;
  std::vector<Choice> choices;
  std::vector<Refusal> refusals;  ///< that stand against the plan
};

Selection select(const Question& question);

}  // namespace motet
