// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/resolve.h"

#include <algorithm>
#include <map>

#include "base/math.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

std::string expand(std::string_view name, std::int64_t expert) {
  std::string out(name);
  if (const std::size_t at = out.find("{e}"); at != std::string::npos) out.replace(at, 3, std::to_string(expert));
  return out;
}

/// The constant beginning of a name.
std::string_view head_of(std::string_view name) { return name.substr(0, name.find("{e}")); }

/// Resolves one layer; collects what it finds in `out`.
class LayerResolver {
 public:
  LayerResolver(const TensorTable& table, const Family& family, const Config& config, std::string prefix, StoredLayer& out,
                std::vector<std::string>& notes)
      : table_(table), names_(family.names), config_(config), prefix_(std::move(prefix)), out_(out), spec_(out.summary.spec), notes_(notes) {}

  void resolve() {
    out_.router = matrix(names_.router, "router", 1, {.module = {}, .rows = spec_.experts, .cols = spec_.hidden}, nullptr);
    require_float(out_.router, "router");
    spec_.router.weight_dtype = table_[out_.router.tensors.codes].dtype;
    bias(out_.router, "router", spec_.router.logit_bias);
    if (spec_.router.selection_bias) resolve_selection_bias();
    const BodyNames& layout = choose_layout();
    out_.experts = body(layout, "", spec_.experts, spec_.dispatch_width(), spec_.intermediate, spec_.activation.gated, spec_.gate_up, spec_.down);
    spec_.gate_up_order = out_.experts.order;
    if (spec_.shared.intermediate > 0) {
      out_.shared = body(names_.shared, "shared.", 0, spec_.hidden, spec_.shared.intermediate, spec_.shared.activation.gated, spec_.shared.gate_up, spec_.shared.down);
      spec_.shared.gate_up_order = out_.shared.order;
      if (spec_.shared.gate) resolve_shared_gate();
    }
    if (spec_.latent > 0) {
      out_.latent_in = matrix(names_.latent_in, "latent_in", 1, {.module = {}, .rows = spec_.latent, .cols = spec_.hidden}, &spec_.latent_in);
      out_.latent_out = matrix(names_.latent_out, "latent_out", 1, {.module = {}, .rows = spec_.hidden, .cols = spec_.latent}, &spec_.latent_out);
      bias(out_.latent_in, "latent_in", false);
      bias(out_.latent_out, "latent_out", false);
    }
    refuse_leftovers();
    write_notes();
    count();
  }

 private:
  void mark(TensorIndex index, const std::string& role, bool is_read) {
    if (index == kNoTensor) return;
    TensorInfo& tensor = table_[index];
    tensor.role = role;
    tensor.layer = spec_.layer;
    all_bytes_ += tensor.bytes;            // sums of parts of files that exist: no overflow
    if (!is_read) return;
    bytes_ += tensor.bytes;
    out_.read.push_back(index);
  }

  /// One matrix that must be there. `projection` receives its layout, or is compared when it already has one.
  StoredMatrix matrix(std::string_view name, const std::string& role, std::int64_t expert, MatrixWish wish, ProjectionSpec* projection) {
    wish.module = prefix_ + expand(name, expert);
    StoredMatrix found{find_matrix(table_, wish, config_.quantization()), wish.experts, wish.rows, wish.cols, wish.stacked, wish.transposed};
    const MatrixTensors& tensors = found.tensors;
    if (tensors.format.empty()) {
      fail(ErrorCode::bad_input, "the weight of ", quote(wish.module), " (", role, ") is missing: layer ", spec_.layer, " is MoE with ", spec_.experts,
           " experts by config.json and needs it; fetch the missing shard or the right config.json");
    }
    if (!tensors.built) return unbuilt_matrix(found, role, projection, wish.module);
    found.transposed = found.transposed && is_plain(tensors.built->facts);
    mark(tensors.codes, role + ".codes", true);
    mark(tensors.scales, role + ".scales", true);
    mark(tensors.tensor_scale, role + ".tensor_scale", true);
    mark(tensors.input_scale, role + ".input_scale", false);
    for (const TensorIndex index : tensors.carried) mark(index, role + ".carried", false);
    if (!tensors.spelling->input_scale.empty()) {
      ++with_static_activations_;
      if (tensors.input_scale == kNoTensor && without_input_scale_++ == 0) first_without_input_scale_ = wish.module;
    }
    if (projection) settle(*projection, found, wish.module);
    return found;
  }

