// SPDX-License-Identifier: Apache-2.0
#include "motet/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/status.h"

namespace motet {
namespace {

struct CodeRow {
  ErrorCode code;
  std::string_view name;
  int exit_code;
};
constexpr CodeRow kCodes[] = {
    {ErrorCode::ok, "ok", 0},
    {ErrorCode::invalid_argument, "invalid_argument", 2},
    {ErrorCode::not_supported, "not_supported", 3},
    {ErrorCode::would_not_fit, "would_not_fit", 4},
    {ErrorCode::bad_input, "bad_input", 5},
    {ErrorCode::io_error, "io_error", 5},
    {ErrorCode::tokens_exceed_plan, "tokens_exceed_plan", 5},
    {ErrorCode::wrong_shape, "wrong_shape", 5},
    {ErrorCode::wrong_dtype, "wrong_dtype", 5},
    {ErrorCode::id_out_of_range, "id_out_of_range", 5},
    {ErrorCode::duplicate_id, "duplicate_id", 5},
    {ErrorCode::file_changed, "file_changed", 5},
    {ErrorCode::hook_mismatch, "hook_mismatch", 2},
    {ErrorCode::check_failed, "check_failed", 1},
    {ErrorCode::cancelled, "cancelled", 130},  // the shell's convention for Ctrl-C
    {ErrorCode::internal, "internal", 70},     // sysexits.h: internal software error
    {ErrorCode::ranks_disagree, "ranks_disagree", 6},
    {ErrorCode::rank_missing, "rank_missing", 6},
    {ErrorCode::step_left, "step_left", 6},
};

const CodeRow& row_of(ErrorCode code) noexcept {
  for (const CodeRow& row : kCodes)
    if (row.code == code) return row;
  return kCodes[static_cast<int>(ErrorCode::internal)];
}

}  // namespace

std::string_view name_of(ErrorCode code) noexcept { return row_of(code).name; }
int exit_code_of(ErrorCode code) noexcept { return row_of(code).exit_code; }

RunStatus make_status(ErrorCode code, const char* format, ...) noexcept {
  RunStatus status;
  status.code = code;
  std::va_list list;
  va_start(list, format);
  const int length = std::vsnprintf(status.message.data(), status.message.size(), format, list);
  va_end(list);
  if (length >= static_cast<int>(status.message.size())) std::memcpy(status.message.data() + status.message.size() - 4, "...", 4);
  return status;
}

}  // namespace motet
