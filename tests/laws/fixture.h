// SPDX-License-Identifier: Apache-2.0
// What the tests of the laws share: this machine, ways to run a layer, weights, and an oracle written from the formulas.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/layer_weights.h"
#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet::laws {

/// Under sanitizers every case takes ten times as long: fewer ways to compute, and to spread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

const Environment& machine();
/// Every form of the best target and of `generic`, and the backends without targets. MOTET_TARGET makes another the best:
/// `make test-all` goes through all that are usable.
std::vector<CheckWay> usable_ways();
/// The double-precision backend with one thread.
CheckWay reference_way();
/// The check shape in a format; its weights, made once per (shape, format), from any thread.
LayerSpec shape_in(const std::string& shape, const std::string& format);
std::shared_ptr<const LayerWeights> weights_of(const LayerSpec& spec);

/// Hidden states [tokens, hidden], seeded.
std::vector<float> inputs_of(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed = 11);

/// Creates a layer of a way; the plan must exist.
std::unique_ptr<Layer> make_layer(const LayerSpec& spec, const CheckWay& way, std::int64_t tokens, const Hooks& hooks = {},
                                  bool poison = false);

/// Given routing for run_given.
struct Routing {
  std::vector<std::int32_t> index;
  std::vector<float> weights;
  std::int32_t absent_id = kAbsent;
};
Routing routing_of(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed = 5);
CheckRun run_given(Layer& layer, const std::vector<float>& hidden_states, const Routing& routing);

/// What an oracle is told to do wrongly, so that a test can show that it would notice.
struct Mistake {
  bool weigh_output_instead_of_input = false, weigh_twice = false, scale_shared = false, forget_scale = false,
       skip_last_token = false, swap_experts = false, forget_shared_gate = false, norm_after_projection = false,
       forget_zero_experts = false;
};
/// The whole layer in double precision from the formulas (docs/families): decodes every weight by its format's decoder, shares no
/// code with backends or the runtime. Result [tokens, hidden].
std::vector<double> oracle(const LayerSpec& spec, const LayerWeights& weights, const std::vector<float>& hidden_states,
                           const Routing& routing, const Mistake& mistake = {});

/// Relative L2 distance over all tokens.
double distance(const std::vector<float>& output, const std::vector<double>& truth);

/// Runs one check of src/runtime/law_checks over every usable way and every shape, each in bf16 (hidden-2880 in mxfp4); when kSlow,
/// over a third of the pairs.
void hold_everywhere(const std::string& law_check);

/// The code of the Error that `body` throws, or ok. The text goes to `*text`.
template <class Body>
ErrorCode code_of(Body&& body, std::string* text = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  return ErrorCode::ok;
}

}  // namespace motet::laws
