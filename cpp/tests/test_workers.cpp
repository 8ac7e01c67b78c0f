// Tasks on several threads: each once, and the first exception comes out.
#include "letheon/common/workers.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks.hpp"

namespace {

using letheon::run_tasks;
using letheon::testing::check;

void each_task_runs_once() {
  for (const std::size_t n : {0u, 1u, 2u, 7u, 500u}) {
    for (const std::size_t n_threads : {0u, 1u, 2u, 3u, 16u}) {
      std::vector<std::atomic<int>> runs(n);
      std::atomic<bool> known_worker = true;
      run_tasks(n, n_threads, [&](std::size_t worker, std::size_t i) {
        ++runs[i];
        if (worker >= std::max<std::size_t>(n_threads, 1)) {
          known_worker = false;
        }
      });
      check(std::ranges::all_of(runs, [](const auto& run) { return run == 1; }), "each once");
      check(known_worker, "workers are numbered below the number of threads");
    }
  }
}

void a_worker_is_one_thread() {
  std::vector<int> busy(4, 0);  // not atomic: only its own worker touches an entry
  run_tasks(1000, 4, [&](std::size_t worker, std::size_t) { ++busy[worker]; });
  check(busy[0] + busy[1] + busy[2] + busy[3] == 1000, "no run is lost");
}

void the_exception_comes_out() {
  for (const std::size_t n_threads : {1u, 4u}) {
    std::atomic<std::size_t> n_run = 0;
    std::string message;
    try {
      run_tasks(100000, n_threads, [&](std::size_t, std::size_t i) {
        ++n_run;
        if (i == 3) {
          throw std::runtime_error("task 3");
        }
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    check(message == "task 3", "the failure is told");
    check(n_run < 100000, "and the rest is left");
  }
}

}  // namespace

int main() {
  each_task_runs_once();
  a_worker_is_one_thread();
  the_exception_comes_out();
  return letheon::testing::result();
}
