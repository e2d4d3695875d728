// SPDX-License-Identifier: Apache-2.0
// Small layers whose shapes hurt, and runs of them: what `motet check` and the tests of the laws are made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motet/layer.h"
#include "motet/registry.h"

namespace motet {

/// A few experts each, every width that broke a kernel somewhere: hidden 2880 and 2688, latent 1024, intermediate 704, 720, 1856.
/// Formats are bf16; with_format gives the others.
std::vector<NamedShape> check_shapes();
/// Throws Error(invalid_argument) when there is none of this name.
const LayerSpec& check_shape(const std::string& name);

/// How a layer is run.
struct CheckWay {
  std::string backend, target;
  Arithmetic arithmetic = Arithmetic::exact;
  Residence residence = Residence::mapped;
  Finalize finalize = Finalize::builtin;
  bool invariant = false;
  int threads = 2;
  std::string name() const;  ///< such as "cpu:avx2:exact" or "cpu:avx2:exact:packed"
};
/// Every backend with every target of the environment, each level mapped, exact and bf16 packed, usable or not, in selection order.
std::vector<CheckWay> check_ways(const Environment& environment);

/// The plan of a way with fp32 hidden states and results, so that equal bits mean equal sums.
PlanResult plan_way(const LayerSpec& spec, const CheckWay& way, std::int64_t tokens, const Environment& environment);

/// What a forward gave.
struct CheckRun {
  RunStatus status;
  std::vector<float> output;        ///< [tokens, hidden]
  std::vector<std::int32_t> index;  ///< [tokens, top_k]
  std::vector<float> weights;       ///< [tokens, top_k]
};
/// Runs tokens [begin, begin + count) of fp32 hidden states through a finalized layer.
CheckRun run_tokens(Layer& layer, const std::vector<float>& hidden_states, std::int64_t begin, std::int64_t count);

/// Whether two vectors hold the same bits, NaN included.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

/// row *= weight: equal to the built-in finalize bit for bit.
void identity_hook(void* context, const HookRow& row) noexcept;

}  // namespace motet
