// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "motet/error.h"

namespace motet::cli {
namespace {

volatile std::sig_atomic_t asked_to_stop = 0;

extern "C" void on_interrupt(int signal) {
  if (asked_to_stop != 0) _exit(128 + signal);
  asked_to_stop = 1;
}

extern "C" void on_bus_error(int) {
  static const char text[] =
      "motet: bad_input: a mapped file must keep its size while it is read, but it was cut short; "
      "restore the checkpoint and run again\n";
  const ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
  (void)ignored;
  _exit(5);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a result past the file size limit is a failed write, which removes it
}

bool interrupted() { return asked_to_stop != 0; }

void stop_if_interrupted() {
  if (interrupted()) throw Error(ErrorCode::cancelled, "stopped as asked; no file was left half-written");
}

}  // namespace motet::cli
