// SPDX-License-Identifier: Apache-2.0
// motet run: the main job. Reads a checkpoint's MoE layers in place, runs them, checks them, says what happened.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>

#include "cli.h"
#include "interrupt.h"
#include "output.h"
#include "roofline.h"
#include "run_input.h"
#include "run_ranks.h"

namespace motet::cli {
namespace {

struct Options {
  std::string checkpoint, layer, input, output, trace;
  std::int64_t tokens = 16, repeat = 1;
  std::uint64_t seed = 1;
  bool check = false, no_probe = false, json = false;
  std::string hook;
  double deadline = 30;
  RankOptions ranks;
  WishOptions wishes;
  CLI::Option* tokens_option = nullptr;
} options;

/// What one layer did.
struct LayerRun {
  Plan plan;
  RunInput input;
  std::vector<std::byte> output;
  std::vector<std::int32_t> top_k_index;
  std::vector<float> top_k_weights;
  std::vector<ForwardStats> stats;         ///< one per repeat
  std::vector<std::int64_t> load;
  MeasuredRates rates;                     ///< dot rates of the probe, and the read rate over this layer's own weights
  std::optional<CheckReport> check;
  std::optional<RanksRun> ranks;           ///< more than one

  const ForwardStats& median() const {
    std::vector<std::size_t> order(stats.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return stats[a].total_seconds < stats[b].total_seconds; });
    return stats[order[order.size() / 2]];
  }
};

// This process's rank of an MPI launch, until the report is printed: its end may end the process.
std::shared_ptr<Group> mpi_group;

Plan plan_layer(const LayerSpec& spec, const InputShape& input, const Environment& environment) {
  Deployment deployment;
  options.ranks.apply(deployment);
  deployment.tokens = std::max<std::int64_t>(tokens_of_a_rank(input.tokens, deployment), 1);
  deployment.input = input.dtype;
  options.wishes.apply(deployment);
  if (!options.hook.empty()) deployment.wishes.finalize = Finalize::hook;
  const auto ranks = static_cast<int>(deployment.tp * deployment.ep);
  if (ranks > 1 && mpi_group == nullptr) {  // ranks of a machine share its memory
    const std::int64_t limit = deployment.memory_limit > 0 ? deployment.memory_limit : environment.memory_bytes;
    deployment.memory_limit = limit / ranks;
  }
  if (ranks > 1 && deployment.wishes.threads == 0) {  // ranks of a machine share it; a launcher may have bound each to processors of its own
    const char* const local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int sharing = mpi_group == nullptr ? ranks : environment.threads < sysconf(_SC_NPROCESSORS_ONLN) || local == nullptr ? 1 : std::max(1, std::atoi(local));
    deployment.wishes.threads = std::max(1, environment.threads / sharing);
  }
  return plan(spec, deployment, environment).value();
}

// The machine's limits in at most 0.3 s for all layers together: dot rates once, the read rate beside each layer. A measurement ends with
// a round that has begun, hence 0.02 s are left over.
class LimitProbe {
 public:
  explicit LimitProbe(std::size_t layers) : layers_(layers) {}
  // Reads what the layer's last forward read, which is resident: touching fresh memory would take longer than the probe may.
  MeasuredRates beside(const Layer& layer) {
    const int threads = layer.plan().threads;
    if (probe_ == nullptr) {
      probe_ = RateProbe::create(threads);
      dots_ = probe_->measure({.threads = threads, .budget_seconds = 0.09, .bandwidth = false});
      read_seconds_ = std::max(0.28 - dots_.seconds, 0.05) / static_cast<double>(layers_);
    }
    MeasuredRates rates = dots_;
    dots_.seconds = 0;  // counted once
    const std::vector<ByteSpan> read = layer.weights_read();
    if (read.empty()) return rates;
    const MeasuredRates reads = probe_->measure({.threads = threads, .budget_seconds = read_seconds_, .compute = false, .resident = read});
    rates.read_bytes_per_second = reads.read_bytes_per_second;
    rates.read_bytes = reads.read_bytes;
    rates.read_may_be_cached = reads.read_may_be_cached;
    rates.seconds += reads.seconds;
    return rates;
  }

