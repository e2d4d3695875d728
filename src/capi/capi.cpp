// SPDX-License-Identifier: Apache-2.0
// The C ABI over the public C++ headers. Every function catches everything: nothing is thrown across.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>

#include "motet/motet.h"
#include "motet/motet.hpp"
#include "sized.h"

struct motet_checkpoint { std::shared_ptr<motet::Checkpoint> checkpoint; };
struct motet_plan {
  motet::Plan plan;
  std::string json;
};
struct motet_layer { std::unique_ptr<motet::Layer> layer; };

namespace motet::capi {
namespace {

// Fixed storage: reporting a failure must not allocate.
thread_local std::array<char, 8192> last_error{};

motet_status fail(ErrorCode code, const char* text) noexcept {
  const std::size_t length = std::strlen(text), most = last_error.size() - 1;
  std::memcpy(last_error.data(), text, std::min(length, most));
  last_error[std::min(length, most)] = '\0';
  if (length > most) std::memcpy(last_error.data() + most - 3, "...", 3);
  return static_cast<motet_status>(code);
}

template <class Body>
motet_status guarded(Body&& body) noexcept {
  last_error[0] = '\0';
  try {
    body();
    return MOTET_OK;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::would_not_fit, "the operating system gave no more memory");
  } catch (const std::exception& error) {
    return fail(ErrorCode::internal, error.what());
  } catch (...) {
    return fail(ErrorCode::internal, "an unknown exception reached the C interface");
  }
}

template <class T>
T& must(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::invalid_argument, std::string(name) + " must not be NULL");
  return *pointer;
}

DType dtype_of(motet_dtype dtype) {
  switch (dtype) {
    case MOTET_F32: return DType::f32;
    case MOTET_BF16: return DType::bf16;
    case MOTET_F16: return DType::f16;
    default: throw Error(ErrorCode::wrong_dtype, "a dtype must be MOTET_F32, MOTET_BF16 or MOTET_F16, but is " + std::to_string(dtype));
  }
}

motet_dtype dtype_of(DType dtype) { return dtype == DType::f32 ? MOTET_F32 : dtype == DType::bf16 ? MOTET_BF16 : MOTET_F16; }

Arithmetic arithmetic_of(motet_arithmetic arithmetic) {
  switch (arithmetic) {
    case MOTET_ARITHMETIC_BF16: return Arithmetic::bf16;
    case MOTET_ARITHMETIC_EXACT: return Arithmetic::exact;
    case MOTET_ARITHMETIC_FAST: return Arithmetic::fast;
    default: throw Error(ErrorCode::invalid_argument, "an arithmetic must be one of MOTET_ARITHMETIC_*, but is " + std::to_string(arithmetic));
  }
}

Residence residence_of(motet_residence residence) {
  switch (residence) {
    case MOTET_RESIDENCE_MAPPED: return Residence::mapped;
    case MOTET_RESIDENCE_PACKED: return Residence::packed;
    default: throw Error(ErrorCode::invalid_argument, "a residence must be one of MOTET_RESIDENCE_*, but is " + std::to_string(residence));
  }
}

bool flag_of(std::int32_t value, const char* name) {
  if (value != 0 && value != 1) throw Error(ErrorCode::invalid_argument, std::string(name) + " must be 0 or 1, but is " + std::to_string(value));
  return value == 1;
}

Deployment deployment_of(const motet_deployment& given) {
  Deployment result;
  result.tokens = given.tokens;
  result.chunk_tokens = given.chunk_tokens;
  result.tp = given.tp == 0 ? 1 : given.tp;
  result.ep = given.ep == 0 ? 1 : given.ep;
  result.input = dtype_of(given.input);
  result.memory_limit = given.memory_limit;
  result.wishes.arithmetic = arithmetic_of(given.arithmetic);
  result.wishes.backend = given.backend == nullptr ? "" : given.backend;
  result.wishes.target = given.target == nullptr ? "" : given.target;
  result.wishes.threads = given.threads;
  result.wishes.residence = residence_of(given.residence);
  result.wishes.invariant = flag_of(given.invariant, "motet_deployment.invariant");
  result.wishes.allow_substitution = flag_of(given.allow_substitution, "motet_deployment.allow_substitution");
  return result;
}

RunStatus forward(Layer& layer, const motet_forward& given) {
  const Plan& plan = layer.plan();
  if (given.reserved != 0) throw Error(ErrorCode::invalid_argument, "motet_forward.reserved must be 0; use the INIT macro");
  if (given.tokens < 0) throw Error(ErrorCode::wrong_shape, "motet_forward.tokens must be >= 0, but is " + std::to_string(given.tokens));
  ForwardInput in;
  in.hidden_states = {given.hidden_states, plan.deployment.input, given.tokens, plan.spec.hidden};
  if (given.router_logits != nullptr) in.router_logits = {given.router_logits, DType::f32, given.tokens, plan.spec.experts + plan.spec.router.zero_experts};
  in.top_k_index = given.given_index;
  in.top_k_weights = given.given_weights;
  in.absent_id = given.absent_id;
  in.token_ids = given.token_ids;
  ForwardOutput out;
  out.output = {given.output, plan.deployment.input, given.tokens, plan.spec.hidden};
  out.top_k_index = given.top_k_index;
  out.top_k_weights = given.top_k_weights;
  return layer.forward(in, out);
}

}  // namespace
}  // namespace motet::capi