  /// Counted and told by name, so that the layer can be inspected; plan() and load() refuse it. The router is read in any case.
  StoredMatrix unbuilt_matrix(StoredMatrix found, const std::string& role, ProjectionSpec* projection, const std::string& module) {
    MatrixTensors& tensors = found.tensors;
    const std::string text = not_built_text(tensors.format, table_[tensors.codes]);
    if (!projection) fail(ErrorCode::not_supported, text);
    if (out_.not_built.empty()) out_.not_built = text;
    for (const TensorIndex index : tensors.unread) mark(index, role + ".not_built", true);
    found.transposed = false;
    tensors.format += " (not built)";
    settle(*projection, found, module);
    return found;
  }

  void settle(ProjectionSpec& spec, const StoredMatrix& found, const std::string& module) {
    ProjectionSpec now{found.tensors.format, found.tensors.block_rows, found.tensors.block_cols, found.transposed, spec.bias};
    if (spec.format.empty()) spec = now;
    if (spec == now) return;
    fail(ErrorCode::not_supported, quote(module), " is ", now.format, " but the same projection of another expert or half of this layer is ", spec.format,
         ": one projection in two formats is not built");
  }

  /// The bias of a matrix, when the family has one; one that it does not have must be all zero, which load() checks.
  void bias(const StoredMatrix& found, const std::string& role, bool wanted) {
    const TensorIndex index = found.tensors.bias;
    if (index == kNoTensor) {
      if (wanted) fail(ErrorCode::bad_input, "the bias beside ", quote(table_[found.tensors.codes].name), " (", role, ".bias) is missing: this family has one; fetch the checkpoint again");
      return;
    }
    check_float(table_[index]);
    check_shape(table_[index], found.stacked ? std::vector{found.experts, found.rows} : std::vector{found.rows}, [] { return std::string("one value per row"); });
    mark(index, role + (wanted ? ".bias" : ".unused_bias"), wanted);
    if (!wanted) out_.unused_biases.push_back(index);
  }

  const BodyNames& choose_layout() const {
    std::string tried;
    for (const BodyNames& names : names_.experts) {
      const std::string_view down = names.down;
      const std::string head = prefix_ + std::string(head_of(down));
      const bool stacked = head_of(down) == down;
      const auto [first, last] = table_.below(head);
      const bool there = stacked ? first != last : std::any_of(first, last, [&](TensorIndex index) {
        const std::string& name = table_[index].name;
        return name.size() > head.size() && name[head.size()] >= '0' && name[head.size()] <= '9';
      });
      if (there) return names;
      tried += (tried.empty() ? "" : " or ") + quote(prefix_ + std::string(down));
    }
    fail(ErrorCode::bad_input, "the experts of layer ", spec_.layer, " are missing: no tensor ", tried, " exists, but config.json says ", spec_.experts,
         " experts; fetch the missing shard or the right config.json");
  }

