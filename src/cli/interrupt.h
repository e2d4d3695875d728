// SPDX-License-Identifier: Apache-2.0
// Ctrl-C ends cleanly: the first one lets the current forward finish and no file half-written; the second ends at once.
#pragma once

namespace motet::cli {

/// Installs handlers for SIGINT and SIGTERM, and one for SIGBUS that names its cause (a mapped file was cut short).
void install_signal_handlers();
/// True once the user asked to stop.
bool interrupted();
/// Throws Error(cancelled) when the user asked to stop.
void stop_if_interrupted();

}  // namespace motet::cli