using namespace motet;
using namespace motet::capi;

extern "C" {

const char* motet_version(void) { return version().data(); }
const char* motet_last_error(void) { return last_error.data(); }
const char* motet_status_name(motet_status status) { return name_of(static_cast<ErrorCode>(status)).data(); }

motet_status motet_checkpoint_open(const char* where, motet_checkpoint** out) {
  return guarded([&] {
    motet_checkpoint*& result = must(out, "out");
    result = new motet_checkpoint{Checkpoint::open(&must(where, "where"))};
  });
}
void motet_checkpoint_release(motet_checkpoint* checkpoint) { delete checkpoint; }

int64_t motet_checkpoint_layers(const motet_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : static_cast<int64_t>(checkpoint->checkpoint->layers().size());
}
int64_t motet_checkpoint_layer_number(const motet_checkpoint* checkpoint, int64_t i) {
  return i < 0 || i >= motet_checkpoint_layers(checkpoint) ? -1 : checkpoint->checkpoint->layers()[static_cast<std::size_t>(i)].spec.layer;
}

motet_status motet_checkpoint_layer_info(const motet_checkpoint* checkpoint, int64_t layer, motet_layer_info* out) {
  return guarded([&] {
    const LayerSummary& summary = must(checkpoint, "checkpoint").checkpoint->layer(layer);
    motet_layer_info info = MOTET_LAYER_INFO_INIT;
    info.layer = summary.spec.layer;
    info.hidden = summary.spec.hidden;
    info.latent = summary.spec.latent;
    info.intermediate = summary.spec.intermediate;
    info.experts = summary.spec.experts;
    info.top_k = summary.spec.top_k;
    info.shared_intermediate = summary.spec.shared.intermediate;
    info.bytes = summary.bytes;
    info.bytes_per_token = summary.bytes_per_token;
    info.parameters = summary.parameters;
    info.parameters_per_token = summary.parameters_per_token;
    write_sized(info, out, "motet_layer_info");
  });
}

motet_status motet_plan_create(const motet_checkpoint* checkpoint, int64_t layer, const motet_deployment* deployment, motet_plan** out) {
  return guarded([&] {
    motet_plan*& result = must(out, "out");
    const LayerSpec& spec = must(checkpoint, "checkpoint").checkpoint->layer(layer).spec;
    const Deployment wanted = deployment_of(read_sized(deployment, "motet_deployment"));
    Plan made = plan(spec, wanted, Environment::probe()).value();
    std::string json = made.to_json();
    result = new motet_plan{std::move(made), std::move(json)};
  });
}
void motet_plan_release(motet_plan* plan) { delete plan; }
const char* motet_plan_json(const motet_plan* plan) { return plan == nullptr ? "" : plan->json.c_str(); }
const char* motet_plan_fingerprint(const motet_plan* plan) { return plan == nullptr ? "" : plan->plan.fingerprint.c_str(); }

motet_status motet_plan_output(const motet_plan* plan, int64_t tokens, motet_output_type* out) {
  return guarded([&] {
    if (tokens < 0) throw Error(ErrorCode::invalid_argument, "tokens must be >= 0, but is " + std::to_string(tokens));
    const OutputType type = must(plan, "plan").plan.output(tokens);
    motet_output_type result = MOTET_OUTPUT_TYPE_INIT;
    result.dtype = dtype_of(type.dtype);
    result.rows = type.rows;
    result.cols = type.cols;
    result.row_stride = type.row_stride;
    result.col_stride = type.col_stride;
    write_sized(result, out, "motet_output_type");
  });
}

motet_status motet_layer_create(const motet_checkpoint* checkpoint, const motet_plan* plan, motet_layer** out) {
  return guarded([&] {
    motet_layer*& result = must(out, "out");
    const Plan& made = must(plan, "plan").plan;
    result = new motet_layer{Layer::create(made, must(checkpoint, "checkpoint").checkpoint->load(made.spec.layer))};
  });
}
void motet_layer_release(motet_layer* layer) { delete layer; }

motet_status motet_layer_forward(motet_layer* layer, const motet_forward* given) {
  RunStatus status;
  const motet_status misuse = guarded([&] { status = forward(*must(layer, "layer").layer, read_sized(given, "motet_forward")); });
  if (misuse != MOTET_OK) return misuse;
  return status.ok() ? MOTET_OK : fail(status.code, status.message.data());
}

}  // extern "C"