 private:
  std::size_t layers_;
  double read_seconds_ = 0;  // of one layer
  std::unique_ptr<RateProbe> probe_;
  MeasuredRates dots_;
};

// Hooks that show what hooks do: identity applies the weight as the built-in finalize does; scale_by_expert applies weight x (1 + expert / experts).
void identity_hook(void*, const HookRow& row) noexcept {
  for (std::int64_t i = 0; i < row.width; ++i) row.row[i] = row.weight * row.row[i];
}
float scaled_weight(float weight, std::int32_t expert, std::int64_t experts) noexcept {
  return weight * (1 + static_cast<float>(expert) / static_cast<float>(experts));
}
void scale_hook(void* experts, const HookRow& row) noexcept {
  const float weight = scaled_weight(row.weight, static_cast<std::int32_t>(row.expert), *static_cast<const std::int64_t*>(experts));
  for (std::int64_t i = 0; i < row.width; ++i) row.row[i] = weight * row.row[i];
}

void run_one_rank(const Hooks& hooks, const std::shared_ptr<const LayerWeights>& weights, LimitProbe* probe, LayerRun& run) {
  const LayerSpec& spec = run.plan.spec;
  const std::unique_ptr<Layer> layer = Layer::create(run.plan, weights, hooks);
  const OutputType type = run.plan.output(run.input.tokens);
  ForwardOutput out;
  out.output = {run.output.data(), type.dtype, type.rows, type.cols};
  out.top_k_index = run.top_k_index.data();
  out.top_k_weights = run.top_k_weights.data();
  for (std::int64_t i = 0; i < options.repeat; ++i) {
    stop_if_interrupted();
    const RunStatus status = layer->forward(run.input.view(spec), out);
    if (!status.ok()) throw Error(status.code, std::string(status.text()));
    run.stats.push_back(layer->stats());
  }
  stop_if_interrupted();
  run.load.assign(layer->expert_load(), layer->expert_load() + spec.experts);
  if (probe != nullptr) run.rates = probe->beside(*layer);
}

// The reference knows no hooks: it is given the weights that the hook applied.
CheckReport check_run(const LayerRun& run, const std::shared_ptr<const LayerWeights>& weights) {
  const LayerSpec& spec = run.plan.spec;
  const OutputType type = run.plan.output(run.input.tokens);
  ForwardInput in = run.input.view(spec);
  std::vector<float> applied = run.top_k_weights;
  if (options.hook == "scale_by_expert") {
    for (std::size_t i = 0; i < applied.size(); ++i)
      if (run.top_k_index[i] >= 0 && run.top_k_index[i] < spec.experts) applied[i] = scaled_weight(applied[i], run.top_k_index[i], spec.experts);
    in.top_k_index = run.top_k_index.data();
    in.top_k_weights = applied.data();
  }
  return check_forward(run.plan, weights, in, {run.output.data(), type.dtype, type.rows, type.cols}, run.top_k_index.data(), applied.data());
}

// Plans before anything is made or mapped: what does not fit or is not built is refused first.
LayerRun run_layer(const Checkpoint& checkpoint, const LayerSpec& spec, const TensorFile* file, const Environment& environment, LimitProbe* probe) {
  const InputShape shape = file != nullptr ? shape_in_file(*file, options.input, spec) : InputShape{options.tokens, DType::bf16};
  LayerRun run{plan_layer(spec, shape, environment), {}, {}, {}, {}, {}, {}, {}, {}, {}};
  run.input = file != nullptr ? input_from_file(*file, options.input, spec) : synthetic_input(spec, options.tokens, options.seed);
  const std::shared_ptr<const LayerWeights> weights = checkpoint.load(spec.layer);
  const OutputType type = run.plan.output(run.input.tokens);
  const auto cells = static_cast<std::size_t>(run.input.tokens * spec.top_k);
  run.output.resize(static_cast<std::size_t>(type.rows * type.cols * bits_of(type.dtype) / 8));
  run.top_k_index.resize(cells);
  run.top_k_weights.resize(cells);
  std::int64_t experts = spec.experts;
  Hooks hooks;
  if (options.hook == "identity") hooks.row = identity_hook;
  if (options.hook == "scale_by_expert") hooks = {.row = scale_hook, .batch = nullptr, .context = &experts};
  if (run.plan.ranks.size() == 1) {
    run_one_rank(hooks, weights, probe, run);
  } else {
    const RankWishes wishes{options.deadline, options.repeat, hooks, mpi_group};
    run.ranks = run_on_ranks(run.plan, weights, run.input, wishes, {run.output.data(), run.top_k_index.data(), run.top_k_weights.data()});
    if (run.ranks->ranks.empty()) return run;  // rank 0 of the launch reports
    run.stats = run.ranks->stats;
    run.load = run.ranks->load;
  }
  if (options.check) run.check = check_run(run, weights);
  return run;
}

void write_outputs(const std::vector<LayerRun>& runs, bool all) {
  std::vector<NamedTensor> tensors;
  for (const LayerRun& run : runs) {
    const std::string prefix = all ? fmt::format("layers.{}.", run.plan.spec.layer) : "";
    const OutputType type = run.plan.output(run.input.tokens);
    tensors.push_back({prefix + "output", type.dtype, {type.rows, type.cols}, run.output.data()});
    tensors.push_back({prefix + "top_k_index", DType::i32, {run.input.tokens, run.plan.spec.top_k}, run.top_k_index.data()});
    tensors.push_back({prefix + "top_k_weights", DType::f32, {run.input.tokens, run.plan.spec.top_k}, run.top_k_weights.data()});
  }
  write_tensor_file(options.output, tensors);
}

// Trace-event JSON (the format that Perfetto and chrome://tracing open): one row per layer, stages one after the other.
void write_trace(const std::vector<LayerRun>& runs) {
  Json events = Json::array();
  double now = 0;
  for (const LayerRun& run : runs) {
    for (const ForwardStats& stats : run.stats) {
      for (int stage = 0; stage <= static_cast<int>(StageId::tail); ++stage) {
        const double duration = stats.seconds[stage] * 1e6;
        if (duration <= 0) continue;
        events.push_back({{"name", name_of(static_cast<StageId>(stage))}, {"ph", "X"}, {"ts", now}, {"dur", duration}, {"pid", 1}, {"tid", run.plan.spec.layer},
                          {"args", {{"layer", run.plan.spec.layer}, {"tokens", stats.tokens}, {"rows", stats.rows}}}});
        now += duration;
      }
    }
  }
  write_text_file(options.trace, Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n");
}

struct LoadSummary { std::int64_t used = 0, most = 0; double mean = 0; };
LoadSummary summarise(const std::vector<std::int64_t>& load) {
  LoadSummary result;
  std::int64_t total = 0;
  for (const std::int64_t rows : load) result.used += rows > 0 ? 1 : 0, result.most = std::max(result.most, rows), total += rows;
  result.mean = load.empty() ? 0 : static_cast<double>(total) / static_cast<double>(load.size());
  return result;
}

// Wishes that were not met, each with what was taken instead (only with --allow-substitution).
std::vector<std::string> substitutions(const Plan& made) {
  std::vector<std::string> result;
  for (const Choice& choice : made.choices) {
    if (choice.substituted) result.push_back(fmt::format("{} {} taken instead of what was wished: {}", choice.kind, choice.name, choice.reason));
  }
  return result;
}

Json check_json(const CheckReport& check) {
  return {{"relative_l2", check.relative_l2}, {"bound", check.bound}, {"tokens", check.tokens}, {"routing_mismatches", check.routing_mismatches},
          {"near_ties", check.near_ties}, {"weights_abs", check.weights_abs}, {"ok", check.ok}, {"text", check.text}};
}

Limit limit_for(const LayerRun& run) {
  return limit_of(static_cast<double>(run.median().weight_bytes), run.median().flops, run.rates, run.plan.recipe.arithmetic);
}

// The limit in words: which, its rate, and for reads what was read.
std::string limit_text(const LayerRun& run) {
  const MeasuredRates& rates = run.rates;
  if (limit_for(run).name == "compute") return fmt::format("compute here, {:.0f} GFLOP/s", compute_rate(rates, run.plan.recipe.arithmetic) / 1e9);
  std::string text = fmt::format("bandwidth here, {:.1f} GB/s read over {} of this layer's weights", rates.read_bytes_per_second / 1e9, bytes_text(rates.read_bytes));
  if (rates.read_may_be_cached) text += " (so few may lie in the last-level cache: the limit of this layer when it is repeated)";
  if (compute_rate(rates, run.plan.recipe.arithmetic) <= 0) text += fmt::format("; what arithmetic {} could reach is not measured", run.plan.recipe.arithmetic);
  return text;
}

Json exchange_json(const LayerRun& run) {
  Json document = {{"strategy", run.plan.strategy}, {"scheduler", run.plan.scheduler}, {"wire", name_of(run.plan.recipe.wire)}, {"fabric", options.ranks.fabric},
                   {"tp", run.plan.deployment.tp}, {"ep", run.plan.deployment.ep}, {"placement", name_of(run.plan.deployment.placement)},
                   {"imbalance", run.ranks->imbalance()}, {"ranks", Json::array()}};
  for (const RankReport& rank : run.ranks->ranks) {
    Json entry = {{"tokens", rank.tokens}, {"rows", rank.rows}, {"seconds", rank.seconds}, {"bytes_sent", Json::array()}, {"seconds_waited", Json::array()}};
    for (const PeerStats& peer : rank.peers) entry["bytes_sent"].push_back(peer.bytes_sent), entry["seconds_waited"].push_back(peer.seconds_waited);
    document["ranks"].push_back(entry);
  }
  return document;
}

// A line per rank: what it did, what it sent to others, and for whom it waited longest.
std::string exchange_text(const LayerRun& run) {
  std::string text = fmt::format("  {} ranks (tp {}, ep {}, {} tokens) over {}: strategy {}, {} rows back, {:.2f} times the mean of rows on the most loaded\n",
                                 run.ranks->ranks.size(), run.plan.deployment.tp, run.plan.deployment.ep, name_of(run.plan.deployment.placement), options.ranks.fabric,
                                 run.plan.strategy, name_of(run.plan.recipe.wire), run.ranks->imbalance());
  Table table({"rank", "tokens", "rows", "time", "sent to others", "waited most for"});
  for (std::size_t rank = 0; rank < run.ranks->ranks.size(); ++rank) {
    const RankReport& report = run.ranks->ranks[rank];
    std::int64_t sent = 0;
    std::size_t slowest = rank == 0 ? 1 : 0;
    for (std::size_t peer = 0; peer < report.peers.size(); ++peer) {
      if (peer == rank) continue;
      sent += report.peers[peer].bytes_sent;
      if (report.peers[peer].seconds_waited > report.peers[slowest].seconds_waited) slowest = peer;
    }
    table.row({std::to_string(rank), std::to_string(report.tokens), std::to_string(report.rows), seconds_text(report.seconds), bytes_text(sent),
               fmt::format("rank {}, {}", slowest, seconds_text(report.peers[slowest].seconds_waited))});
  }
  return text + table.text();
}

Json layer_json(const LayerRun& run) {
  const ForwardStats& stats = run.median();
  const Limit limit = limit_for(run);
  Json document = {{"layer", run.plan.spec.layer}, {"fingerprint", run.plan.fingerprint}, {"backend", run.plan.backend}, {"target", run.plan.target},
                   {"arithmetic", run.plan.recipe.arithmetic}, {"threads", run.plan.threads}, {"input", run.input.source}, {"tokens", stats.tokens}, {"rows", stats.rows},
                   {"repeats", run.stats.size()}, {"seconds", stats.total_seconds},
                   {"tokens_per_second", stats.total_seconds > 0 ? static_cast<double>(stats.tokens) / stats.total_seconds : 0},
                   {"weight_bytes", stats.weight_bytes}, {"flops", stats.flops}};
  for (int stage = 0; stage <= static_cast<int>(StageId::tail); ++stage) document["stages"][std::string(name_of(static_cast<StageId>(stage)))] = stats.seconds[stage];
  document["substitutions"] = substitutions(run.plan);
  document["limit"] = limit.name.empty() ? Json(nullptr) : Json(limit.name);
  document["share"] = limit.name.empty() || stats.total_seconds <= 0 ? Json(nullptr) : Json(limit.seconds / stats.total_seconds);
  if (!options.no_probe) {
    document["read"] = {{"bytes_per_second", run.rates.read_bytes_per_second}, {"bytes", run.rates.read_bytes}, {"may_be_cached", run.rates.read_may_be_cached}};
  }
  document["chunk_tokens"] = run.plan.deployment.at_once();
  document["workspace_bytes"] = run.plan.workspace.bytes;
  document["expert_load"] = run.load;
  document["check"] = run.check ? check_json(*run.check) : Json(nullptr);
  if (run.ranks) document["exchange"] = exchange_json(run);
  return document;
}

std::string layer_text(const LayerRun& run) {
  const ForwardStats& stats = run.median();
  const LayerSpec& spec = run.plan.spec;
  std::string text = fmt::format("{}\n  {}: hidden {}, intermediate {}, experts {}, top_k {}, {}\n  {}{} on {} threads, arithmetic {}; plan {}\n  input: {}{}\n",
                                 bold(fmt::format("Layer {}", spec.layer)), spec.family, spec.hidden, spec.intermediate, spec.experts, spec.top_k, spec.gate_up.format, run.plan.backend,
                                 run.plan.target.empty() ? "" : "/" + run.plan.target, run.plan.threads, run.plan.recipe.arithmetic, run.plan.fingerprint.substr(0, 12), run.input.source,
                                 run.plan.deployment.chunk_tokens > 0 ? fmt::format(", {} of a rank at once", run.plan.deployment.at_once()) : "");
  for (const std::string& substitution : substitutions(run.plan)) text += fmt::format("  {} {}\n", red("substituted:"), substitution);
  Table table({"stage", "time", "share"});
  for (int stage = 0; stage <= static_cast<int>(StageId::tail); ++stage) {
    if (stats.seconds[stage] <= 0) continue;
    table.row({std::string(name_of(static_cast<StageId>(stage))), seconds_text(stats.seconds[stage]),
               fmt::format("{:.1f} %", stats.total_seconds > 0 ? 100 * stats.seconds[stage] / stats.total_seconds : 0)});
  }
  text += table.text();
  const double seconds = stats.total_seconds;
  text += fmt::format("  total {}{}: {:.1f} tokens/s, {} of weights read", seconds_text(seconds), run.stats.size() > 1 ? fmt::format(" (median of {})", run.stats.size()) : "",
                      seconds > 0 ? static_cast<double>(stats.tokens) / seconds : 0.0, bytes_text(stats.weight_bytes));
  if (seconds > 0) text += fmt::format(" ({:.1f} GB/s, {:.1f} GFLOP/s)", static_cast<double>(stats.weight_bytes) / seconds / 1e9, stats.flops / seconds / 1e9);
  text += "\n";
  const Limit limit = limit_for(run);
  if (!limit.name.empty() && seconds > 0) {
    const double percent = 100 * limit.seconds / seconds;
    text += fmt::format("  {:.{}f} % of this machine's limit, which is {}\n", percent, percent < 10 ? 1 : 0, limit_text(run));
  } else if (!options.no_probe) {
    text += fmt::format("  share of this machine's limit: none, {}\n", run.ranks ? "it is not measured with several ranks" : "nothing was read");
  }
  const LoadSummary load = summarise(run.load);
  text += fmt::format("  expert load: {} of {} experts used, most loaded {} rows, {:.2f} times the mean\n", load.used, run.load.size(), load.most,
                      load.mean > 0 ? static_cast<double>(load.most) / load.mean : 0.0);
  if (run.ranks) text += exchange_text(run);
  if (run.check) text += fmt::format("  check: {}\n", run.check->ok ? green(run.check->text) : red(run.check->text));
  return text;
}

std::vector<const LayerSummary*> wanted_layers(const Checkpoint& checkpoint) {
  std::vector<const LayerSummary*> result;
  if (options.layer == "all") {
    for (const LayerSummary& layer : checkpoint.layers()) result.push_back(&layer);
  } else {
    result.push_back(&wanted_layer(checkpoint, options.layer));
  }
  return result;
}

void validate() {
  must_know("--hook", options.hook, {"identity", "scale_by_expert"});
  if (!(options.deadline > 0)) throw Error(ErrorCode::invalid_argument, fmt::format("--deadline takes seconds above 0, not {}", options.deadline));
  if (!options.input.empty() && options.tokens_option->count() > 0) {
    throw Error(ErrorCode::invalid_argument, "--tokens makes synthetic tokens and --input reads them from a file: give one of the two");
  }
  if (!options.output.empty() && options.output == options.trace) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--output and --trace are two files, but both are '{}'; name another", options.output));
  }
  // A folder that cannot be written is said before the work, not after it.
  for (const std::string& path : {options.output, options.trace}) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!path.empty() && access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
      throw Error(ErrorCode::io_error, fmt::format("a result is written beside other files, but the folder of '{}' is not there or not writable; choose another path", path));
    }
  }
}

