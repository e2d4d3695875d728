// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cctype>

#include "cli.h"

namespace motet::cli {
namespace {

// Edits (insert, delete, replace) between two words.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

template <class T>
T one_of(const std::string& option, const std::string& given, const std::vector<std::pair<std::string, T>>& values) {
  std::vector<std::string> known;
  for (const auto& [name, value] : values) {
    if (name == given) return value;
    known.push_back(name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} takes one of {}, not '{}'.{}", option, fmt::join(known, ", "), given, suggestion(given, known)));
}

}  // namespace

std::vector<std::string> names_of(const std::vector<ListEntry>& entries) {
  std::vector<std::string> result;
  for (const ListEntry& entry : entries) result.push_back(entry.name);
  return result;
}

void must_know(const std::string& option, const std::string& given, const std::vector<std::string>& known) {
  if (given.empty() || std::find(known.begin(), known.end(), given) != known.end()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} takes one of {}, not '{}'.{}", option, fmt::join(known, ", "), given, suggestion(given, known)));
}

const LayerSummary& wanted_layer(const Checkpoint& checkpoint, const std::string& layer) {
  if (layer.empty()) return checkpoint.layers().front();
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(layer.data(), layer.data() + layer.size(), number);
  if (error != std::errc{} || end != layer.data() + layer.size() || number < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--layer takes one of the model's layer numbers (or 'all' with motet run), not '{}'", layer));
  }
  return checkpoint.layer(number);
}

std::string nearest(const std::string& given, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, given.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(given, name);
    if (distance < least || (distance == least && best.empty())) {
      if (distance < least) best = name;
      least = std::min(least, distance);
    }
  }
  return best;
}

std::string suggestion(const std::string& given, const std::vector<std::string>& known) {
  const std::string name = nearest(given, known);
  return name.empty() ? "" : fmt::format(" Did you mean '{}'?", name);
}

void WishOptions::add_to(CLI::App& app, bool with_finalize) {
  const std::string group = "Wishes (a wish that cannot be met is an error unless --allow-substitution)";
  app.add_option("--backend", backend, "Backend: a name of 'motet list backends'")->group(group);
  app.add_option("--target", target, "Instruction set: a name of 'motet list targets'")->group(group);
  app.add_option("--strategy", strategy, "Exchange between ranks: a name of 'motet list strategies'")->group(group);
  app.add_option("--wire", wire, "Rows that come back between ranks: fp32 or bf16; default: bf16 where the level allows it")->group(group);
  app.add_option("--arithmetic", arithmetic, "exact (error <= 2e-4), bf16 (never less accurate than bf16 activations), fast")
      ->group(group)->capture_default_str();
  app.add_flag("--invariant", invariant, "One arithmetic and order whatever the number of tokens")->group(group);
  app.add_option("--residence", residence, "mapped (the file's bytes as they lie) or packed")->group(group)->capture_default_str();
  if (with_finalize) app.add_option("--finalize", finalize, "builtin, unfinalized or hook")->group(group)->capture_default_str();
  app.add_option("--threads", threads, "Threads; 0 = all that this process may use")->check(whole_number(0))->group(group)->capture_default_str();
  app.add_option("--chunk-tokens", chunk_tokens, "Most tokens that run at once; 0 = all")->check(whole_number(0))->group(group)->capture_default_str();
  app.add_option("--memory-limit", memory_limit, "Most memory, such as 8GiB; default: what the machine has")->group(group);
  app.add_flag("--allow-substitution", allow_substitution, "Take the next best when a wish cannot be met; the plan says so")->group(group);
}

void WishOptions::apply(Deployment& deployment) const {
  must_know("--backend", backend, names_of(backends()));
  must_know("--target", target, names_of(targets()));
  must_know("--strategy", strategy, names_of(strategies()));
  must_know("--wire", wire, {"fp32", "bf16", "fp8"});
  deployment.chunk_tokens = chunk_tokens;
  deployment.memory_limit = memory_limit.empty() ? 0 : parse_bytes(memory_limit);
  Wishes& wishes = deployment.wishes;
  wishes.backend = backend;
  wishes.target = target;
  wishes.strategy = strategy;
  wishes.wire = wire;
  wishes.arithmetic = one_of<Arithmetic>("--arithmetic", arithmetic, {{"exact", Arithmetic::exact}, {"bf16", Arithmetic::bf16}, {"fast", Arithmetic::fast}});
  wishes.invariant = invariant;
  wishes.residence = one_of<Residence>("--residence", residence, {{"mapped", Residence::mapped}, {"packed", Residence::packed}});
  wishes.finalize = one_of<Finalize>("--finalize", finalize, {{"builtin", Finalize::builtin}, {"unfinalized", Finalize::unfinalized}, {"hook", Finalize::hook}});
  wishes.threads = threads;
  wishes.allow_substitution = allow_substitution;
}

void RankOptions::add_to(CLI::App& app) {
  const std::string group = "Ranks";
  app.add_option("--ranks", ranks, "Ranks in all; alone: ranks that split the experts; default: tp x ep")->check(whole_number(1))->group(group);
  app.add_option("--tp", tp, "Ranks that split the intermediate dimension")->check(whole_number(1))->group(group)->capture_default_str();
  app.add_option("--ep", ep, "Ranks that split the experts; default 1")->check(whole_number(1))->group(group);
  app.add_option("--fabric", fabric, "threads of this process, shm (processes that it starts), mpi (processes of mpirun)")->group(group)->capture_default_str();
  app.add_flag("--replicated", replicated, "Every rank has all tokens; else each has its share of them")->group(group);
}

void RankOptions::apply(Deployment& deployment) const {
  must_know("--fabric", fabric, {"threads", "shm", "mpi"});
  deployment.fabric = fabric;
  constexpr std::int64_t kMost = 4096;
  if (tp > kMost || ep > kMost || ranks > kMost) throw Error(ErrorCode::invalid_argument, fmt::format("--ranks, --tp and --ep are at most {} each; give fewer", kMost));
  deployment.tp = tp;
  deployment.ep = ep > 0 ? ep : ranks > 0 && ranks % tp == 0 ? ranks / tp : 1;
  if (ranks > 0 && (deployment.tp > ranks || deployment.tp * deployment.ep != ranks)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--ranks is tp x ep, but {} ranks, --tp {} and --ep {} were given; leave one of them out", ranks, tp, deployment.ep));
  }
  deployment.placement = replicated ? TokenPlacement::replicated : TokenPlacement::sharded;
}

CLI::Validator whole_number(std::int64_t least) {
  return {[least](std::string& text) {
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool whole = error == std::errc{} && end == text.data() + text.size() && value >= least;
            return whole ? std::string() : fmt::format("takes a whole number >= {}, not '{}'", least, text);
          },
          "NUMBER"};
}

std::int64_t parse_bytes(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  const std::vector<std::pair<std::string, double>> units = {
      {"", 1}, {"b", 1}, {"k", 1024.0}, {"kib", 1024.0}, {"kb", 1e3}, {"m", 1048576.0}, {"mib", 1048576.0}, {"mb", 1e6},
      {"g", 1073741824.0}, {"gib", 1073741824.0}, {"gb", 1e9}, {"t", 1099511627776.0}, {"tib", 1099511627776.0}, {"tb", 1e12}};
  const auto found = std::find_if(units.begin(), units.end(), [&](const auto& entry) { return entry.first == unit; });
  const double bytes = error == std::errc{} && found != units.end() ? value * found->second : -1;
  if (!(bytes >= 1) || bytes > 9e18) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a memory size is a number with a unit such as 8GiB or 512M, not '{}'", text));
  }
  return static_cast<std::int64_t>(bytes);
}

std::vector<std::int64_t> parse_counts(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> result;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + comma, value);
    if (error != std::errc{} || end != text.data() + comma || value < 0) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{} takes numbers >= 0 with commas between, such as 1,16,256, not '{}'", option, text));
    }
    result.push_back(value);
    begin = comma + 1;
  }
  return result;
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "One JSON document on stdout"); }

}  // namespace motet::cli
