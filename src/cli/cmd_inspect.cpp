// SPDX-License-Identifier: Apache-2.0
// motet inspect: what a checkpoint's MoE layers are, from headers alone.
#include <fmt/format.h>

#include "cli.h"
#include "output.h"

namespace motet::cli {
namespace {

struct Options {
  std::string checkpoint;
  bool tensors = false, json = false;
} options;

std::string router_text(const RouterSpec& router) {
  std::string text(name_of(router.score));
  if (router.selection == RouterSelection::sparsemixer) text = "sparsemixer";
  if (router.selection == RouterSelection::hash) text += ", hash by token id";
  if (router.logit_bias) text += " + bias";
  if (router.selection_bias) text += ", selection bias";
  if (router.groups > 1) text += fmt::format(", {} of {} groups by {}", router.groups_kept, router.groups, router.group_score == GroupScore::max ? "max" : "sum of two");
  const char* const normalize[] = {"", ", renormalised", ", softmax of the chosen", ", p-norm"};
  text += normalize[static_cast<int>(router.normalize)];
  if (router.scale != 1) text += fmt::format(", x{:g}", router.scale);
  if (router.weight_site == WeightSite::input) text += ", weighs the input";
  return text;
}

Json projection_json(const ProjectionSpec& projection) {
  return {{"format", projection.format}, {"block", {projection.block_rows, projection.block_cols}}, {"transposed", projection.transposed}, {"bias", projection.bias}};
}

Json layer_json(const LayerSummary& layer) {
  const LayerSpec& spec = layer.spec;
  Json document = {{"layer", spec.layer}, {"hidden", spec.hidden}, {"latent", spec.latent}, {"intermediate", spec.intermediate}, {"experts", spec.experts},
                   {"top_k", spec.top_k}, {"shared_intermediate", spec.shared.intermediate}, {"activation", name_of(spec.activation.kind)},
                   {"gate_up", projection_json(spec.gate_up)}, {"down", projection_json(spec.down)}, {"router", router_text(spec.router)}};
  if (spec.shared.intermediate > 0) document["shared"] = {{"gate_up", projection_json(spec.shared.gate_up)}, {"down", projection_json(spec.shared.down)}, {"gate", spec.shared.gate}};
  if (spec.latent > 0) document["latent_projections"] = {{"in", projection_json(spec.latent_in)}, {"out", projection_json(spec.latent_out)}};
  document["bytes"] = layer.bytes;
  document["bytes_per_token"] = layer.bytes_per_token;
  document["parameters"] = layer.parameters;
  document["parameters_per_token"] = layer.parameters_per_token;
  return document;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void print_as_json(const Checkpoint& checkpoint) {
  Json document = {{"schema", "motet.inspect/1"}, {"path", checkpoint.path()}, {"family", checkpoint.family()}};
  std::int64_t bytes = 0, bytes_per_token = 0, parameters = 0, parameters_per_token = 0;
  document["layers"] = Json::array();
  for (const LayerSummary& layer : checkpoint.layers()) {
    document["layers"].push_back(layer_json(layer));
    bytes += layer.bytes, bytes_per_token += layer.bytes_per_token;
    parameters += layer.parameters, parameters_per_token += layer.parameters_per_token;
  }
  document["moe"] = {{"bytes", bytes}, {"bytes_per_token", bytes_per_token}, {"parameters", parameters}, {"parameters_per_token", parameters_per_token}};
  document["notes"] = checkpoint.notes();
  if (options.tensors) {
    document["tensors"] = Json::array();
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      document["tensors"].push_back({{"name", tensor.name}, {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"file", tensor.file}, {"offset", tensor.offset},
                                     {"bytes", tensor.bytes}, {"layer", tensor.layer}, {"role", tensor.role}});
    }
  }
  print_json(document);
}

// Layers that differ in nothing but their number share one line.
std::string layers_text(const Checkpoint& checkpoint) {
  Table table({"layers", "hidden", "latent", "intermediate", "experts", "top_k", "shared", "gate_up", "down", "bytes", "read per token", "parameters", "active"});
  const auto& layers = checkpoint.layers();
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t j = i + 1;
    const auto same = [&](const LayerSummary& other) {
      LayerSpec spec = other.spec;
      spec.layer = layers[i].spec.layer;
      return spec == layers[i].spec && other.bytes == layers[i].bytes;
    };
    while (j < layers.size() && same(layers[j])) ++j;
    const LayerSpec& spec = layers[i].spec;
    table.row({j - i == 1 ? fmt::format("{}", spec.layer) : fmt::format("{}..{} ({})", spec.layer, layers[j - 1].spec.layer, j - i), std::to_string(spec.hidden),
               spec.latent > 0 ? std::to_string(spec.latent) : "-", std::to_string(spec.intermediate), std::to_string(spec.experts), std::to_string(spec.top_k),
               spec.shared.intermediate > 0 ? std::to_string(spec.shared.intermediate) : "-", spec.gate_up.format, spec.down.format, bytes_text(layers[i].bytes),
               bytes_text(layers[i].bytes_per_token), count_text(layers[i].parameters), count_text(layers[i].parameters_per_token)});
    i = j;
  }
  text += table.text();
  return text;
}

void print_as_text(const Checkpoint& checkpoint) {
  const auto& layers = checkpoint.layers();
  std::string text = fmt::format("{}\n  family {}\n  router: {}\n  body: {}\n\n{}\n{}", bold(printable(checkpoint.path())), checkpoint.family(), router_text(layers.front().spec.router),
                                 name_of(layers.front().spec.activation.kind), bold("MoE layers (bytes and parameters of one layer)"), layers_text(checkpoint));
  std::int64_t bytes = 0, bytes_per_token = 0, parameters = 0, active = 0;
  for (const LayerSummary& layer : layers) bytes += layer.bytes, bytes_per_token += layer.bytes_per_token, parameters += layer.parameters, active += layer.parameters_per_token;
  text += fmt::format("  all {} MoE layers: {}, {} read per token, {} parameters, {} active per token\n", layers.size(), bytes_text(bytes), bytes_text(bytes_per_token),
                      count_text(parameters), count_text(active));
  if (!checkpoint.notes().empty()) {
    text += fmt::format("\n{}\n", bold("Notes"));
    for (const std::string& note : checkpoint.notes()) text += "  - " + printable(note) + "\n";
  }
  if (options.tensors) {
    Table table({"tensor", "dtype", "shape", "bytes", "layer", "role", "file"});
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      table.row({printable(tensor.name), std::string(name_of(tensor.dtype)), shape_text(tensor.shape), bytes_text(tensor.bytes), tensor.layer >= 0 ? std::to_string(tensor.layer) : "-",
                 tensor.role.empty() ? "-" : tensor.role, printable(tensor.file)});
    }
    text += fmt::format("\n{}\n{}", bold("Tensors"), table.text());
  }
  print(text);
}

int run() {
  const auto checkpoint = Checkpoint::open(options.checkpoint);
  if (options.json) {
    print_as_json(*checkpoint);
  } else {
    print_as_text(*checkpoint);
  }
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& root) {
  CLI::App* app = root.add_subcommand("inspect", "What a checkpoint's MoE layers are, from headers alone");
  app->footer("Example:\n  motet inspect sample/gpt-oss-tiny --tensors");
  app->add_option("checkpoint", options.checkpoint, "Directory, one .safetensors file, or a hub id in the local Hugging Face cache")->required();
  app->add_flag("--tensors", options.tensors, "Also list every tensor");
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
