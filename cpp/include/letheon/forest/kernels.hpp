// The long inner loops: plain loops over arrays that compilers turn into vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace letheon::forest {

// out[i] = mix32(key, bits of values[i]).
void priorities(std::uint64_t key, const float* values, std::size_t n, std::uint32_t* out) noexcept;

// Place of a number in an array that holds it once.
[[nodiscard]] std::size_t place_of(const std::uint32_t* numbers, std::size_t n,
                                   std::uint32_t wanted) noexcept;

struct Range {
  float least;
  float greatest;
  bool has_missing;
};

// NaN apart; least > greatest if there is nothing else.
[[nodiscard]] Range range_of(const float* values, std::size_t n) noexcept;

// out[i] = number of ascending `edges` below x[i].
void count_edges_below(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
                       std::uint32_t* out) noexcept;

// Appends the places i with numbers[i] < bound to `out`, which has room for n; returns how many.
[[nodiscard]] std::size_t places_below(const std::uint32_t* numbers, std::size_t n,
                                       std::uint32_t bound, std::uint32_t* out) noexcept;

}  // namespace letheon::forest
