// The lock of a model: readers run together, a change runs alone.
//
// A thread that waits to change the model holds the gate, so that new readers queue behind it; a
// plain shared mutex would let a stream of readers block a request permanently.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace letheon {

class ModelGate {
 public:
  [[nodiscard]] std::shared_lock<std::shared_mutex> reading() const {
    const std::scoped_lock gate(gate_);
    return std::shared_lock(mutex_);
  }
  [[nodiscard]] std::unique_lock<std::shared_mutex> changing() const {
    const std::scoped_lock gate(gate_);
    return std::unique_lock(mutex_);
  }

 private:
  mutable std::mutex gate_;
  mutable std::shared_mutex mutex_;
};

}  // namespace letheon