// The launch says how many ranks there are; --ranks, --tp and --ep may only say the same.
void join_launch() {
  mpi_group = Group::mpi({.deadline = options.deadline});
  RankOptions& ranks = options.ranks;
  if (ranks.ranks == 0 && ranks.ep == 0) ranks.ranks = mpi_group->ranks();
  Deployment deployment;
  ranks.apply(deployment);
  if (deployment.tp * deployment.ep != mpi_group->ranks()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("over MPI every process is a rank, but the launch has {} and tp x ep is {}; start as many", mpi_group->ranks(), deployment.tp * deployment.ep));
  }
  if (const int allowed = Environment::probe().threads, online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); mpi_group->rank() == 0 && allowed < online) {
    spdlog::warn("the launcher lets this rank use {} of {} processors; mpirun --bind-to none, or --map-by slot:PE=N, gives it more", allowed, online);
  }
}

int run_layers() {
  validate();
  const auto checkpoint = Checkpoint::open(options.checkpoint);
  const std::shared_ptr<TensorFile> file = options.input.empty() ? nullptr : TensorFile::open(options.input);
  if (file != nullptr) {
    for (const std::string& name : unused_tensors(*file)) spdlog::warn("{}: tensor '{}' is no input of motet run and is not used", options.input, name);
  }
  if (options.ranks.fabric == "mpi") join_launch();
  const Environment environment = Environment::probe();
  std::vector<LayerRun> runs;
  const std::vector<const LayerSummary*> layers = wanted_layers(*checkpoint);
  LimitProbe probe(layers.size());
  MeasuredRates rates;  // of all layers: the fastest read
  for (const LayerSummary* layer : layers) {
    stop_if_interrupted();
    runs.push_back(run_layer(*checkpoint, layer->spec, file.get(), environment, options.no_probe ? nullptr : &probe));
    if (runs.back().stats.empty()) continue;
    const double seconds = rates.seconds + runs.back().rates.seconds;
    if (runs.size() == 1 || runs.back().rates.read_bytes_per_second > rates.read_bytes_per_second) rates = runs.back().rates;
    rates.seconds = seconds;
  }
  stop_if_interrupted();
  if (mpi_group != nullptr && mpi_group->rank() != 0) return 0;
  if (!options.output.empty()) write_outputs(runs, options.layer == "all");
  if (!options.trace.empty()) write_trace(runs);
  bool ok = true;
  Json document = {{"schema", "motet.run/1"}, {"version", version()}, {"checkpoint", checkpoint->path()}, {"family", checkpoint->family()},
                   {"processor", environment.processor}, {"threads_reason", environment.threads_reason}};
  if (!options.no_probe) document["rates"] = {{"read_bytes_per_second", rates.read_bytes_per_second}, {"f32_flops", rates.f32_flops}, {"bf16_flops", rates.bf16_flops}, {"bf16_tile_flops", rates.bf16_tile_flops},
                                                {"int16_ops", rates.int16_ops}, {"int8_ops", rates.int8_ops}, {"seconds", rates.seconds}};
  std::string text = fmt::format("{} on {} ({})\n", checkpoint->path(), environment.processor, environment.threads_reason);
  for (const LayerRun& run : runs) {
    ok = ok && (!run.check || run.check->ok);
    document["layers"].push_back(layer_json(run));
    text += "\n" + layer_text(run);
  }
  document["ok"] = ok;
  if (options.json) {
    print_json(document);
  } else {
    print(text);
  }
  return ok ? 0 : exit_code_of(ErrorCode::check_failed);
}

