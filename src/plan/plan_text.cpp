// SPDX-License-Identifier: Apache-2.0
// The plan for a person: one section per subject, tables within 100 columns, the last column wrapped.
#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "plan/names.h"
#include "plan/refusals.h"

namespace motet {
namespace {

using std::int64_t;
using std::to_string;

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 2;

std::string text_of(std::string_view view) { return std::string(view); }

/// Breaks at spaces so that no line is longer than `width`; a longer word keeps its line.
std::vector<std::string> wrap(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.push_back(line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  lines.push_back(line);
  return lines;
}

/// Columns as wide as their cells; those named in `right` are aligned right; the last takes the rest of the line.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::vector<std::size_t> right = {}) : right_(std::move(right)) {
    rows_.push_back(std::move(header));
  }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const {
    std::vector<std::size_t> widths(rows_.front().size(), 0);
    for (const auto& row : rows_)
      for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::size_t before = kIndent;
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) before += widths[i] + 2;
    const std::size_t rest = kColumns > before + 20 ? kColumns - before : 20;
    std::string text;
    for (const auto& row : rows_) append(text, row, widths, before, rest);
    return text;
  }

 private:
  bool is_right(std::size_t column) const { return std::find(right_.begin(), right_.end(), column) != right_.end(); }

  void append(std::string& text, const std::vector<std::string>& row, const std::vector<std::size_t>& widths, std::size_t before,
              std::size_t rest) const {
    std::string line(kIndent, ' ');
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      line += (is_right(i) ? fill + row[i] : row[i] + fill) + "  ";
    }
    for (const std::string& part : wrap(row.back(), rest)) {
      line += part;
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
      line.assign(before, ' ');
    }
  }

  std::vector<std::size_t> right_;
  std::vector<std::vector<std::string>> rows_;
};

/// "name   value" lines.
class Facts {
 public:
  void line(const std::string& name, const std::string& value) { lines_.push_back({name, value}); }
  std::string text() const {
    std::size_t width = 0;
    for (const auto& [name, value] : lines_) width = std::max(width, name.size());
    std::string text;
    for (const auto& [name, value] : lines_) {
      std::string start = std::string(kIndent, ' ') + name + std::string(width - name.size() + 2, ' ');
      for (const std::string& part : wrap(value, kColumns - kIndent - width - 2)) {
        text += start + part + "\n";
        start.assign(kIndent + width + 2, ' ');
      }
    }
    return text;
  }

 private:
  struct Line {
    std::string name, value;
  };
  std::vector<Line> lines_;
};

std::string section(const std::string& title, const std::string& body) { return "\n" + title + "\n" + body; }

std::string projection_text(const ProjectionSpec& projection) {
  std::string text = projection.format;
  if (projection.block_rows != 1 || projection.block_cols != 1)
    text += " " + to_string(projection.block_rows) + "x" + to_string(projection.block_cols);
  if (projection.transposed) text += ", transposed";
  if (projection.bias) text += ", bias";
  return text;
}

std::string activation_text(const Activation& activation) {
  std::string text = text_of(name_of(activation.kind));
  if (activation.alpha != 0) text += format_text(", alpha %g", activation.alpha);
  if (activation.limit != 0) text += format_text(", limit %g", activation.limit);
  if (activation.offset != 0) text += format_text(", offset %g", activation.offset);
  return text + (activation.gated ? "" : ", no gate");
}

std::string router_text(const RouterSpec& router) {
  std::string text = text_of(name_of(router.score)) + ", " + text_of(name_of(router.selection));
  if (router.groups > 1)
    text += ", " + to_string(router.groups_kept) + " of " + to_string(router.groups) + " groups by " +
            text_of(name_of(router.group_score));
  if (router.normalize != RouterNormalize::none) text += ", normalised by " + text_of(name_of(router.normalize));
  if (router.logit_bias) text += ", logit bias";
  if (router.selection_bias) text += ", selection bias";
  if (router.scale != 1)
    text +=
        format_text(", scale %g on ", router.scale) + (router.scale_site == ScaleSite::weights ? "the weights" : "the routed sum");
  if (router.zero_experts > 0)
    text += ", " + to_string(router.zero_experts) + " zero experts (" + text_of(name_of(router.zero_expert_kind)) + ")";
  return text + ", weight applied at " + text_of(name_of(router.weight_site));
}

