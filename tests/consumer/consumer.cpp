// SPDX-License-Identifier: Apache-2.0
// Plans and runs one layer of the checkpoint in argv[1] through the C++ headers; prints the relative error.
#include <cstdio>
#include <motet/motet.hpp>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto checkpoint = motet::Checkpoint::open(argv[1]);
    const motet::LayerSpec& spec = checkpoint->layers().front().spec;
    motet::Deployment deployment;
    deployment.tokens = 4;
    deployment.input = motet::DType::f32;
    const motet::Plan plan = motet::plan(spec, deployment, motet::Environment::probe()).value();
    const auto weights = checkpoint->load(spec.layer);
    const auto layer = motet::Layer::create(plan, weights);
    const std::vector<float> x = motet::synthetic_hidden_states(4, spec.hidden, 7);
    std::vector<float> y(x.size());
    std::vector<std::int32_t> index(static_cast<std::size_t>(4 * spec.top_k));
    std::vector<float> routing(index.size());
    motet::ForwardInput in;
    in.hidden_states = {x.data(), motet::DType::f32, 4, spec.hidden};
    motet::ForwardOutput out;
    out.output = {y.data(), motet::DType::f32, 4, spec.hidden};
    out.top_k_index = index.data();
    out.top_k_weights = routing.data();
    const motet::RunStatus status = layer->forward(in, out);
    if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message.data()), 1;
    const auto report = motet::check_forward(plan, weights, in, {y.data(), motet::DType::f32, 4, spec.hidden}, index.data(), routing.data());
    std::printf("%s\n", report.text.c_str());
    return report.ok ? 0 : 1;
  } catch (const motet::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
