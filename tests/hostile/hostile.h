// SPDX-License-Identifier: Apache-2.0
// For the hostile tests: a golden checkpoint copied to where it can be broken, and the whole way from its files to one token.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/testing.h"
#include "motet/motet.hpp"

namespace motet::hostile {

using testing::TempDir;

inline std::string golden(const std::string& name) { return std::string(MOTET_SOURCE_DIR) + "/tests/golden/" + name; }

inline std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The two files of a golden or a made checkpoint, in memory and in a directory of their own.
struct Victim {
  explicit Victim(const std::string& name)
      : config(testing::read_file(golden(name) + "/config.json")), weights(testing::read_file(golden(name) + "/model.safetensors")) {
    restore();
  }
  explicit Victim(const testing::TestCheckpoint& made) : config(made.config.dump()), weights(testing::file_text(made.tensors)) { restore(); }
  void restore() const {
    testing::write_file(config_path(), config);
    testing::write_file(weights_path(), weights);
  }
  std::string config_path() const { return dir / "config.json"; }
  std::string weights_path() const { return dir / "model.safetensors"; }
  std::size_t header_bytes() const {
    std::uint64_t length = 0;
    std::memcpy(&length, weights.data(), sizeof length);
    return static_cast<std::size_t>(length);
  }
  std::string header() const { return weights.substr(8, header_bytes()); }
  std::string body() const { return weights.substr(8 + header_bytes()); }

  TempDir dir;
  std::string config, weights;
};

inline const Environment& environment() {
  static const Environment probed = Environment::probe();
  return probed;
}

/// A layer that runs, of a plan for `tokens` tokens in fp32.
struct Runnable {
  Plan plan;
  std::unique_ptr<Layer> layer;
};

inline Runnable runnable(const Checkpoint& checkpoint, const Wishes& wishes, std::int64_t tokens) {
  const LayerSpec& spec = checkpoint.layers().front().spec;
  Deployment deployment;
  deployment.tokens = tokens;
  deployment.input = DType::f32;
  deployment.wishes = wishes;
  Runnable result{motet::plan(spec, deployment, environment()).value(), nullptr};
  result.layer = Layer::create(result.plan, checkpoint.load(spec.layer));
  return result;
}

inline Wishes reference() {
  Wishes wishes;
  wishes.backend = "reference";
  wishes.threads = 1;
  return wishes;
}

/// What a forward gave.
struct Result {
  std::vector<float> output, weights;
  std::vector<std::int32_t> index;
  RunStatus status;
};

inline Result forward(Runnable& run, const std::vector<float>& hidden_states) {
  const LayerSpec& spec = run.plan.spec;
  const std::int64_t tokens = static_cast<std::int64_t>(hidden_states.size()) / spec.hidden;
  Result result;
  result.output.resize(hidden_states.size());
  result.weights.resize(static_cast<std::size_t>(tokens * spec.top_k));
  result.index.resize(result.weights.size());
  ForwardInput input;
  input.hidden_states = {hidden_states.data(), DType::f32, tokens, spec.hidden};
  ForwardOutput output;
  output.output = {result.output.data(), DType::f32, tokens, spec.hidden};
  output.top_k_index = result.index.data();
  output.top_k_weights = result.weights.data();
  result.status = run.layer->forward(input, output);
  return result;
}

/// The error of opening, loading, planning and running one token through the first MoE layer; code ok when there is none.
struct Outcome {
  ErrorCode code = ErrorCode::ok;
  std::string text;
};

inline Outcome outcome_of(const std::string& where) {
  try {
    const auto checkpoint = Checkpoint::open(where);
    Runnable run = runnable(*checkpoint, reference(), 1);
    const Result result = forward(run, synthetic_hidden_states(1, run.plan.spec.hidden, 1));
    return {result.status.code, std::string(result.status.text())};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
}

/// An error for a reader: named, not blamed on Motet, and without bytes that a terminal obeys.
inline void expect_presentable(const Outcome& outcome) {
  if (outcome.code == ErrorCode::ok) return;
  EXPECT_NE(outcome.code, ErrorCode::internal) << outcome.text;
  EXPECT_FALSE(outcome.text.empty());
  for (const char c : outcome.text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) continue;
    ADD_FAILURE() << "control character in: " << ::testing::PrintToString(outcome.text);
    break;
  }
}

}  // namespace motet::hostile