std::string layer_text(const Plan& plan) {
  const LayerSpec& spec = plan.spec;
  Facts facts;
  facts.line("layer", to_string(spec.layer) + " of family " + spec.family);
  facts.line("shape", "hidden " + to_string(spec.hidden) + (spec.latent > 0 ? ", latent " + to_string(spec.latent) : "") +
                          ", intermediate " + to_string(spec.intermediate) + ", experts " + to_string(spec.experts) + ", top_k " +
                          to_string(spec.top_k));
  facts.line("gate_up", projection_text(spec.gate_up) + ", " + text_of(name_of(spec.gate_up_order)));
  facts.line("down", projection_text(spec.down));
  facts.line("body", activation_text(spec.activation));
  facts.line("router", router_text(spec.router));
  if (spec.shared.intermediate > 0)
    facts.line("shared", "intermediate " + to_string(spec.shared.intermediate) + ", " + projection_text(spec.shared.gate_up) +
                             ", " + activation_text(spec.shared.activation) + (spec.shared.gate ? ", sigmoid gate" : ""));
  if (spec.latent > 0)
    facts.line("latent", "in " + projection_text(spec.latent_in) + "; out " + projection_text(spec.latent_out) +
                             (spec.latent_norm ? "; norm before out" : ""));
  const Deployment& deployment = plan.deployment;
  facts.line("asked", to_string(deployment.tokens) + " tokens" +
                          (deployment.at_once() < deployment.tokens ? ", " + to_string(deployment.at_once()) + " at once," : "") +
                          " of " + text_of(name_of(plan.deployment.input)) + ", tp " + to_string(plan.deployment.tp) + ", ep " +
                          to_string(plan.deployment.ep) +
                          (plan.ranks.size() > 1 ? ", tokens " + text_of(name_of(plan.deployment.placement)) : ""));
  facts.line("taken", "backend " + plan.backend + (plan.target.empty() ? "" : ", target " + plan.target) + ", arithmetic " +
                          plan.recipe.arithmetic + ", " + to_string(plan.threads) + " threads");
  return section("Layer", facts.text());
}

std::string widths_text(const Plan& plan) {
  Table table({"axis", "valid", "stored", "owner", "reason"}, {1, 2});
  for (const Width& width : plan.widths)
    table.row({text_of(name_of(width.axis)), to_string(width.valid), to_string(width.stored), width.owner, width.reason});
  return section("Widths", table.text());
}

/// "act:BF16[1024,736->768]": valid extents, and stored ones where they differ; of scales the layout too.
std::string tensor_text(const TensorType& tensor) {
  std::vector<std::string> extents;
  for (std::size_t i = 0; i < tensor.valid.size(); ++i)
    extents.push_back(to_string(tensor.valid[i]) + (tensor.stored[i] == tensor.valid[i] ? "" : "->" + to_string(tensor.stored[i])));
  const bool scales =
      tensor.layout == Layout::linear_scales || tensor.layout == Layout::flat_scales || tensor.layout == Layout::swizzled_128x4;
  return tensor.name + ":" + text_of(name_of(tensor.dtype)) + (scales ? "/" + text_of(name_of(tensor.layout)) : "") + "[" +
         join(extents, ",") + "]";
}

std::string tensors_text(const std::vector<TensorType>& tensors) {
  std::vector<std::string> words;
  for (const TensorType& tensor : tensors) words.push_back(tensor_text(tensor));
  return words.empty() ? "-" : join(words, " ");
}

std::string stages_text(const Plan& plan) {
  Table table({"#", "stage", "who", "", "tensors, valid->stored where padded"}, {0});
  for (const Stage& stage : plan.stages) {
    table.row({to_string(static_cast<int>(stage.id)), stage.name, stage.who, "in", tensors_text(stage.in)});
    table.row({"", "", "", "out", tensors_text(stage.out)});
  }
  return section("Stages", table.text());
}

std::string tail_text(const Plan& plan) {
  if (plan.tail.empty()) return section("Tail", "  none: rows are left unfinalized\n");
  Table table({"step", "width", "summed over ranks", "routed scale"}, {1});
  const auto state = [](bool before, bool after, const char* yes, const char* no) -> std::string {
    return before == after ? (after ? yes : no) : std::string(no) + " -> " + yes;
  };
  for (const TailStep& step : plan.tail)
    table.row(
        {text_of(name_of(step.op)),
         step.width_in == step.width_out ? to_string(step.width_in) : to_string(step.width_in) + " -> " + to_string(step.width_out),
         state(step.reduced_in, step.reduced_out, "yes", "no"), state(step.scaled_in, step.scaled_out, "settled", "owed")});
  return section("Tail", table.text());
}

std::string recipe_text(const Plan& plan) {
  const Recipe& recipe = plan.recipe;
  Facts facts;
  facts.line("arithmetic",
             recipe.arithmetic + " for level " + text_of(name_of(plan.deployment.wishes.arithmetic)) +
                 (recipe.wished == plan.deployment.wishes.arithmetic ? "" : " in place of " + text_of(name_of(recipe.wished))) +
                 format_text(", relative L2 error at most %g before the output is rounded", recipe.error_bound));
  facts.line("types", "activations " + text_of(name_of(recipe.activation)) + ", sums " + text_of(name_of(recipe.accumulator)) +
                          ", between ranks " + text_of(name_of(recipe.wire)));
  facts.line("routing weight", "applied at " + text_of(name_of(recipe.weight_site)));
  for (const std::string& order : recipe.sum_order) facts.line(&order == &recipe.sum_order.front() ? "sums" : "", order);
  for (const std::string& point : recipe.rounding_points)
    facts.line(&point == &recipe.rounding_points.front() ? "rounded" : "", point);
  return section("Recipe", facts.text());
}

