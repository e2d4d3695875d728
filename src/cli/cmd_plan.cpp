// SPDX-License-Identifier: Apache-2.0
// motet plan: everything that is settled before the first token.
#include <fmt/format.h>

#include "cli.h"
#include "output.h"

namespace motet::cli {
namespace {

struct Options {
  std::string checkpoint, layer;
  std::int64_t tokens = 1;
  RankOptions ranks;
  bool json = false;
  WishOptions wishes;
} options;

Json refusal_json(const Refusal& refusal) { return {{"code", refusal.code}, {"rule", refusal.rule}, {"given", refusal.given}, {"needed", refusal.needed}}; }

Json ranges_json(const std::vector<ByteRange>& ranges) {
  Json result = Json::array();
  for (const ByteRange& range : ranges) {
    result.push_back({{"tensor", range.tensor}, {"file", range.file}, {"offset", range.offset}, {"bytes", range.bytes}, {"count", range.count}, {"stride", range.stride}, {"what", range.what}});
  }
  return result;
}

// Per rank the total, and the runs of the first expert; --json has all of them.
std::string ranges_text(const Checkpoint& checkpoint, const Plan& plan) {
  std::string text = "\n" + bold("Checkpoint bytes that each rank reads") + "\n";
  for (const RankSlice& slice : plan.ranks) {
    const std::vector<ByteRange> ranges = checkpoint.byte_ranges(plan, slice.rank);
    std::int64_t total = 0;
    Table table({"tensor", "offset", "bytes", "runs", "stride", "what"});
    constexpr std::size_t kShown = 8;
    for (const ByteRange& range : ranges) total += range.bytes * range.count;
    for (std::size_t i = 0; i < ranges.size() && i < kShown; ++i) {
      const ByteRange& range = ranges[i];
      table.row({range.tensor, std::to_string(range.offset), std::to_string(range.bytes), std::to_string(range.count), std::to_string(range.stride), range.what});
    }
    text += fmt::format("  rank {}: {} in {} runs\n", slice.rank, bytes_text(total), ranges.size());
    if (!ranges.empty()) text += table.text();
    if (ranges.size() > kShown) text += fmt::format("  ... and {} more (--json lists all)\n", ranges.size() - kShown);
  }
  return text;
}

int report_refusals(const PlanResult& result) {
  if (options.json) {
    Json document = {{"schema", "motet.refusal/1"}, {"refusals", Json::array()}};
    for (const Refusal& refusal : result.refusals) document["refusals"].push_back(refusal_json(refusal));
    document["choices"] = Json::array();
    for (const Choice& choice : result.choices) {
      Json entry = {{"kind", choice.kind}, {"name", choice.name}, {"verdict", name_of(choice.verdict)}, {"reason", choice.reason}};
      if (choice.refusal) entry["refusal"] = refusal_json(*choice.refusal);
      document["choices"].push_back(entry);
    }
    print_json(document);
  }
  result.value();  // throws with all refusals in one text
  return exit_code_of(ErrorCode::internal);
}

int run() {
  Deployment deployment;
  deployment.tokens = options.tokens;
  options.ranks.apply(deployment);
  options.wishes.apply(deployment);
  const auto checkpoint = Checkpoint::open(options.checkpoint);
  const LayerSummary& layer = wanted_layer(*checkpoint, options.layer);
  const PlanResult result = plan(layer.spec, deployment, Environment::probe());
  if (!result.plan) return report_refusals(result);
  const Plan& made = *result.plan;
  if (options.json) {
    Json document = Json::parse(made.to_json());
    for (const RankSlice& slice : made.ranks) {
      document["byte_ranges"].push_back({{"rank", slice.rank}, {"ranges", ranges_json(checkpoint->byte_ranges(made, slice.rank))}});
    }
    print_json(document);
  } else {
    print(made.to_text() + ranges_text(*checkpoint, made));
  }
  return made.memory.fit == Fit::fits ? 0 : exit_code_of(ErrorCode::would_not_fit);
}

}  // namespace

Command add_plan(CLI::App& root) {
  CLI::App* app = root.add_subcommand("plan", "Every width, layout, byte and refusal of one layer, before the first token");
  app->footer("Example:\n  motet plan sample/gpt-oss-tiny --tokens 256 --tp 4");
  app->add_option("checkpoint", options.checkpoint, "Directory, one .safetensors file, or a hub id in the local Hugging Face cache")->required();
  app->add_option("--layer", options.layer, "The model's layer number; default: the first MoE layer");
  app->add_option("--tokens", options.tokens, "Most tokens of one forward on any rank")->check(whole_number(1))->capture_default_str();
  options.ranks.add_to(*app);
  options.wishes.add_to(*app, true);
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
