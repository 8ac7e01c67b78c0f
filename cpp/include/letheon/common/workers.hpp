// Independent tasks on several threads; results never depend on how many.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace letheon {

// How many threads can be of use for n tasks.
[[nodiscard]] inline std::size_t useful_threads(std::size_t n, std::size_t n_threads) noexcept {
  return std::clamp<std::size_t>(n_threads, 1, std::max<std::size_t>(n, 1));
}

// Calls task(worker, i) for i = 0 .. n-1, each once, on at most n_threads threads. After an
// exception no new task starts, and the first exception is thrown again here.
template <typename Task>
void run_tasks(std::size_t n, std::size_t n_threads, Task task) {
  const std::size_t n_workers = useful_threads(n, n_threads);
  if (n_workers <= 1) {
    for (std::size_t i = 0; i < n; ++i) {
      task(std::size_t{0}, i);
    }
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto work = [&](std::size_t worker) {
    for (std::size_t i = next++; i < n; i = next++) {
      try {
        task(worker, i);
      } catch (...) {
        const std::scoped_lock lock(guard);
        if (!failure) {
          failure = std::current_exception();
        }
        next = n;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(n_workers - 1);
    try {
      for (std::size_t worker = 1; worker < n_workers; ++worker) {
        threads.emplace_back(work, worker);
      }
    } catch (const std::system_error&) {  // no more threads to be had: the others do the work
    }
    work(0);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace letheon
