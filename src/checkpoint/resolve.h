// SPDX-License-Identifier: Apache-2.0
// From names and shapes to layers: which tensor plays which role in each MoE layer, with every check that headers allow.
//
// Enforced: every expert 0..experts-1 has every tensor of its body; every tensor of the MoE block is explained; shapes and
// dtypes, scales included, are what the config says; one format per projection. Values are checked when a layer is loaded.
// Tensors of a form that is known and not built are counted and told by name, not checked.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/family.h"
#include "checkpoint/matrix_tensors.h"
#include "checkpoint/tensor_table.h"
#include "motet/checkpoint.h"

namespace motet {

/// One stored matrix with its logical extents; a stacked one holds all experts.
struct StoredMatrix {
  MatrixTensors tensors;
  std::int64_t experts = 1, rows = 0, cols = 0;
  bool stacked = false, transposed = false;
};

/// Gate, up and down of all routed experts (one entry each when stacked, else one per expert) or of the shared one.
struct StoredBody {
  GateUpOrder order = GateUpOrder::separate;
  std::vector<StoredMatrix> gate, up, gate_up, down;
  bool empty() const { return down.empty(); }
};

struct StoredLayer {
  LayerSummary summary;
  StoredBody experts, shared;
  StoredMatrix router, latent_in, latent_out;
  TensorIndex selection_bias = kNoTensor, shared_gate = kNoTensor;
  std::string not_built;                    ///< why the layer cannot be loaded, naming format and tensor; "" = it can
  std::vector<TensorIndex> read;            ///< tensors that views span
  std::vector<TensorIndex> unused_biases;   ///< biases that the family does not have: must be all zero
};

/// Numbers of the trunk's MoE layers by the config. Throws Error(bad_input) when the config cannot belong to so few tensors.
std::vector<std::int64_t> moe_layers(const Family& family, const Config& config, std::int64_t tensors);

/// "model.layers." or what else stands before the layer number, by the names that are there. `names_any(prefix)` tells whether
/// a name begins so. Throws Error(bad_input) when no known beginning fits.
std::string layer_prefix(const std::vector<std::string_view>& names, const Family& family, const std::vector<std::int64_t>& layers);

/// Resolves all MoE layers, sets role and layer of their tensors, and appends notes.
std::vector<StoredLayer> resolve_layers(const TensorTable& table, const Family& family, const Config& config, const std::string& prefix,
                                        const std::vector<std::int64_t>& layers, std::vector<std::string>& notes);

}  // namespace motet
