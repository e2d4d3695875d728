// SPDX-License-Identifier: Apache-2.0
// motet list: what this build knows, one line each.
#include <fmt/format.h>

#include <functional>

#include "cli.h"
#include "output.h"

namespace motet::cli {
namespace {

struct Options {
  bool json = false;
  std::string what;
} options;

std::vector<ListEntry> shape_entries() {
  std::vector<ListEntry> entries;
  for (const NamedShape& shape : shapes()) {
    const LayerSpec& spec = shape.spec;
    entries.push_back({shape.name, fmt::format("hidden {}{}, intermediate {}, experts {}, top_k {}{}, {}", spec.hidden,
                                               spec.latent > 0 ? fmt::format(", latent {}", spec.latent) : "", spec.intermediate, spec.experts, spec.top_k,
                                               spec.shared.intermediate > 0 ? fmt::format(", shared {}", spec.shared.intermediate) : "", spec.gate_up.format)});
  }
  return entries;
}

const std::vector<std::pair<std::string, std::function<std::vector<ListEntry>()>>>& lists() {
  static const std::vector<std::pair<std::string, std::function<std::vector<ListEntry>()>>> all = {
      {"formats", formats}, {"families", families}, {"backends", backends}, {"targets", targets}, {"strategies", strategies},
      {"fabrics", fabrics},      {"arithmetics", arithmetics}, {"routers", routers}, {"shapes", shape_entries}};
  return all;
}

int run() {
  std::vector<std::string> known;
  for (const auto& [name, list] : lists()) known.push_back(name);
  Json document = {{"schema", "motet.list/1"}};
  std::string text;
  bool found = options.what.empty();
  for (const auto& [name, list] : lists()) {
    if (!options.what.empty() && options.what != name) continue;
    found = true;
    Table table({name, "about"});
    document[name] = Json::array();
    for (const ListEntry& entry : list()) {
      table.row({entry.name, entry.about});
      document[name].push_back({{"name", entry.name}, {"about", entry.about}});
    }
    text += (text.empty() ? "" : "\n") + table.text();
  }
  if (!found) {
    throw Error(ErrorCode::invalid_argument, fmt::format("list knows {}, not '{}'.{}", fmt::join(known, ", "), options.what, suggestion(options.what, known)));
  }
  if (options.json) {
    print_json(document);
  } else {
    print(text);
  }
  return 0;
}

}  // namespace

Command add_list(CLI::App& root) {
  CLI::App* app = root.add_subcommand("list", "What this build knows: formats, families, backends, targets, strategies, fabrics, arithmetics, routers, shapes");
  app->footer("Example:\n  motet list formats");
  app->add_option("what", options.what, "One list; all when absent");
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
