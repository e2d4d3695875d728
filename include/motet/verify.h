// SPDX-License-Identifier: Apache-2.0
// Truth and synthetic weights: what `motet run --check`, `motet check` and `motet bench` use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/layer.h"

namespace motet {

/// How unequal synthetic routing is.
enum class RoutingPattern { uniform, zipf };

/// Seeded synthetic weights of a layer: every scale block has an exponent of its own, so that a wrong layout shows.
/// Allocates the bytes of the layer in memory of its own.
std::shared_ptr<const LayerWeights> synthetic_weights(const LayerSpec& spec, std::uint64_t seed);

/// Gaussian hidden states [tokens, hidden] as fp32 holding bf16 values.
std::vector<float> synthetic_hidden_states(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed);

/// Distinct experts per token by pattern: `index` and `weights` are [tokens, top_k].
void synthetic_routing(const LayerSpec& spec, std::int64_t tokens, RoutingPattern pattern, std::uint64_t seed,
                       std::vector<std::int32_t>& index, std::vector<float>& weights);

/// Comparison of a forward with the double-precision reference given the same input.
struct CheckReport {
  double relative_l2 = 0;          ///< over all tokens, against the reference with the same routing
  double bound = 0;                ///< the recipe's promise, for fp32 sums the derived bound when that is less; plus the rounding of the output
  std::int64_t tokens = 0;         ///< that were compared: finite on both sides
  std::int64_t given_tokens = 0;
  std::int64_t routing_mismatches = 0;     ///< tokens whose expert set differs from the reference's by more than a near tie
  std::int64_t near_ties = 0;              ///< tokens whose choice is not decided beyond the rounding of the logits
  double weights_abs = 0;          ///< largest |weight - reference weight| over equal (token, expert)
  bool ok = false;
  std::string text;                ///< one sentence
};
/// `output` [tokens, hidden] and the routing are what a forward of `plan` gave for `input`.
CheckReport check_forward(const Plan& plan, const std::shared_ptr<const LayerWeights>& weights, const ForwardInput& input,
                          const ConstMatrix& output, const std::int32_t* top_k_index, const float* top_k_weights);

/// One case of `motet check`: a law or a numeric comparison.
struct CheckCase { std::string name; bool passed = false; std::string detail; double seconds = 0; bool skipped = false; };
struct CheckWishes {
  std::string filter;              ///< substring or glob; "" = all
  std::uint64_t seed = 1;
  bool (*stop)() = nullptr;        ///< asked before each case; true ends early
};
/// Runs the case matrix: every backend x target x format x shape that this machine can run against `reference` (which is not held
/// to itself), plus the laws that hold of all. Returns the cases that were run, those so far when `stop` ended it.
std::vector<CheckCase> run_checks(const CheckWishes& wishes);

}  // namespace motet
