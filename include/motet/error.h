// SPDX-License-Identifier: Apache-2.0
// Errors of Motet: one code, one sentence that holds rule, value given, cause and remedy.
//
// Three kinds (docs/architecture.md): a mistake of the caller or the environment is an Error, thrown only while
// things are created; declining is a Refusal, a value that a plan carries; a bug of ours aborts (src/base/check.h).
// Running a layer never throws: it returns a RunStatus.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

namespace motet {

/// What went wrong, by code. The names are stable: `motet` prints them, the C ABI carries them as numbers.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,    ///< the call or command line is wrong
  not_supported = 2,       ///< understood, but not built or not possible on this machine; refused by name
  would_not_fit = 3,       ///< more memory than the limit
  bad_input = 4,           ///< a file or tensor breaks a rule of its format
  io_error = 5,            ///< the operating system refused
  tokens_exceed_plan = 6,  ///< forward was given more tokens than the plan
  wrong_shape = 7,         ///< a tensor's shape is not the plan's
  wrong_dtype = 8,         ///< a tensor's dtype is not the plan's
  id_out_of_range = 9,     ///< an expert id is neither an expert nor the declared absent id
  duplicate_id = 10,       ///< a token names one expert twice
  file_changed = 11,       ///< a mapped file is not what it was when the layer was created
  hook_mismatch = 12,      ///< hook given without `finalize = hook`, or missing with it; or its result has the wrong extent
  check_failed = 13,       ///< a result is outside its bound
  cancelled = 14,          ///< ended by the user
  internal = 15,           ///< a bug of Motet
  ranks_disagree = 16,     ///< ranks of a group planned differently, or sent what the plan does not say
  rank_missing = 17,       ///< a rank did not come by the deadline
  step_left = 18,          ///< another rank left the step before its end
};

/// The stable name of a code, such as "tokens_exceed_plan".
std::string_view name_of(ErrorCode code) noexcept;

/// Process exit code for an error: 0 ok, 1 check failed, 2 usage, 3 not supported here, 4 would not fit, 5 bad input, 6 an exchange failed, 70 a bug of Motet, 130 cancelled.
int exit_code_of(ErrorCode code) noexcept;

/// Thrown while creating things (opening, planning with throw, Layer::create); never by forward.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// The outcome of a call that may neither throw nor allocate. The message is empty when ok.
struct RunStatus {
  ErrorCode code = ErrorCode::ok;
  std::array<char, 320> message{};  ///< NUL-terminated sentence

  bool ok() const noexcept { return code == ErrorCode::ok; }
  std::string_view text() const noexcept { return message.data(); }
};

}  // namespace motet