// What went wrong is said before the launch ends: its end may end the process (docs/fabrics.md).
int run() {
  int code = 0;
  try {
    code = run_layers();
  } catch (const Error& error) {
    if (mpi_group == nullptr) throw;
    code = say_error(error);
  }
  mpi_group.reset();
  return code;
}

}  // namespace

Command add_run(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "Run MoE layers of a checkpoint in place and say what happened");
  app->footer("Example:\n  motet run sample/gpt-oss-tiny --layer all --input sample/gpt-oss-tiny/hidden_states.safetensors --check");
  app->add_option("checkpoint", options.checkpoint, "Directory, one .safetensors file, or a hub id in the local Hugging Face cache")->required();
  app->add_option("--layer", options.layer, "The model's layer number, or 'all'; default: the first MoE layer");
  options.tokens_option = app->add_option("--tokens", options.tokens, "Synthetic tokens when there is no --input")->check(whole_number(0))->capture_default_str();
  app->add_option("--input", options.input, "safetensors with hidden_states [tokens, hidden]; optional router_logits, token_ids, top_k_index + top_k_weights; layers.N.NAME for one layer");
  app->add_option("--output", options.output, "Write output, top_k_index and top_k_weights as safetensors");
  app->add_flag("--check", options.check, "Compare with the double-precision reference");
  app->add_option("--repeat", options.repeat, "Forwards per layer; times are of the median one")->check(whole_number(1))->capture_default_str();
  app->add_option("--seed", options.seed, "Seed of synthetic tokens")->check(whole_number(0))->capture_default_str();
  app->add_option("--trace", options.trace, "Write a trace-event JSON file (opens in Perfetto)");
  app->add_flag("--no-probe", options.no_probe, "Do not measure the machine's limits (saves 0.3 s)");
  app->add_option("--hook", options.hook, "Finalize by a hook: identity (the same bits), scale_by_expert (weight x (1 + expert / experts))");
  options.ranks.add_to(*app);
  app->add_option("--deadline", options.deadline, "Seconds that a forward may take from its first row sent to its last one back")->group("Ranks")->capture_default_str();
  options.wishes.add_to(*app, false);
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
