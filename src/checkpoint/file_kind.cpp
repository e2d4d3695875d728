// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_kind.h"

#include <algorithm>
#include <cctype>

namespace motet {
namespace {

struct Kind {
  std::string_view begins, is;         ///< lower case
};

constexpr Kind kKinds[] = {
    {"version https://git-lfs.github.com/spec", "a Git LFS pointer (text that stands for the real file): run 'git lfs pull' in the repository"},
    {"<!doctype html", "an HTML page: the download got a web page (a login or an error) in its place; fetch the file again"},
    {"<html", "an HTML page: the download got a web page (a login or an error) in its place; fetch the file again"},
    {"<?xml", "an XML page: the download got an error message in its place; fetch the file again"},
    {"pk\x03\x04", "a zip archive, as PyTorch's pickled checkpoints are: convert it to safetensors with the model's own tools"},
    {"\x80\x02", "a Python pickle: convert it to safetensors with the model's own tools"},
    {"\x80\x03", "a Python pickle: convert it to safetensors with the model's own tools"},
    {"\x80\x04", "a Python pickle: convert it to safetensors with the model's own tools"},
    {"gguf", "a GGUF file, which is not built: use the checkpoint that it was converted from"},
    {"{\"", "JSON text: the download got a message in its place; fetch the file again"},
    {"access to model", "the text of a refusal: the download was not allowed; log in and fetch the file again"},
};

}  // namespace

std::string foreign_kind(std::string_view start) {
  if (start.empty()) return "empty (0 bytes): an unfinished download; fetch it again";
  // Any two bytes may begin a header length; the upper half of a length and the brace behind it tell it from the kinds below.
  if (start.size() > 8 && start.substr(4, 4) == std::string_view("\0\0\0\0", 4) && start[8] == '{') return "";
  std::string text(start);
  const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
  if (text.find('<') != std::string::npos) text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), space));
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Kind& kind : kKinds) {
    if (std::string_view(text).substr(0, kind.begins.size()) == kind.begins) return std::string(kind.is);
  }
  return "";
}

}  // namespace motet
