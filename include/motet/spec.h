// SPDX-License-Identifier: Apache-2.0
// The three inputs of plan(): what the model says, what the caller wants, what the machine is.
// All are plain comparable values. Dimensions are counted in elements, memory in bytes; all extents are 64-bit (L17).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motet/types.h"

namespace motet {

// ---------------------------------------------------------------- what the model says

/// Expert bodies; g = gate, u = up.
enum class ActivationKind {
  silu,            ///< silu(g) * u
  gelu_tanh,       ///< gelu_tanh(g) * u
  swiglu_oai,      ///< g' = min(g, limit), u' = clamp(u, +-limit): (u' + offset) * g' * sigmoid(alpha * g')      (gpt-oss)
  swiglu_clamped,  ///< g' = min(g, limit), u' = clamp(u, +-limit): silu(g') * u'                               (DeepSeek V4)
  swiglu_step,     ///< min(silu(g), limit) * clamp(u, +-limit)                                                 (Step 3.5)
  situ,            ///< alpha * tanh(g / alpha) * sigmoid(g) * limit * tanh(u / limit)                          (Kimi K3)
  relu2,           ///< relu(u)^2, no gate                                                                      (Nemotron-H)
};

struct Activation {
  ActivationKind kind = ActivationKind::silu;
  bool gated = true;    ///< false: there is no gate matrix, the body reads `up` alone
  double alpha = 0;     ///< see the formula
  double limit = 0;     ///< 0 = no clamp
  double offset = 0;    ///< added to the clamped up branch
  bool operator==(const Activation&) const = default;
};

enum class RouterScore { softmax, sigmoid, sqrt_softplus, logits };
enum class RouterSelection { top_k, sparsemixer, hash };
enum class GroupScore { max, sum_of_two };
enum class RouterNormalize {
  none,
  sum,       ///< p_i / max(sum + epsilon, floor)
  softmax,   ///< softmax over the selected logits
  p_norm,    ///< p_i / (sum |p|^power)^(1/power)  (DBRX)
};
enum class ZeroExpertKind { none, identity, drop };
/// Where the routing weight is applied (L14): exactly one site.
enum class WeightSite { input, activation, finalize, combine };
enum class ScaleSite { weights, routed_sum };

/// How scores become experts and weights. Every variant: docs/routers.md; who uses it: docs/families.
struct RouterSpec {
  RouterScore score = RouterScore::softmax;
  RouterSelection selection = RouterSelection::top_k;
  bool logit_bias = false;         ///< a bias is added to the logits (gpt-oss)
  bool selection_bias = false;     ///< a bias is added to the scores for choosing only, never to the weights
  std::int64_t groups = 1;         ///< experts / groups consecutive experts form a group
  std::int64_t groups_kept = 1;    ///< dropped groups are masked with -inf
  GroupScore group_score = GroupScore::sum_of_two;
  RouterNormalize normalize = RouterNormalize::none;
  double normalize_epsilon = 0;
  double normalize_floor = 0;
  double normalize_power = 1;
  double scale = 1;                ///< routed scaling factor; applied exactly once, after normalisation
  ScaleSite scale_site = ScaleSite::weights;
  WeightSite weight_site = WeightSite::finalize;
  bool sigmoid_weight = false;     ///< the weight is sigmoid(logit) of the chosen expert (Llama 4)
  double soft_cap = 0;             ///< c: logits become c * tanh(l / c); 0 = none
  double jitter = 0.01;            ///< sparsemixer's epsilon
  bool per_expert_scale = false;   ///< weight *= scale[expert] (Gemma 4)
  std::int64_t zero_experts = 0;   ///< ids experts..experts+zero_experts-1
  ZeroExpertKind zero_expert_kind = ZeroExpertKind::none;
  DType weight_dtype = DType::bf16;  ///< of the router matrix in the file
  bool operator==(const RouterSpec&) const = default;
};

/// How one projection's weights lie in the file.
struct ProjectionSpec {
  std::string format;              ///< a name of formats(): "bf16", "mxfp4", "nvfp4", "fp8_block", ...
  std::int64_t block_rows = 1;     ///< rows that share a scale; 0 = all
  std::int64_t block_cols = 1;     ///< consecutive reduction-axis elements that share a scale; 0 = all
  bool transposed = false;         ///< [K,N] in the file: rows are contiguous along the output axis
  bool bias = false;
  bool operator==(const ProjectionSpec&) const = default;
};

/// How the gate and up halves lie beside each other in the file.
enum class GateUpOrder { separate, halves, interleaved };

struct SharedExpertSpec {
  std::int64_t intermediate = 0;   ///< 0 = no shared expert
  bool gate = false;               ///< output *= sigmoid(gate . x) (Qwen2-MoE)
  Activation activation;
  GateUpOrder gate_up_order = GateUpOrder::separate;
  ProjectionSpec gate_up, down;
  bool operator==(const SharedExpertSpec&) const = default;
};

/// One MoE layer as its checkpoint defines it.
struct LayerSpec {
  std::string family;              ///< a name of families()
  std::int64_t layer = 0;          ///< the model's own layer number
  std::int64_t hidden = 0;
  std::int64_t latent = 0;         ///< 0 = experts work on hidden; else hidden -> latent before, latent -> hidden after
  std::int64_t intermediate = 0;   ///< of one routed expert
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  Activation activation;
  GateUpOrder gate_up_order = GateUpOrder::separate;
  ProjectionSpec gate_up, down;
  RouterSpec router;
  SharedExpertSpec shared;
  ProjectionSpec latent_in, latent_out;   ///< used when latent > 0
  bool latent_norm = false;               ///< RMS norm between the routed sum and latent_out: the way out is then not linear
  double latent_norm_epsilon = 1e-5;      ///< added to the mean square of that norm
  std::int64_t dispatch_width() const { return latent > 0 ? latent : hidden; }   ///< what experts read and write
  bool operator==(const LayerSpec&) const = default;
};

// ---------------------------------------------------------------- what the caller wants

enum class Arithmetic { exact, bf16, fast };       ///< levels of accuracy; the plan says which kernel arithmetic was taken
enum class Residence { mapped, packed };
enum class Finalize { builtin, unfinalized, hook };
/// Whose tokens a rank is given: its own ones, or the same as every other rank.
enum class TokenPlacement { sharded, replicated };

/// Wishes. A wish that cannot be met is an error unless allow_substitution; a substitution is in the plan (L11).
struct Wishes {
  std::string backend;             ///< "" = best; else a name of backends()
  std::string target;              ///< "" = best; else a name of targets()
  std::string strategy;            ///< "" = best; else a name of strategies(). More than one rank
  std::string wire;                ///< rows that come back between ranks: "" = fp32 for exact and invariant, else bf16; "bf16", "fp32"
  Arithmetic arithmetic = Arithmetic::bf16;
  bool invariant = false;          ///< one arithmetic and order whatever the token count (L15)
  Residence residence = Residence::mapped;
  int threads = 0;                 ///< 0 = as many as the machine lets this process use
  Finalize finalize = Finalize::builtin;
  bool allow_substitution = false;
  bool operator==(const Wishes&) const = default;
};

struct Deployment {
  std::int64_t tokens = 1;         ///< most tokens of one forward on any rank
  std::int64_t chunk_tokens = 0;   ///< most tokens that run at once: a forward of more takes them chunk by chunk; 0 = all at once
  std::int64_t tp = 1;             ///< ranks that split the intermediate dimension
  std::int64_t ep = 1;             ///< ranks that split the experts; ranks = tp * ep
  TokenPlacement placement = TokenPlacement::sharded;
  std::string fabric = "threads"; ///< that several ranks exchange over: a name of fabrics()
  DType input = DType::bf16;       ///< dtype of hidden states and of the output
  std::int64_t memory_limit = 0;   ///< bytes; 0 = what the environment has
  Wishes wishes = {};
  /// Most tokens that run at once: workspace and messages are made for so many.
  std::int64_t at_once() const noexcept { return chunk_tokens > 0 && chunk_tokens < tokens ? chunk_tokens : tokens; }
  bool operator==(const Deployment&) const = default;
};

// ---------------------------------------------------------------- what the machine is

/// One instruction set that kernels are compiled for.
struct TargetFacts {
  std::string name;
  bool compiled = false;
  bool usable = false;
  std::string reason;              ///< why not usable, or what made it so
  bool operator==(const TargetFacts&) const = default;
};

/// Frozen probe of the machine: discrete facts only, so that equal machines plan equally.
struct Environment {
  std::string version;             ///< of Motet
  std::string processor;           ///< vendor, family and model, such as "amd-26-2"
  std::vector<TargetFacts> targets;                ///< best first
  std::vector<std::string> arithmetic_ranking;     ///< kernel arithmetics, fastest for many tokens of an expert first
  std::vector<std::string> few_ranking;            ///< the same for few tokens, where reading weights is the limit
  std::string ranking_evidence;    ///< table entry or measurement that ranked them
  int threads = 1;                 ///< processors this process may use: affinity mask and cgroup quota, rounded down, >= 1
  std::string threads_reason;
  std::int64_t memory_bytes = 0;   ///< physical memory or the cgroup limit, whichever is smaller
  std::int64_t page_bytes = 4096;
  int numa_nodes = 1;
  bool operator==(const Environment&) const = default;

  /// Probes this machine; honours MOTET_TARGET (forces the best target) and throws Error when it names none.
  static Environment probe();
};

}  // namespace motet
