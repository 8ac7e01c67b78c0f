// How much of a fit is done, for another thread that shows it; no result depends on it.
#pragma once

#include <atomic>
#include <cstddef>

namespace letheon {

class Progress {
 public:
  void add() noexcept { done_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::size_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> done_{0};
};

}  // namespace letheon
