// SPDX-License-Identifier: Apache-2.0
// motet bench: seeded, honest timing of the routed experts of a named shape or a checkpoint's layer.
// Every forward draws fresh experts, so that weights come from memory as in a running model; routing is given, so the router
// is left out. Of a named shape the routed experts alone are timed; a checkpoint's layer is timed whole, with its shared
// expert and latent projections.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "cli.h"
#include "interrupt.h"
#include "output.h"
#include "roofline.h"
#include "run_input.h"

namespace motet::cli {
namespace {

struct Options {
  std::string shape, format, tokens = "1,16,256", routing = "uniform", routing_file, output = "md";
  bool json = false;
  std::int64_t experts = 0, repeat = 9;
  std::uint64_t seed = 1;
  WishOptions wishes;
} options;

/// The layer that is timed, with its weights.
struct Subject {
  std::string name;
  LayerSpec spec;
  std::shared_ptr<Checkpoint> checkpoint;      ///< null: seeded weights
  std::shared_ptr<const LayerWeights> weights; ///< made after every cell is planned
};

struct Cell {
  std::int64_t tokens = 0;
  Plan plan;
  double median_seconds = 0, p90_seconds = 0, bytes = 0, flops = 0, experts_used = 0;
  Limit limit;
  MeasuredRates rates;
};

Subject subject() {
  for (const NamedShape& shape : shapes()) {
    if (shape.name != options.shape) continue;
    LayerSpec spec = options.format.empty() ? shape.spec : with_format(shape.spec, options.format);
    spec.shared = {};
    spec.hidden = spec.dispatch_width();
    spec.latent = 0;
    spec.latent_norm = false;
    if (options.experts > 0) spec.experts = options.experts;
    spec.router.groups = spec.router.groups_kept = 1;
    return {shape.name, spec, nullptr, nullptr};
  }
  std::vector<std::string> known;
  for (const NamedShape& shape : shapes()) known.push_back(shape.name);
  std::shared_ptr<Checkpoint> checkpoint;
  try {
    checkpoint = Checkpoint::open(options.shape);
  } catch (const Error& error) {
    const std::string near = suggestion(options.shape, known);
    if (near.empty()) throw;
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is neither a shape of 'motet list shapes' nor a checkpoint.{}", options.shape, near));
  }
  if (!options.format.empty() || options.experts > 0) {
    throw Error(ErrorCode::invalid_argument, "--format and --experts are for named shapes; a checkpoint is timed as it is");
  }
  const LayerSpec& spec = checkpoint->layers().front().spec;
  return {checkpoint->path(), spec, checkpoint, nullptr};
}

/// `rounds` routings of `tokens` tokens each, one after the other.
struct Routing {
  std::vector<std::int32_t> index;
  std::vector<float> weights;
};

Routing routing_of(const LayerSpec& spec, std::int64_t tokens, std::int64_t rounds) {
  Routing result;
  if (options.routing == "trace") {
    if (options.routing_file.empty()) throw Error(ErrorCode::invalid_argument, "--routing trace reads 'top_k_index' [tokens, top_k] from --routing-file FILE.safetensors; name the file");
    const auto file = TensorFile::open(options.routing_file);
    const NamedTensor* index = file->find("top_k_index");
    if (index == nullptr || index->dtype != DType::i32 || index->shape.size() != 2 || index->shape[1] != spec.top_k || index->shape[0] < 1) {
      throw Error(ErrorCode::bad_input, fmt::format("{}: must hold 'top_k_index' I32 [tokens >= 1, {}], as 'motet run --output' writes it", options.routing_file, spec.top_k));
    }
    const auto* ids = static_cast<const std::int32_t*>(index->data);
    const std::int64_t recorded = index->shape[0];
    for (std::int64_t row = 0; row < tokens * rounds; ++row) {
      for (std::int64_t k = 0; k < spec.top_k; ++k) {
        std::int32_t id = 0;
        std::copy_n(reinterpret_cast<const char*>(ids + (row % recorded) * spec.top_k + k), sizeof id, reinterpret_cast<char*>(&id));
        result.index.push_back(id);
      }
    }
    result.weights.assign(result.index.size(), 1.0F / static_cast<float>(spec.top_k));
    return result;
  }
  if (options.routing != "uniform" && options.routing != "zipf") {
    throw Error(ErrorCode::invalid_argument, fmt::format("--routing takes uniform, zipf or trace, not '{}'.{}", options.routing, suggestion(options.routing, {"uniform", "zipf", "trace"})));
  }
  synthetic_routing(spec, tokens * rounds, options.routing == "zipf" ? RoutingPattern::zipf : RoutingPattern::uniform, options.seed + 1, result.index, result.weights);
  return result;
}

// A fresh probe needs a few rounds until enough of its buffer is resident to read past the last-level cache.
MeasuredRates measured(RateProbe& probe, int threads) {
  MeasuredRates rates;
  for (int round = 0; round < 6 && rates.read_bytes_per_second <= 0; ++round) rates = probe.measure({.threads = threads, .budget_seconds = 0.25});
  return rates;
}

// The limits of the time between two measurements: bandwidth drifts, so its mean; a dot rate is only ever seen too low, so its maximum.
MeasuredRates between(const MeasuredRates& before, const MeasuredRates& after) {
  MeasuredRates rates = after;
  rates.read_bytes_per_second = (before.read_bytes_per_second + after.read_bytes_per_second) / 2;
  rates.f32_flops = std::max(before.f32_flops, after.f32_flops);
  rates.bf16_flops = std::max(before.bf16_flops, after.bf16_flops);
  rates.bf16_tile_flops = std::max(before.bf16_tile_flops, after.bf16_tile_flops);
  rates.int16_ops = std::max(before.int16_ops, after.int16_ops);
  rates.int8_ops = std::max(before.int8_ops, after.int8_ops);
  return rates;
}

// What forwards read can be read no slower than they read it: the faster of the probe's own buffer and the weights themselves.
void take_faster_read(MeasuredRates& rates, RateProbe& probe, std::vector<ByteSpan> weights) {
  if (weights.empty()) return;
  const MeasuredRates own = probe.measure({.threads = rates.threads, .budget_seconds = 0.1, .compute = false, .resident = std::move(weights)});
  if (own.read_bytes_per_second <= rates.read_bytes_per_second) return;
  rates.read_bytes_per_second = own.read_bytes_per_second;
  rates.read_bytes = own.read_bytes;
  rates.read_may_be_cached = own.read_may_be_cached;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

Plan plan_cell(const LayerSpec& spec, std::int64_t tokens, const Environment& environment) {
  Deployment deployment;
  deployment.tokens = tokens;
  deployment.input = DType::bf16;
  options.wishes.apply(deployment);
  return plan(spec, deployment, environment).value();
}

Cell time_cell(const Subject& subject, const Plan& made, std::unique_ptr<RateProbe>& probe) {
  const std::int64_t tokens = made.deployment.tokens;
  Cell cell;
  cell.tokens = tokens;
  cell.plan = made;
  const std::unique_ptr<Layer> layer = Layer::create(cell.plan, subject.weights);
  const std::int64_t warm_up = 2, rounds = options.repeat + warm_up, cells = tokens * subject.spec.top_k;
  const RunInput input = synthetic_input(subject.spec, tokens, options.seed + 2);
  const Routing routing = routing_of(subject.spec, tokens, rounds);
  std::vector<std::byte> output(input.hidden_states.size());
  if (probe == nullptr) probe = RateProbe::create(cell.plan.threads);
  const MeasuredRates before = measured(*probe, cell.plan.threads);
  std::vector<double> seconds, bytes;
  std::vector<ByteSpan> read;
  for (std::int64_t round = 0; round < rounds; ++round) {
    stop_if_interrupted();
    ForwardInput in = input.view(subject.spec);
    in.top_k_index = routing.index.data() + round * cells;
    in.top_k_weights = routing.weights.data() + round * cells;
    ForwardOutput out;
    out.output = {output.data(), input.dtype, tokens, subject.spec.hidden};
    const RunStatus status = layer->forward(in, out);
    if (!status.ok()) throw Error(status.code, std::string(status.text()));
    const std::vector<ByteSpan> spans = layer->weights_read();
    read.insert(read.end(), spans.begin(), spans.end());
    if (round < warm_up) continue;
    seconds.push_back(layer->stats().total_seconds);
    bytes.push_back(static_cast<double>(layer->stats().weight_bytes));
    cell.flops = layer->stats().flops;
    cell.experts_used += static_cast<double>(layer->stats().experts_used) / static_cast<double>(options.repeat);
  }
  cell.median_seconds = percentile(seconds, 0.5);
  cell.p90_seconds = percentile(seconds, 0.9);
  cell.bytes = percentile(bytes, 0.5);
  cell.rates = between(before, measured(*probe, cell.plan.threads));
  take_faster_read(cell.rates, *probe, std::move(read));
  cell.limit = limit_of(cell.bytes, cell.flops, cell.rates, cell.plan.recipe.arithmetic);
  return cell;
}

Json cell_json(const Subject& subject, const Cell& cell) {
  Json result = {{"shape", subject.name}, {"format", subject.spec.gate_up.format}, {"tokens", cell.tokens}, {"threads", cell.plan.threads},
                 {"arithmetic", cell.plan.recipe.arithmetic}, {"residence", name_of(cell.plan.deployment.wishes.residence)}, {"target", cell.plan.target},
                 {"invariant", cell.plan.deployment.wishes.invariant}, {"chunk_tokens", cell.plan.deployment.at_once()}, {"median_ms", cell.median_seconds * 1e3}, {"p90_ms", cell.p90_seconds * 1e3},
                 {"tokens_per_s", static_cast<double>(cell.tokens) / cell.median_seconds}, {"gb_per_s", cell.bytes / cell.median_seconds / 1e9},
                 {"gflop_per_s", cell.flops / cell.median_seconds / 1e9}, {"experts_used", cell.experts_used}};
  result["limit"] = cell.limit.name.empty() ? Json(nullptr) : Json(cell.limit.name);
  result["share"] = cell.limit.name.empty() ? Json(nullptr) : Json(cell.limit.seconds / cell.median_seconds);
  result["rates"] = {{"read_gb_per_s", cell.rates.read_bytes_per_second / 1e9}, {"read_bytes", cell.rates.read_bytes}, {"read_may_be_cached", cell.rates.read_may_be_cached}, {"f32_gflop_per_s", cell.rates.f32_flops / 1e9}, {"bf16_gflop_per_s", cell.rates.bf16_flops / 1e9},
                     {"bf16_tile_gflop_per_s", cell.rates.bf16_tile_flops / 1e9}, {"int16_gop_per_s", cell.rates.int16_ops / 1e9}, {"int8_gop_per_s", cell.rates.int8_ops / 1e9}};
  return result;
}

std::string rows_text(const Json& cells, bool csv) {
  const std::vector<std::string> columns = {"shape", "format", "tokens", "threads", "arithmetic", "residence", "target", "median_ms", "p90_ms", "tokens_per_s", "gb_per_s", "gflop_per_s", "limit", "share"};
  const auto line = [&](const std::vector<std::string>& words) { return csv ? fmt::format("{}\n", fmt::join(words, ",")) : fmt::format("| {} |\n", fmt::join(words, " | ")); };
  std::string text = line(columns);
  if (!csv) text += line(std::vector<std::string>(columns.size(), "---"));
  for (const Json& cell : cells) {
    std::vector<std::string> words;
    for (const std::string& column : columns) {
      const Json& value = cell.at(column);
      words.push_back(value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : value.dump());
    }
    text += line(words);
  }
  return text;
}

int run() {
  constexpr std::int64_t kMostRepeats = 100'000;  // routings of all repeats are drawn before the first is timed
  if (options.repeat > kMostRepeats) throw Error(ErrorCode::invalid_argument, fmt::format("--repeat takes at most {}, not {}", kMostRepeats, options.repeat));
  const std::vector<std::string> outputs = {"md", "csv", "json"};
  if (std::find(outputs.begin(), outputs.end(), options.output) == outputs.end()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--output takes md, csv or json, not '{}'.{}", options.output, suggestion(options.output, outputs)));
  }
  const std::vector<std::int64_t> counts = parse_counts(options.tokens, "--tokens");
  for (const std::int64_t tokens : counts) {
    if (tokens < 1) throw Error(ErrorCode::invalid_argument, "--tokens of bench takes numbers >= 1: zero tokens take no time");
  }
  const Environment environment = Environment::probe();
  must_know("--format", options.format, names_of(formats()));
  Subject timed = subject();
  std::vector<Plan> plans;
  for (const std::int64_t tokens : counts) plans.push_back(plan_cell(timed.spec, tokens, environment));
  if (timed.checkpoint != nullptr) {
    timed.weights = timed.checkpoint->load(timed.spec.layer);
  } else {
    spdlog::info("making seeded weights of {} in {} ({} experts)", timed.name, timed.spec.gate_up.format, timed.spec.experts);
    timed.weights = synthetic_weights(timed.spec, options.seed);
  }
  Json document = {{"schema", "motet.bench/1"}, {"version", version()}, {"processor", environment.processor}, {"threads_reason", environment.threads_reason},
                   {"routing", options.routing}, {"seed", options.seed}, {"repeat", options.repeat}, {"experts", timed.spec.experts}, {"cells", Json::array()}};
  std::unique_ptr<RateProbe> probe;
  for (const Plan& made : plans) {
    spdlog::info("{} tokens", made.deployment.tokens);
    document["cells"].push_back(cell_json(timed, time_cell(timed, made, probe)));
  }
  if (options.output == "json" || options.json) {
    print_json(document);
  } else {
    print(rows_text(document["cells"], options.output == "csv"));
  }
  return 0;
}

}  // namespace

Command add_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench", "Time routed experts on seeded weights of a named shape, or on a checkpoint's first MoE layer");
  app->footer("Example:\n  motet bench gpt-oss-20b --format mxfp4 --tokens 1,16,256 --output md");
  app->add_option("shape", options.shape, "A name of 'motet list shapes', or a checkpoint")->required();
  app->add_option("--format", options.format, "Weight format of the routed experts; default: the published one");
  app->add_option("--tokens", options.tokens, "Token counts, such as 1,16,256")->capture_default_str();
  app->add_option("--experts", options.experts, "Cut the number of experts, for shapes larger than memory")->check(whole_number(1));
  app->add_option("--routing", options.routing, "uniform, zipf or trace")->capture_default_str();
  app->add_option("--routing-file", options.routing_file, "safetensors with top_k_index, for --routing trace");
  app->add_option("--repeat", options.repeat, "Timed forwards per cell")->check(whole_number(1))->capture_default_str();
  app->add_option("--seed", options.seed, "Seed of weights, tokens and routing")->check(whole_number(0))->capture_default_str();
  app->add_option("--output", options.output, "md, csv or json")->capture_default_str();
  add_json(*app, options.json);
  options.wishes.add_to(*app, false);
  return {app, run};
}

}  // namespace motet::cli