  /// `experts` 0 = the shared body: plain matrices.
  StoredBody body(const BodyNames& names, const std::string& role, std::int64_t experts, std::int64_t width, std::int64_t intermediate, bool gated,
                  ProjectionSpec& gate_up, ProjectionSpec& down) {
    StoredBody out;
    out.order = names.gate_up.empty() ? GateUpOrder::separate : names.order;
    const bool stacked = experts > 0 && head_of(names.down) == names.down;
    const std::int64_t count = experts > 0 && !stacked ? experts : 1;
    std::int64_t both = 0;
    if (!checked_mul(intermediate, 2, &both)) fail(ErrorCode::bad_input, "config.json: the intermediate size ", intermediate, " is out of range");
    const auto one = [&](std::vector<StoredMatrix>& list, std::string_view name, const char* part, std::int64_t expert, std::int64_t rows, std::int64_t cols, ProjectionSpec& projection) {
      MatrixWish wish{.module = {}, .stacked = stacked, .experts = stacked ? experts : 1, .rows = rows, .cols = cols, .transposed = names.transposed};
      list.push_back(matrix(name, role + part, expert, wish, &projection));
      if (&list == &out.gate_up) check_halves(list.back(), out.order, intermediate);
      bias(list.back(), role + part, projection.bias);
    };
    for (std::int64_t expert = 0; expert < count; ++expert) {
      if (!names.gate_up.empty()) one(out.gate_up, names.gate_up, "gate_up", expert, both, width, gate_up);
      else {
        if (gated) one(out.gate, names.gate, "gate", expert, intermediate, width, gate_up);
        one(out.up, names.up, "up", expert, intermediate, width, gate_up);
      }
      one(out.down, names.down, "down", expert, width, intermediate, down);
    }
    return out;
  }

  /// Each half must begin with a scale block of its own.
  void check_halves(const StoredMatrix& found, GateUpOrder order, std::int64_t intermediate) const {
    const std::int64_t block = found.tensors.block_rows;
    if (block == 1 || !found.tensors.built || (order == GateUpOrder::halves && block > 0 && intermediate % block == 0)) return;
    fail(ErrorCode::not_supported, "tensor ", quote(table_[found.tensors.codes].name), " is ", found.tensors.format, " in blocks of ", block,
         " rows, which the gate and up halves of ", intermediate, " rows share: only halves with scale blocks of their own are built");
  }

  void require_float(const StoredMatrix& found, const char* role) const {
    if (found.tensors.scales == kNoTensor) return;
    fail(ErrorCode::not_supported, "format ", found.tensors.format, " of tensor ", quote(table_[found.tensors.codes].name), " is not built for the ", role, ": F32, BF16 and F16 are");
  }

  void resolve_selection_bias() {
    const std::string name = prefix_ + std::string(names_.selection_bias);
    out_.selection_bias = table_.find(name);
    if (out_.selection_bias == kNoTensor) fail(ErrorCode::bad_input, "tensor ", quote(name), " (selection bias) is missing: this family's router needs it; fetch the checkpoint again");
    TensorInfo& tensor = table_[out_.selection_bias];
    check_float(tensor);
    if (tensor.shape != std::vector<std::int64_t>{1, spec_.experts}) check_shape(tensor, {spec_.experts}, [] { return std::string("one value per expert"); });
    mark(out_.selection_bias, "selection_bias", true);
  }

  void resolve_shared_gate() {
    const StoredMatrix gate = matrix(names_.shared_gate, "shared_gate", 0, {.module = {}, .rows = 1, .cols = spec_.hidden}, nullptr);
    require_float(gate, "gate of the shared expert");
    bias(gate, "shared_gate", false);
    out_.shared_gate = gate.tensors.codes;
  }

  /// A tensor of the block that no rule explains could be a part of the model that would be lost.
  void refuse_leftovers() const {
    for (const std::string_view scope : names_.scopes) {
      const auto [first, last] = table_.below(prefix_ + std::string(scope));
      for (const TensorIndex* at = first; at != last; ++at) {
        if (!table_[*at].role.empty()) continue;
        fail(ErrorCode::bad_input, "tensor ", quote(table_[*at].name), " lies in MoE layer ", spec_.layer, " (", spec_.experts, " experts, family ", spec_.family,
             ") and no rule explains it: the layer is not run without it; take a release that has the family's published tensors only");
      }
    }
  }

