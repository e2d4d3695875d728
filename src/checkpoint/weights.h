// SPDX-License-Identifier: Apache-2.0
// One layer's tensors, mapped and checked by value.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/resolve.h"
#include "checkpoint/safetensors.h"
#include "formats/layer_weights.h"

namespace motet {

/// Maps the files that hold the layer's tensors and makes its views. Checks that scales keep their format's value rules, tensor
/// scales are finite and above 0, router, biases and shared gate are finite, and biases that the family does not have are 0.
/// Throws Error(bad_input) naming tensor, expert and rule, Error(not_supported) for a format that is not built,
/// Error(file_changed | io_error); nothing stays mapped after a throw.
std::shared_ptr<const LayerWeights> load_layer(const StoredLayer& layer, const TensorTable& table, const std::vector<SafetensorsFile>& files);

}  // namespace motet
