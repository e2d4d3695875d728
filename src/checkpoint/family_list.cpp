// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>

#include "checkpoint/family.h"
#include "checkpoint/text.h"

namespace motet {

#define MOTET_FAMILY(name) extern const Family name##_family;
#include "checkpoint/families.inc"
#undef MOTET_FAMILY

const std::vector<const Family*>& all_families() {
  static const std::vector<const Family*> list = {
#define MOTET_FAMILY(name) &name##_family,
#include "checkpoint/families.inc"
#undef MOTET_FAMILY
  };
  return list;
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

const Family& family_of(const Config& config) {
  const std::vector<std::string> given = config.model_types();
  std::string known, close;
  for (const Family* const family : all_families()) {
    for (const std::string_view type : family->model_types) {
      known += (known.empty() ? "" : ", ") + std::string(type);
      for (const std::string& candidate : given) {
        if (candidate == type) return *family;
        if (candidate.size() < 64 && edit_distance(candidate, type) <= 2 && close.empty()) close = type;
      }
    }
  }
  if (given.empty()) fail(ErrorCode::bad_input, "config.json: 'model_type' is missing, which tells the family; known are ", known);
  fail(ErrorCode::not_supported, "config.json: model_type ", quote(given.front()), " is of no family that is built; known are ", known,
       close.empty() ? "" : "; did you mean '" + close + "'?");
}

std::int64_t trunk_layers(const Config& config) { return config.integer({"num_hidden_layers"}); }

bool every_layer(const Config&, std::int64_t) { return true; }

bool after_dense_layers(const Config& config, std::int64_t layer) {
  if (const auto types = config.texts({"mlp_layer_types"})) {
    return layer < static_cast<std::int64_t>(types->size()) && (*types)[static_cast<std::size_t>(layer)] == "sparse";
  }
  const std::int64_t step = config.integer_or({"moe_layer_freq"}, 1);
  return layer >= config.integer_or({"first_k_dense_replace"}, 0) && step > 0 && layer % step == 0;
}

bool sparse_step_layer(const Config& config, std::int64_t layer) {
  const auto dense = config.integers({"mlp_only_layers"});
  if (dense && std::find(dense->begin(), dense->end(), layer) != dense->end()) return false;
  const std::int64_t step = config.integer_or({"decoder_sparse_step"}, 1);
  return step > 0 && (layer + 1) % step == 0;
}

void describe_extents(const Config& config, Keys intermediate, LayerSpec& spec) {
  spec.hidden = config.integer({"hidden_size"});
  spec.intermediate = config.integer(intermediate);
  spec.experts = config.integer({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  spec.top_k = config.integer({"num_experts_per_tok", "num_experts_per_token", "experts_per_token"});
}

Activation activation_of(const Config& config, Keys keys, std::string_view absent) {
  const std::string name = config.text_or(keys, absent);
  Activation activation;
  if (name == "silu" || name == "swish") activation.kind = ActivationKind::silu;
  else if (name == "gelu_pytorch_tanh" || name == "gelu_new") activation.kind = ActivationKind::gelu_tanh;
  else if (name == "relu2") activation.kind = ActivationKind::relu2;
  else fail(ErrorCode::not_supported, "config.json: activation ", quote(name), " is not built; silu, gelu_pytorch_tanh and relu2 are");
  activation.gated = activation.kind != ActivationKind::relu2;
  return activation;
}

RouterSpec softmax_router(bool renormalise) {
  RouterSpec router;
  router.score = RouterScore::softmax;
  router.normalize = renormalise ? RouterNormalize::sum : RouterNormalize::none;
  return router;
}

RouterSpec sigmoid_group_router(const Config& config) {
  const std::string score = config.text_or({"scoring_func"}, "sigmoid");
  if (score != "sigmoid") fail(ErrorCode::not_supported, "config.json: 'scoring_func' ", quote(score), " is not built for this family; 'sigmoid' is");
  const std::string method = config.text_or({"topk_method"}, "noaux_tc");
  if (method != "noaux_tc") fail(ErrorCode::not_supported, "config.json: 'topk_method' ", quote(method), " is not built for this family; 'noaux_tc' is");
  RouterSpec router;
  router.score = RouterScore::sigmoid;
  router.selection_bias = true;
  router.groups = config.integer({"n_group"});
  router.groups_kept = config.integer({"topk_group"});
  router.group_score = GroupScore::sum_of_two;
  if (config.boolean_or({"norm_topk_prob"}, true)) {
    router.normalize = RouterNormalize::sum;
    router.normalize_epsilon = 1e-20;
  }
  router.scale = config.real({"routed_scaling_factor"});
  if (!(router.scale > 0 && router.scale <= std::numeric_limits<float>::max()))
    fail(ErrorCode::bad_input, "config.json: 'routed_scaling_factor' must be a positive number of fp32, but is ", std::to_string(router.scale),
         "; every output is multiplied by it");
  return router;
}

}  // namespace motet