  void write_notes() {
    if (without_input_scale_ > 0) {
      notes_.push_back(text_of("layer ", spec_.layer, ": ", without_input_scale_, " of ", with_static_activations_, " matrices of this spelling have no input scale (first: ", first_without_input_scale_,
                               "); none is made up, activations are not quantised with a stored scale"));
    }
    if (!out_.unused_biases.empty()) {
      notes_.push_back(text_of("layer ", spec_.layer, ": ", out_.unused_biases.size(), " biases that family ", spec_.family, " does not have (first: ",
                               table_[out_.unused_biases.front()].name, "); they must be all zero, which is checked when the layer is loaded"));
    }
  }

  void count() {
    LayerSummary& summary = out_.summary;
    summary.bytes = all_bytes_;
    std::int64_t routed = 0;
    for (const TensorIndex index : out_.read) {
      const std::string_view role = table_[index].role;
      if (role.starts_with("gate") || role.starts_with("up") || role.starts_with("down")) routed += table_[index].bytes;
    }
    summary.bytes_per_token = bytes_ - routed + routed / spec_.experts * spec_.top_k;
    const std::int64_t matrices = spec_.activation.gated ? 3 : 2, shared_matrices = spec_.shared.activation.gated ? 3 : 2;
    const std::int64_t expert = matrices * spec_.dispatch_width() * spec_.intermediate;
    const std::int64_t rest = spec_.experts * spec_.hidden + shared_matrices * spec_.shared.intermediate * spec_.hidden +
                              (spec_.shared.gate ? spec_.hidden : 0) + 2 * spec_.latent * spec_.hidden;
    summary.parameters = spec_.experts * expert + rest;
    summary.parameters_per_token = spec_.top_k * expert + rest;
  }

  const TensorTable& table_;
  const LayerNames& names_;
  const Config& config_;
  const std::string prefix_;               // up to and with "layers.<i>."
  StoredLayer& out_;
  LayerSpec& spec_;
  std::vector<std::string>& notes_;
  std::int64_t bytes_ = 0, all_bytes_ = 0, with_static_activations_ = 0, without_input_scale_ = 0;
  std::string first_without_input_scale_;
};

void require(bool holds, const std::string& sentence) {
  if (!holds) fail(ErrorCode::bad_input, "config.json: ", sentence, "; take the config.json that belongs to the weights");
}

/// What holds of every layer, before any size is used.
void check_spec(const LayerSpec& spec) {
  require(spec.hidden > 0 && spec.intermediate > 0 && spec.experts > 0,
          text_of("hidden ", spec.hidden, ", intermediate ", spec.intermediate, " and experts ", spec.experts, " must all be above 0"));
  require(spec.experts <= INT32_MAX, text_of(spec.experts, " experts are more than 2^31 - 1"));
  require(spec.top_k > 0 && spec.top_k <= spec.experts, text_of("a token picks ", spec.top_k, " of ", spec.experts, " experts and must pick 1 at least and all at most"));
  const RouterSpec& router = spec.router;
  require(router.groups > 0 && spec.experts % router.groups == 0, text_of(spec.experts, " experts do not divide into ", router.groups, " groups"));
  require(router.groups_kept > 0 && router.groups_kept <= router.groups, text_of("the router keeps ", router.groups_kept, " of ", router.groups, " groups and must keep 1 at least and all at most"));
  const std::int64_t group = spec.experts / router.groups;
  require(router.groups == 1 || router.group_score != GroupScore::sum_of_two || group >= 2, text_of("groups of ", group, " expert have no two best to sum"));
  require(spec.top_k <= router.groups_kept * group, text_of("a token picks ", spec.top_k, " experts but the kept groups hold ", router.groups_kept * group));
}

constexpr std::string_view kPrefixes[] = {"model.layers.", "backbone.layers.", "model.language_model.layers.", "language_model.model.layers.",
                                          "language_model.layers.", "layers."};

/// The number behind the prefix, or -1.
std::int64_t layer_number(std::string_view name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return -1;
  std::int64_t number = 0;
  std::size_t at = prefix.size();
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9' && number < 1'000'000'000; ++at) number = number * 10 + (name[at] - '0');
  return at > prefix.size() && at < name.size() && name[at] == '.' ? number : -1;
}

