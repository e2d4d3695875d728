// SPDX-License-Identifier: Apache-2.0
// What the commands of the motet program share. stdout carries results (tables, or one JSON document with --json), stderr logs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "motet/motet.hpp"

namespace motet::cli {

/// Options that plan, run and bench have in common, and their text before it is understood.
struct WishOptions {
  std::string backend, target, strategy, wire, arithmetic = "bf16", residence = "mapped", finalize = "builtin", memory_limit;
  bool invariant = false, allow_substitution = false;
  int threads = 0;
  std::int64_t chunk_tokens = 0;

  /// --finalize only where a command can honour it: `run` and `bench` compute finalized output.
  void add_to(CLI::App& app, bool with_finalize);
  /// Sets wishes, memory_limit and chunk_tokens. Throws Error(invalid_argument) with a suggestion for a mistyped name.
  void apply(Deployment& deployment) const;
};

/// Options about ranks that plan and run have in common.
struct RankOptions {
  std::int64_t ranks = 0, tp = 1, ep = 0;   ///< ep 0 = from ranks
  bool replicated = false;
  std::string fabric = "threads";

  void add_to(CLI::App& app);
  /// Sets tp, ep and placement. Throws Error(invalid_argument) when ranks is not tp x ep.
  void apply(Deployment& deployment) const;
};

/// A command: adds its options to the app and runs after parsing; returns the exit code.
struct Command {
  CLI::App* app = nullptr;
  int (*run)() = nullptr;
};

Command add_doctor(CLI::App& root);
Command add_list(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_plan(CLI::App& root);
Command add_run(CLI::App& root);
Command add_check(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_completion(CLI::App& root);

/// Throws Error(invalid_argument) with a suggestion unless `given` is empty or known.
void must_know(const std::string& option, const std::string& given, const std::vector<std::string>& known);
std::vector<std::string> names_of(const std::vector<ListEntry>& entries);

/// --layer N: the model's layer number, or the first MoE layer when absent. Throws Error(invalid_argument).
const LayerSummary& wanted_layer(const Checkpoint& checkpoint, const std::string& layer);

/// --json, the same on every command.
void add_json(CLI::App& app, bool& json);

/// Accepts whole numbers from `least` to 2^63 - 1, and nothing else: no empty text, no fraction, no wrap-around.
CLI::Validator whole_number(std::int64_t least);

/// "8GiB", "512M", "1000000" -> bytes; throws Error(invalid_argument).
std::int64_t parse_bytes(const std::string& text);
/// "1,16,256" -> numbers >= 0; throws Error(invalid_argument).
std::vector<std::int64_t> parse_counts(const std::string& text, const std::string& option);

/// The nearest of `known` to `given` when it is near enough to be a slip of the finger, else "".
std::string nearest(const std::string& given, const std::vector<std::string>& known);
/// " Did you mean 'x'?" or "".
std::string suggestion(const std::string& given, const std::vector<std::string>& known);

/// Bash, zsh and fish completion from the option table.
std::string completion_script(const CLI::App& root, const std::string& shell);

}  // namespace motet::cli
