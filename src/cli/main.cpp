// SPDX-License-Identifier: Apache-2.0
// The motet program: parse, dispatch, and turn every error into a sentence on stderr and an exit code.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <sstream>

#include "cli.h"
#include "interrupt.h"
#include "output.h"

namespace motet::cli {
namespace {

constexpr int kUsage = 2;

std::string version_text() {
  std::string compiled;
  for (const ListEntry& target : targets()) compiled += (compiled.empty() ? "" : ", ") + target.name;
  return fmt::format("motet {}\ntargets compiled: {}", version(), compiled);
}

// Names that could stand where `given` stands: options of the app that was being parsed, or its commands.
std::vector<std::string> possible_words(const CLI::App& app, bool option) {
  std::vector<std::string> words;
  if (option) {
    for (const CLI::Option* entry : app.get_options()) {
      for (const std::string& name : entry->get_lnames()) words.push_back("--" + name);
    }
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) words.push_back(command->get_name());
  }
  return words;
}

int usage_error(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  std::string text = error.what();
  if (!text.ends_with('.')) text += '.';
  for (const std::string& word : app->remaining()) {
    text += suggestion(word.substr(0, word.find('=')), possible_words(*app, word.starts_with("-")));
  }
  const std::string path = app == &root ? "motet" : "motet " + app->get_name();
  say(fmt::format("motet: {}\nSee '{} --help'.", text, path));
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App root{
      "Motet runs the Mixture-of-Experts layers of published checkpoints: it settles every width, layout, byte and refusal in\n"
      "a plan before the first token, then runs, checks against exact truth, and says what happened."};
  root.name("motet");
  root.footer(
      "Example:\n  motet run sample/gpt-oss-tiny --check\n\n"
      "Exit codes: 0 ok, 1 check failed, 2 usage, 3 not supported here, 4 would not fit, 5 bad input, 6 an exchange between ranks failed, 70 a bug of Motet, 130 interrupted");
  root.set_version_flag("--version", version_text);
  root.require_subcommand(1);
  const std::vector<Command> commands = {add_doctor(root), add_list(root),  add_inspect(root), add_plan(root),
                                         add_run(root),    add_check(root), add_bench(root),   add_completion(root)};
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& call) {  // --help, --version
    std::ostringstream text;
    const int code = root.exit(call, text, text);
    print(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    if (argc == 1) {
      say(root.help());
      return kUsage;
    }
    const std::vector<std::string> words = possible_words(root, false);
    const std::string first = argv[1];
    if (!first.starts_with('-') && std::find(words.begin(), words.end(), first) == words.end()) {
      say(fmt::format("motet: '{}' is no command of motet: {}.{}\nSee 'motet --help'.", first, fmt::join(words, ", "), suggestion(first, words)));
      return kUsage;
    }
    return usage_error(root, error);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kUsage;
}

}  // namespace
}  // namespace motet::cli

int main(int argc, char** argv) {
  using namespace motet;
  spdlog::set_default_logger(spdlog::stderr_color_mt("motet"));
  spdlog::set_pattern("motet: %v");
  cli::install_signal_handlers();
  try {
    return cli::run(argc, argv);
  } catch (const Error& error) {
    return cli::say_error(error);
  } catch (const std::bad_alloc&) {
    cli::say("motet: would_not_fit: the operating system gave no more memory; ask for fewer --tokens or set --memory-limit");
    return exit_code_of(ErrorCode::would_not_fit);
  } catch (const std::exception& error) {
    cli::say(fmt::format("motet: internal: {}", error.what()));
    return exit_code_of(ErrorCode::internal);
  }
}
