// SPDX-License-Identifier: Apache-2.0
// The mapped weights of one layer, as views. Immutable after creation; keeps the memory it points to alive.
#pragma once

#include <memory>
#include <vector>

#include "base/weight_view.h"
#include "motet/error.h"
#include "motet/spec.h"

namespace motet {

class LayerWeights {
 public:
  virtual ~LayerWeights() = default;

  LayerSpec spec;
  std::vector<ExpertView> experts;     ///< [spec.experts]
  ExpertView shared;                   ///< used when spec.shared.intermediate > 0
  BiasView shared_gate;                ///< [hidden]: the vector of the shared gate, when spec.shared.gate
  WeightView router;                   ///< [experts + zero_experts, hidden], f32 | bf16 | f16, row-major or transposed
  BiasView router_bias;                ///< [experts + zero_experts] logit bias
  BiasView selection_bias;             ///< [experts + zero_experts]
  BiasView per_expert_scale;           ///< [experts]
  WeightView latent_in, latent_out;    ///< [latent, hidden], [hidden, latent]
  BiasView latent_norm;                ///< [latent]
  const std::byte* token_table = nullptr;   ///< hash routing: expert ids [vocabulary, top_k]
  DType token_table_dtype = DType::i64;
  std::int64_t vocabulary = 0;

  /// Total weight bytes that the views span.
  std::int64_t bytes = 0;
  /// file_changed when a mapped file shrank or was replaced since it was mapped; ok for weights in memory. Allocates nothing.
  /// Gives back what is resident of these bytes of the weights; reading them again reads the file again. Weights in memory stay.
  virtual void drop(const std::byte* begin, std::int64_t size) const noexcept { (void)begin, (void)size; }
  virtual RunStatus verify_unchanged() const noexcept { return {}; }
};

}  // namespace motet
