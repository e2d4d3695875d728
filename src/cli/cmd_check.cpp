// SPDX-License-Identifier: Apache-2.0
// motet check: laws and numerics of every backend on this machine, or of one checkpoint's layers.
#include <fmt/format.h>

#include <algorithm>
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

// One case per MoE layer and backend that plans for it: 16 synthetic tokens against the reference.
std::vector<CheckCase> checkpoint_cases(const Checkpoint& checkpoint) {
  std::vector<CheckCase> cases;
  const Environment environment = Environment::probe();
  for (const LayerSummary& layer : checkpoint.layers()) {
    const std::string name = fmt::format("layer {}", layer.spec.layer);
    if (!options.filter.empty() && name.find(options.filter) == std::string::npos) continue;
    stop_if_interrupted();
    const auto start = std::chrono::steady_clock::now();
    CheckCase result{name, false, "", 0, false};
    try {
      const RunInput input = synthetic_input(layer.spec, 16, options.seed);
      Deployment deployment;
      deployment.tokens = input.tokens;
      deployment.input = input.dtype;
      const Plan made = plan(layer.spec, deployment, environment).value();
      const auto weights = checkpoint.load(layer.spec.layer);
      const auto runnable = Layer::create(made, weights);
      std::vector<std::byte> output(static_cast<std::size_t>(input.tokens * layer.spec.hidden * 2));
      std::vector<std::int32_t> index(static_cast<std::size_t>(input.tokens * layer.spec.top_k));
      std::vector<float> routing_weights(index.size());
      ForwardInput in = input.view(layer.spec);
      std::vector<std::int64_t> token_ids(static_cast<std::size_t>(input.tokens), 0);
      in.token_ids = token_ids.data();
      ForwardOutput out;
      out.output = {output.data(), input.dtype, input.tokens, layer.spec.hidden};
      out.top_k_index = index.data();
      out.top_k_weights = routing_weights.data();
      const RunStatus status = runnable->forward(in, out);
      if (!status.ok()) throw Error(status.code, std::string(status.text()));
      const CheckReport report = check_forward(made, weights, in, {output.data(), input.dtype, input.tokens, layer.spec.hidden}, index.data(), routing_weights.data());
      result.passed = report.ok;
      result.detail = report.text;
    } catch (const Error& error) {
      result.detail = fmt::format("{}: {}", name_of(error.code()), error.what());
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cases.push_back(result);
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
    cases = run_checks({options.filter, options.seed});
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
  app->add_option("--filter", options.filter, "Only cases whose name contains this");
  app->add_option("--seed", options.seed, "Seed of weights and tokens")->capture_default_str();
  app->add_option("--junit", options.junit, "Write a JUnit XML report");
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
