// SPDX-License-Identifier: Apache-2.0
// Facts and measured limits of this machine, for `motet doctor`, `motet run` and `motet bench`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/spec.h"

namespace motet {

struct CacheFacts { int level = 0; std::string kind; std::int64_t bytes = 0; int shared_by = 1; };

/// Something a user may want to change, and how.
struct Finding { std::string what, remedy; };

/// What the operating system and the processor say; nothing is measured.
struct MachineFacts {
  Environment environment;
  std::string model_name;
  int processors_online = 1, processors_in_affinity = 1;
  double cgroup_quota_processors = 0;      ///< smallest quota on the path to the root, fractional; 0 = none
  std::int64_t cgroup_memory_limit = 0;    ///< 0 = none
  std::int64_t memory_total = 0, memory_available = 0;
  std::string transparent_huge_pages;      ///< always, madvise, never, or "unknown"
  std::vector<CacheFacts> caches;
  std::vector<std::string> numa;           ///< one line per node
  std::vector<Finding> findings;
};
MachineFacts machine_facts();

/// Rates of this moment, all with `threads` threads. 0 = not measured (target not usable).
struct MeasuredRates {
  int threads = 1;
  double read_bytes_per_second = 0;        ///< several streams per thread; 0 also when too little of the buffer could be made resident
                                           ///< in the time
  std::int64_t read_bytes = 0;             ///< that this rate was read over, again and again
  bool read_may_be_cached = false;         ///< they are fewer than twice the last-level cache: it is then the rate of memory, of the
                                           ///< cache, or between; a cache that a host shares among guests holds less than it says
  double f32_flops = 0;                    ///< fp32 FMA, widest usable vector
  double bf16_flops = 0;                   ///< bf16 dot
  double bf16_tile_flops = 0;              ///< bf16 products of the tile unit (AMX)
  double int16_ops = 0, int8_ops = 0;      ///< integer dots
  double seconds = 0;                      ///< that the measurement took
};
struct RateWishes {
  int threads = 1;
  double budget_seconds = 0.3;
  bool bandwidth = true, compute = true;
  /// Memory in use that is read in place of the probe's own buffer, such as Layer::weights_read(). It may overlap.
  std::vector<ByteSpan> resident = {};
};

/// Measures rates again and again beside what is being timed. Its read buffer (twice the last-level cache or more, but at most
/// 512 MiB, in huge pages where allowed) is allocated when it is first needed and lives with the threads as long as the probe: on
/// virtual machines, releasing such a buffer slows every later first touch of a page, so keep the probe until the timing is over.
/// One measurement at a time.
class RateProbe {
 public:
  /// Throws Error(invalid_argument) for fewer than one thread.
  static std::unique_ptr<RateProbe> create(int threads);
  virtual ~RateProbe() = default;
  /// Ends by wishes.budget_seconds; wishes.threads must be the probe's. Where fresh pages are slow to touch, the first
  /// measurements may have no bandwidth: later ones go on touching. Throws Error(invalid_argument).
  virtual MeasuredRates measure(const RateWishes& wishes) = 0;
};

/// One measurement with a probe of its own.
MeasuredRates measure_rates(const RateWishes& wishes);

}  // namespace motet
