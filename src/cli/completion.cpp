// SPDX-License-Identifier: Apache-2.0
// Shell completion from the option table, so that it cannot disagree with --help.
#include <fmt/format.h>

#include "cli.h"
#include "output.h"

namespace motet::cli {
namespace {

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  return words;
}

std::string quoted(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\'') text.replace(i, 1, "’"), i += 2;
  }
  return "'" + text.substr(0, text.find('\n')) + "'";
}

std::string bash(const CLI::App& root, const std::vector<const CLI::App*>& commands) {
  std::string names, cases;
  for (const CLI::App* command : commands) {
    names += command->get_name() + " ";
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(long_options(*command), " "));
  }
  return fmt::format(
      "_motet() {{\n  local current=${{COMP_WORDS[COMP_CWORD]}} words\n  case ${{COMP_WORDS[1]}} in\n{}    *) words=\"{}{}\" ;;\n  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n  [[ $current == -* || ${{#COMPREPLY[@]}} -gt 0 ]] || COMPREPLY=($(compgen -f -- \"$current\"))\n}}\n"
      "complete -o filenames -F _motet motet\n",
      cases, names, fmt::join(long_options(root), " "));
}

std::string zsh(const std::vector<const CLI::App*>& commands) {
  std::string names, cases;
  for (const CLI::App* command : commands) {
    names += fmt::format("    {}\n", quoted(command->get_name() + ":" + command->get_description()));
    cases += fmt::format("    {}) compadd -- {}; _files ;;\n", command->get_name(), fmt::join(long_options(*command), " "));
  }
  return fmt::format(
      "#compdef motet\n_motet() {{\n  local -a commands=(\n{})\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n  case $words[2] in\n{}  esac\n}}\n_motet \"$@\"\n",
      names, cases);
}

std::string fish(const std::vector<const CLI::App*>& commands) {
  std::string text;
  for (const CLI::App* command : commands) {
    text += fmt::format("complete -c motet -n __fish_use_subcommand -a {} -d {}\n", command->get_name(), quoted(command->get_description()));
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        text += fmt::format("complete -c motet -n '__fish_seen_subcommand_from {}' -l {} -d {}\n", command->get_name(), name, quoted(option->get_description()));
      }
    }
  }
  return text;
}

const CLI::App* root_app = nullptr;
std::string shell;

int run() {
  print(completion_script(*root_app, shell));
  return 0;
}

}  // namespace

std::string completion_script(const CLI::App& root, const std::string& name) {
  const std::vector<std::string> known = {"bash", "zsh", "fish"};
  const std::vector<const CLI::App*> commands = root.get_subcommands([](const CLI::App*) { return true; });
  if (name == "bash") return bash(root, commands);
  if (name == "zsh") return zsh(commands);
  if (name == "fish") return fish(commands);
  throw Error(ErrorCode::invalid_argument, fmt::format("completion is made for {}, not '{}'.{}", fmt::join(known, ", "), name, suggestion(name, known)));
}

Command add_completion(CLI::App& root) {
  CLI::App* app = root.add_subcommand("completion", "Shell completion for bash, zsh or fish");
  app->footer("Example:\n  motet completion bash > ~/.local/share/bash-completion/completions/motet");
  app->add_option("shell", shell, "bash, zsh or fish")->required();
  root_app = &root;
  return {app, run};
}

}  // namespace motet::cli
