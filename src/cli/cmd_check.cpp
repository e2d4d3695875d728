// SPDX-License-Identifier: Apache-2.0
// motet check: laws and numerics of every backend on this machine, or of one checkpoint's layers.
#include <fmt/format.h>

#include <fnmatch.h>

#include <chrono>

#include "cli.h"
#include "interrupt.h"
#include "output.h"
#include "run_input.h"

namespace motet::cli {
namespace {

struct Options {
  std::string checkpoint, filter, junit;
  std::uint64_t seed = 1;
  bool json = false;
} options;

// As run_checks matches: a part of the name, or a glob over the whole of it.
bool matches(const std::string& name, const std::string& filter) {
  return filter.empty() || name.find(filter) != std::string::npos || fnmatch(filter.c_str(), name.c_str(), 0) == 0;
}

/// A way to run a layer that can disagree with the reference.
struct Way { std::string target; Arithmetic arithmetic; Residence residence; };

CheckCase check_layer(const std::string& name, const LayerSpec& spec, const std::shared_ptr<const LayerWeights>& weights, const Way& way, const Environment& environment) {
  const auto start = std::chrono::steady_clock::now();
  const RunInput input = synthetic_input(spec, 16, options.seed);
  Deployment deployment;
  deployment.tokens = input.tokens;
  deployment.input = input.dtype;
  deployment.wishes.backend = "cpu";
  deployment.wishes.target = way.target;
  deployment.wishes.arithmetic = way.arithmetic;
  deployment.wishes.residence = way.residence;
  const Plan made = plan(spec, deployment, environment).value();
  const auto layer = Layer::create(made, weights);
  std::vector<std::byte> output(input.hidden_states.size());
  std::vector<std::int32_t> index(static_cast<std::size_t>(input.tokens * spec.top_k));
  std::vector<float> routing_weights(index.size());
  const std::vector<std::int64_t> token_ids(static_cast<std::size_t>(input.tokens), 0);
  ForwardInput in = input.view(spec);
  if (spec.router.selection == RouterSelection::hash) in.token_ids = token_ids.data();
  ForwardOutput out;
  out.output = {output.data(), input.dtype, input.tokens, spec.hidden};
  out.top_k_index = index.data();
  out.top_k_weights = routing_weights.data();
  const RunStatus status = layer->forward(in, out);
  if (!status.ok()) throw Error(status.code, std::string(status.text()));
  const CheckReport report = check_forward(made, weights, in, {output.data(), input.dtype, input.tokens, spec.hidden}, index.data(), routing_weights.data());
  return {name, report.ok, report.text, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), false};
}

constexpr std::pair<Arithmetic, Residence> kLevels[] = {{Arithmetic::exact, Residence::mapped},
                                                        {Arithmetic::bf16, Residence::mapped},
                                                        {Arithmetic::fast, Residence::mapped},
                                                        {Arithmetic::exact, Residence::packed},
                                                        {Arithmetic::bf16, Residence::packed}};

// Every MoE layer, every usable target, each level: 16 synthetic tokens against the reference. Errors of the
// checkpoint are thrown: they are not results of a check.
std::vector<CheckCase> checkpoint_cases(const Checkpoint& checkpoint) {
  std::vector<CheckCase> cases;
  const Environment environment = Environment::probe();
  for (const LayerSummary& layer : checkpoint.layers()) {
    std::shared_ptr<const LayerWeights> weights;
    for (const TargetFacts& target : environment.targets) {
      for (const auto& [arithmetic, residence] : kLevels) {
        const std::string name = fmt::format("layer {}/cpu/{}/{}{}", layer.spec.layer, target.name, name_of(arithmetic), residence == Residence::packed ? "/packed" : "");
        if (!matches(name, options.filter)) continue;
        stop_if_interrupted();
        if (!target.usable) {
          cases.push_back({name, false, target.reason, 0, true});
          continue;
        }
        if (weights == nullptr) weights = checkpoint.load(layer.spec.layer);
        cases.push_back(check_layer(name, layer.spec, weights, {target.name, arithmetic, residence}, environment));
      }
    }
  }
  return cases;
}

std::string xml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string junit_text(const std::vector<CheckCase>& cases, std::int64_t failed, std::int64_t skipped) {
  std::string text = fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"motet check\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n", cases.size(), failed, skipped);
  for (const CheckCase& result : cases) {
    text += fmt::format("  <testcase classname=\"motet.check\" name=\"{}\" time=\"{:.6f}\">", xml(result.name), result.seconds);
    if (result.skipped) {
      text += fmt::format("<skipped message=\"{}\"/>", xml(result.detail));
    } else if (!result.passed) {
      text += fmt::format("<failure message=\"{}\"/>", xml(result.detail));
    }
    text += "</testcase>\n";
  }
  return text + "</testsuite>\n";
}

int run() {
  std::vector<CheckCase> cases;
  if (options.checkpoint.empty()) {
    cases = run_checks({.filter = options.filter, .seed = options.seed, .stop = interrupted});
    stop_if_interrupted();
  } else {
    cases = checkpoint_cases(*Checkpoint::open(options.checkpoint));
  }
  if (cases.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("--filter must match at least one case, but '{}' matches none; run without it to see their names", options.filter));
  std::int64_t passed = 0, failed = 0, skipped = 0;
  Json document = {{"schema", "motet.check/1"}, {"seed", options.seed}, {"cases", Json::array()}};
  Table table({"case", "result", "time", "detail"});
  for (const CheckCase& result : cases) {
    (result.skipped ? skipped : result.passed ? passed : failed) += 1;
    const char* verdict = result.skipped ? "skipped" : result.passed ? "ok" : "FAILED";
    table.row({result.name, result.skipped || result.passed ? verdict : red(verdict), seconds_text(result.seconds), result.detail});
    document["cases"].push_back({{"name", result.name}, {"result", result.skipped ? "skipped" : result.passed ? "passed" : "failed"}, {"seconds", result.seconds}, {"detail", result.detail}});
  }
  document["passed"] = passed;
  document["failed"] = failed;
  document["skipped"] = skipped;
  if (!options.junit.empty()) write_text_file(options.junit, junit_text(cases, failed, skipped));
  if (options.json) {
    print_json(document);
  } else {
    print(table.text() + fmt::format("  {} passed, {} failed, {} skipped (seed {})\n", passed, failed, skipped, options.seed));
  }
  return failed == 0 ? 0 : exit_code_of(ErrorCode::check_failed);
}

}  // namespace

Command add_check(CLI::App& root) {
  CLI::App* app = root.add_subcommand("check", "Laws and numerics of every backend on this machine, or of one checkpoint's layers");
  app->footer("Example:\n  motet check --filter mxfp4\n  motet check sample/gpt-oss-tiny --junit report.xml");
  app->add_option("checkpoint", options.checkpoint, "Check this checkpoint's layers instead of the case matrix");
  app->add_option("--filter", options.filter, "Only cases whose name contains this, or matches it as a glob");
  app->add_option("--seed", options.seed, "Seed of weights and tokens")->check(whole_number(0))->capture_default_str();
  app->add_option("--junit", options.junit, "Write a JUnit XML report");
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
