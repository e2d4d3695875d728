// SPDX-License-Identifier: Apache-2.0
// Published checkpoints, read in place: a Hugging Face directory, one .safetensors file, or a hub id in the local cache.
// Headers are parsed at open; weight bytes are mapped when a layer asks for them and are never copied or changed.
// A Checkpoint may be used from several threads. Layer weights keep their mappings alive on their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/plan.h"
#include "motet/spec.h"
#include "motet/types.h"

namespace motet {

class LayerWeights;   ///< mapped weights of one layer, opaque here; made by Checkpoint::load

/// One tensor of the checkpoint as its header states it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::string file;                ///< file name inside the checkpoint directory
  std::int64_t offset = 0;         ///< bytes from the start of the file
  std::int64_t bytes = 0;
  std::string role;                ///< such as "gate_up.codes"; "" when no layer uses it
  std::int64_t layer = -1;         ///< MoE layer that uses it, or -1
};

/// What `motet inspect` tells about one MoE layer.
struct LayerSummary {
  LayerSpec spec;
  std::int64_t bytes = 0;                  ///< of all tensors of the layer
  std::int64_t bytes_per_token = 0;        ///< that one token reads: top_k experts, shared, router, latent projections
  std::int64_t parameters = 0, parameters_per_token = 0;
};

/// Bytes of the checkpoint that one rank of a plan reads: `count` runs of `bytes`, `stride` apart, from `offset`.
struct ByteRange {
  std::string tensor, file;
  std::int64_t offset = 0, bytes = 0, count = 1, stride = 0;
  std::string what;                ///< such as "gate_up rows 0..1471 of expert 0..31"
};

class Checkpoint {
 public:
  /// Opens `where`: a directory, one .safetensors file, or a hub id "owner/name" in the local cache
  /// (HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub). Reads config.json, the index and headers only.
  /// Throws Error(bad_input | io_error | not_supported) naming file, tensor and rule.
  static std::shared_ptr<Checkpoint> open(const std::string& where);

  virtual ~Checkpoint() = default;
  virtual const std::string& path() const = 0;
  virtual const std::string& family() const = 0;                 ///< a name of families()
  virtual const std::vector<LayerSummary>& layers() const = 0;   ///< MoE layers in ascending order; never empty
  virtual const std::vector<TensorInfo>& tensors() const = 0;    ///< of the files that were read; notes() names shards that were not
  virtual const std::vector<std::string>& notes() const = 0;     ///< what is carried along but not used, and why
  /// The summary of one layer by the model's layer number. Throws Error(invalid_argument) listing the MoE layers.
  virtual const LayerSummary& layer(std::int64_t number) const = 0;
  /// Byte ranges that `rank` of the plan reads.
  virtual std::vector<ByteRange> byte_ranges(const Plan& plan, std::int64_t rank) const = 0;
  /// Maps one layer's tensors and checks their values (scales finite and positive, no E8M0 0xFF, ...).
  /// Throws Error(bad_input) naming tensor, expert and rule, Error(not_supported) for a format that is not built: such a layer
  /// can be inspected, its projections are named "int8 (not built)"; nothing is mapped after a throw.
  virtual std::shared_ptr<const LayerWeights> load(std::int64_t number) const = 0;
};

}  // namespace motet
