#include "letheon/forest/kernels.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "letheon/forest/vector.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon::forest {

LETHEON_VECTOR
void priorities(std::uint64_t key, const float* values, std::size_t n,
                std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = mix32(key, std::bit_cast<std::uint32_t>(values[i]));
  }
}

LETHEON_VECTOR
std::size_t place_of(const std::uint32_t* numbers, std::size_t n, std::uint32_t wanted) noexcept {
  constexpr std::size_t kBlock = 128;
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::uint32_t hits = 0;
    for (std::size_t b = 0; b < kBlock; ++b) {
      hits |= numbers[i + b] == wanted ? 1u : 0u;
    }
    if (hits != 0) {
      break;
    }
  }
  while (i < n && numbers[i] != wanted) {
    ++i;
  }
  return i;
}

LETHEON_VECTOR
Range range_of(const float* values, std::size_t n) noexcept {
  float least = std::numeric_limits<float>::infinity();
  float greatest = -least;
  std::uint32_t missing = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float x = values[i];
    least = x < least ? x : least;
    greatest = x > greatest ? x : greatest;
    missing |= x != x ? 1u : 0u;
  }
  return {least, greatest, missing != 0};
}

namespace {

// Few edges: one pass over the values per edge, in blocks that stay in registers.
LETHEON_VECTOR
void count_few_edges_below(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
                           std::uint32_t* out) noexcept {
  constexpr std::size_t kBlock = 32;
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::uint32_t below[kBlock] = {};
    for (std::size_t j = 0; j < n_edges; ++j) {
      for (std::size_t b = 0; b < kBlock; ++b) {
        below[b] += edges[j] < x[i + b] ? 1u : 0u;
      }
    }
    for (std::size_t b = 0; b < kBlock; ++b) {
      out[i + b] = below[b];
    }
  }
  for (; i < n; ++i) {
    std::uint32_t below = 0;
    for (std::size_t j = 0; j < n_edges; ++j) {
      below += edges[j] < x[i] ? 1u : 0u;
    }
    out[i] = below;
  }
}

}  // namespace

void count_edges_below(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
                       std::uint32_t* out) noexcept {
  constexpr std::size_t kFew = 256;
  if (n_edges <= kFew) {
    count_few_edges_below(x, n, edges, n_edges, out);
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::uint32_t>(std::lower_bound(edges, edges + n_edges, x[i]) - edges);
  }
}

LETHEON_VECTOR
std::size_t places_below(const std::uint32_t* numbers, std::size_t n, std::uint32_t bound,
                         std::uint32_t* out) noexcept {
  constexpr std::size_t kBlock = 32;
  std::size_t n_out = 0;
  for (std::size_t i = 0; i < n; i += kBlock) {
    const std::size_t end = i + kBlock < n ? i + kBlock : n;
    // Most blocks hold none.
    if (end - i == kBlock) {
      std::uint32_t hits = 0;
      for (std::size_t b = 0; b < kBlock; ++b) {
        hits |= numbers[i + b] < bound ? 1u : 0u;
      }
      if (hits == 0) {
        continue;
      }
    }
    for (std::size_t k = i; k < end; ++k) {
      out[n_out] = static_cast<std::uint32_t>(k);
      n_out += numbers[k] < bound ? 1 : 0;
    }
  }
  return n_out;
}

}  // namespace letheon::forest