std::string workspace_text(const Plan& plan) {
  Table table({"area", "offset", "bytes", "size", "live in stages"}, {1, 2, 3});
  for (const Area& area : plan.workspace.areas)
    table.row({text_of(name_of(area.id)), to_string(area.offset), to_string(area.bytes), bytes_text(area.bytes),
               text_of(name_of(area.first)) + (area.first == area.last ? "" : " .. " + text_of(name_of(area.last)))});
  int64_t sum = 0;
  for (const Area& area : plan.workspace.areas) sum += area.bytes;
  return section("Workspace", table.text() + "  " + to_string(plan.workspace.bytes) + " bytes for areas of " + to_string(sum) +
                                  " bytes; no two that live together overlap\n");
}

std::string memory_text(const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  const auto size = [](int64_t bytes) { return bytes_text(bytes) + " (" + to_string(bytes) + " bytes)"; };
  Facts facts;
  facts.line("workspace", size(memory.workspace));
  if (memory.exchange > 0) facts.line("exchange", size(memory.exchange) + ": mailboxes for what others send, and who sent what");
  facts.line("prepared", size(memory.prepared));
  if (memory.packed > 0)
    facts.line("packed", size(memory.packed) + " of repacked weights, " + bytes_text(memory.packed_padding) + " of it padding; " +
                             format_text("takes about %.2g s at creation", plan.estimates.pack_seconds));
  facts.line("anonymous", size(memory.anonymous) + ": all of these");
  facts.line("mapped", size(memory.mapped) + " of weights, at most");
  facts.line("peak", size(memory.peak));
  facts.line("limit", memory.limit == 0 ? "unknown" : size(memory.limit));
  const std::string verdict = memory.fit == Fit::fits ? "fits" : "does not fit";
  facts.line("verdict", verdict + (memory.advice.empty() ? "" : "; " + memory.advice));
  facts.line("one token reads", bytes_text(plan.estimates.weight_bytes_per_token) + " of weights; " +
                                    to_string(plan.estimates.parameters_active) + " of " +
                                    to_string(plan.estimates.parameters_total) + " parameters");
  return section("Memory of one rank", facts.text());
}

std::string exchange_text(const Plan& plan) {
  const ExchangePlan& exchange = plan.exchange;
  if (plan.ranks.size() == 1) return "";
  Facts facts;
  facts.line("strategy", plan.strategy + " over " + plan.deployment.fabric + ", scheduler " + plan.scheduler);
  if (exchange.rows > 0)
    facts.line("dispatch", "at most " + to_string(exchange.rows_to_rank) + " rows to one rank, " + to_string(exchange.rows) +
                               " from all; a row is " + bytes_text(exchange.row_bytes) + " of hidden states and " +
                               to_string(exchange.choices) + " x (slot, weight); longest message " +
                               bytes_text(exchange.dispatch_bytes));
  facts.line("combine", "rows of " + to_string(exchange.width) + " x " + text_of(name_of(plan.recipe.wire)) + "; longest message " +
                            bytes_text(exchange.combine_bytes));
  facts.line("memory",
             bytes_text(exchange.mailboxes) + " of mailboxes on each rank, " + bytes_text(exchange.handles) + " of handles");
  return section("Exchange", facts.text());
}

std::string ranks_text(const Plan& plan) {
  Table table({"rank", "ep", "tp", "experts", "intermediate", "valid", "stored", "shared", "down bias"}, {0, 1, 2, 5, 6});
  const auto range = [](int64_t begin, int64_t count) {
    return count == 0 ? std::string("none") : to_string(begin) + ".." + to_string(begin + count - 1);
  };
  for (const RankSlice& slice : plan.ranks)
    table.row({to_string(slice.rank), to_string(slice.ep_rank), to_string(slice.tp_rank),
               range(slice.expert_begin, slice.expert_count), range(slice.intermediate_begin, slice.intermediate_valid),
               to_string(slice.intermediate_valid), to_string(slice.intermediate_stored),
               range(slice.shared_begin, slice.shared_valid), slice.down_bias ? "yes" : "no"});
  Facts why;
  why.line("why", plan.ranks.front().reason);
  return section("Ranks", table.text() + why.text());
}

std::string choices_text(const Plan& plan) {
  Table table({"kind", "name", "verdict", "reason"});
  std::string kind;
  for (const Choice& choice : plan.choices) {
    std::string reason = choice.reason;
    if (choice.refusal) reason = sentence_of(*choice.refusal);
    if (choice.substituted) reason = "in place of a refused wish; " + reason;
    table.row({choice.kind == kind ? "" : choice.kind, choice.name, text_of(name_of(choice.verdict)), reason});
    kind = choice.kind;
  }
  return section("Choices", table.text());
}

}  // namespace

std::string Plan::to_text() const {
  return "Motet plan\n" + layer_text(*this) + widths_text(*this) + stages_text(*this) + tail_text(*this) + recipe_text(*this) +
         workspace_text(*this) + memory_text(*this) + exchange_text(*this) + ranks_text(*this) + choices_text(*this) +
         section("Fingerprint", "  " + fingerprint + "\n");
}

}  // namespace motet