/// Layers behind the trunk, and experts outside it, are told and left alone.
void note_carried(const TensorTable& table, const std::string& prefix, std::int64_t trunk, std::vector<std::string>& notes) {
  std::map<std::int64_t, std::int64_t> behind;
  std::int64_t elsewhere = 0;
  std::string first;
  for (TensorIndex index = 0; index < table.size(); ++index) {
    const std::string& name = table[index].name;
    const std::int64_t layer = layer_number(name, prefix);
    if (layer >= trunk) ++behind[layer];
    if (layer < 0 && name.find(".experts.") != std::string::npos && elsewhere++ == 0) first = name;
  }
  for (const auto& [layer, tensors] : behind) {
    notes.push_back(text_of("layer ", layer, ": ", tensors, " tensors behind the trunk of ", trunk, " layers (a draft layer for multi-token prediction); not used"));
  }
  if (elsewhere > 0) notes.push_back(text_of(elsewhere, " expert tensors outside ", prefix, "* (first: ", first, ") belong to no layer of the trunk; not used"));
}

}  // namespace

std::vector<std::int64_t> moe_layers(const Family& family, const Config& config, std::int64_t tensors) {
  const std::int64_t count = family.layer_count(config);
  require(count <= kMaxLayers, text_of(count, " layers are more than the ", kMaxLayers, " that any model has"));
  require(count <= tensors, text_of(count, " layers cannot be held by ", tensors, " tensors"));
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    if (family.is_moe(config, layer)) layers.push_back(layer);
  }
  require(!layers.empty(), text_of("none of the ", count, " layers is MoE"));
  return layers;
}

std::string layer_prefix(const std::vector<std::string_view>& names, const Family& family, const std::vector<std::int64_t>& layers) {
  for (const std::string_view prefix : kPrefixes) {
    for (const std::string_view name : names) {
      const std::int64_t layer = layer_number(name, prefix);
      if (layer < 0 || !std::binary_search(layers.begin(), layers.end(), layer)) continue;
      const std::string_view rest = name.substr(name.find('.', prefix.size()) + 1);
      if (std::any_of(family.names.scopes.begin(), family.names.scopes.end(), [&](std::string_view scope) { return rest.substr(0, scope.size()) == scope; })) return std::string(prefix);
    }
  }
  fail(ErrorCode::bad_input, "no tensor is named like an MoE layer of family ", family.name, " (such as 'model.layers.", layers.front(), ".", family.names.router,
       ".weight'): config.json and weights do not belong together, or the weights are in another layout");
}

std::vector<StoredLayer> resolve_layers(const TensorTable& table, const Family& family, const Config& config, const std::string& prefix,
                                        const std::vector<std::int64_t>& layers, std::vector<std::string>& notes) {
  LayerSpec described;
  described.family = family.name;
  family.describe(config, described);
  check_spec(described);
  std::vector<StoredLayer> out;
  for (const std::int64_t layer : layers) {
    StoredLayer& stored = out.emplace_back();
    stored.summary.spec = described;
    stored.summary.spec.layer = layer;
    LayerResolver(table, family, config, prefix + std::to_string(layer) + ".", stored, notes).resolve();
  }
  const std::int64_t trunk = family.layer_count(config);
  for (std::int64_t layer = 0; layer < trunk; ++layer) {
    if (std::binary_search(layers.begin(), layers.end(), layer)) continue;
    for (const BodyNames& names : family.names.experts) {
      const auto [first, last] = table.below(prefix + std::to_string(layer) + "." + std::string(head_of(names.down)));
      if (first != last) {
        fail(ErrorCode::bad_input, "layer ", layer, " is dense by config.json but tensor ", quote(table[*first].name), " is one of experts: config.json and weights do not belong together");
      }
    }
  }
  note_carried(table, prefix, trunk, notes);
  return out;
}

}  // namespace motet
