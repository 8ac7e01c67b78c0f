#include "letheon/index/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define LETHEON_X86
#include <immintrin.h>
#endif

namespace letheon::index {

namespace {

// Words whose products are added in 32 bits.
constexpr std::size_t kBlockWords = 256;

using Sums = std::array<std::int32_t, kLanes>;

template <typename Block>
void multiply(const std::uint8_t* chunk, const std::uint8_t* query, std::size_t n_words,
              std::int64_t* out, Block block) noexcept {
  std::fill_n(out, kLanes, 0);
  for (std::size_t first = 0; first < n_words; first += kBlockWords) {
    Sums sums;
    block(chunk + first * kStride, query + first * kWordBytes,
          std::min(kBlockWords, n_words - first), sums.data());
    for (std::size_t i = 0; i < kLanes; ++i) {
      out[i] += sums[i];
    }
  }
}

template <typename Stored, typename Value>
void add_portable(const std::uint8_t* chunk, const std::uint8_t* query, std::size_t n_words,
                  std::int32_t* sums) noexcept {
  constexpr std::size_t kValues = kWordBytes / sizeof(Value);
  std::fill_n(sums, kLanes, 0);
  for (std::size_t g = 0; g < n_words; ++g) {
    std::array<Value, kValues> factors;
    std::memcpy(factors.data(), query + g * kWordBytes, kWordBytes);
    std::array<Stored, kValues * kLanes> rows;
    std::memcpy(rows.data(), chunk + g * kStride, kStride);
    for (std::size_t i = 0; i < kLanes; ++i) {
      for (std::size_t k = 0; k < kValues; ++k) {
        sums[i] += std::int32_t{rows[i * kValues + k]} * std::int32_t{factors[k]};
      }
    }
  }
}

#ifdef LETHEON_X86

inline std::int32_t word_at(const std::uint8_t* query, std::size_t g) noexcept {
  std::int32_t word;
  std::memcpy(&word, query + g * kWordBytes, kWordBytes);
  return word;
}

__attribute__((target("avx2"))) void add_avx2_int8(const std::uint8_t* chunk,
                                                   const std::uint8_t* query,
                                                   std::size_t n_words,
                                                   std::int32_t* sums) noexcept {
  __m256i part[4] = {};  // two sums for each of 4 rows
  for (std::size_t g = 0; g < n_words; ++g) {
    const __m256i factors = _mm256_cvtepi8_epi16(_mm_set1_epi32(word_at(query, g)));
    for (std::size_t j = 0; j < 4; ++j) {
      const auto* place = reinterpret_cast<const __m128i*>(chunk + g * kStride + 16 * j);
      const __m256i rows = _mm256_cvtepu8_epi16(_mm_loadu_si128(place));
      part[j] = _mm256_add_epi32(part[j], _mm256_madd_epi16(rows, factors));
    }
  }
  for (std::size_t j = 0; j < 4; ++j) {
    std::array<std::int32_t, 8> pairs;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs.data()), part[j]);
    for (std::size_t i = 0; i < 4; ++i) {
      sums[4 * j + i] = pairs[2 * i] + pairs[2 * i + 1];
    }
  }
}

__attribute__((target("avx2"))) void add_avx2_int16(const std::uint8_t* chunk,
                                                    const std::uint8_t* query,
                                                    std::size_t n_words,
                                                    std::int32_t* sums) noexcept {
  __m256i part[2] = {};
  for (std::size_t g = 0; g < n_words; ++g) {
    const __m256i factors = _mm256_set1_epi32(word_at(query, g));
    for (std::size_t j = 0; j < 2; ++j) {
      const auto* place = reinterpret_cast<const __m256i*>(chunk + g * kStride + 32 * j);
      const __m256i rows = _mm256_loadu_si256(place);
      part[j] = _mm256_add_epi32(part[j], _mm256_madd_epi16(rows, factors));
    }
  }
  for (std::size_t j = 0; j < 2; ++j) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8 * j), part[j]);
  }
}

#define LETHEON_VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))

// Four sums at once hide the latency of the instruction.
#define LETHEON_ADD_VNNI(name, instruction)                                                    \
  LETHEON_VNNI void name(const std::uint8_t* chunk, const std::uint8_t* query,                 \
                         std::size_t n_words, std::int32_t* sums) noexcept {                   \
    __m512i part[4] = {};                                                                      \
    std::size_t g = 0;                                                                         \
    for (; g + 4 <= n_words; g += 4) {                                                         \
      for (std::size_t j = 0; j < 4; ++j) {                                                    \
        part[j] = instruction(part[j], _mm512_loadu_si512(chunk + (g + j) * kStride),          \
                              _mm512_set1_epi32(word_at(query, g + j)));                       \
      }                                                                                        \
    }                                                                                          \
    for (; g < n_words; ++g) {                                                                 \
      part[0] = instruction(part[0], _mm512_loadu_si512(chunk + g * kStride),                  \
                            _mm512_set1_epi32(word_at(query, g)));                             \
    }                                                                                          \
    const __m512i low = _mm512_add_epi32(part[0], part[1]);                                    \
    const __m512i high = _mm512_add_epi32(part[2], part[3]);                                   \
    _mm512_storeu_si512(sums, _mm512_add_epi32(low, high));                                    \
  }

LETHEON_ADD_VNNI(add_vnni_int8, _mm512_dpbusd_epi32)
LETHEON_ADD_VNNI(add_vnni_int16, _mm512_dpwssd_epi32)

#endif

template <void (*kBlock)(const std::uint8_t*, const std::uint8_t*, std::size_t, std::int32_t*)>
void run(const std::uint8_t* chunk, const std::uint8_t* query, std::size_t n_words,
         std::int64_t* out) {
  multiply(chunk, query, n_words, out, kBlock);
}

}  // namespace

bool is_supported(Level level) noexcept {
#ifdef LETHEON_X86
  if (level == Level::vnni) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
  }
  if (level == Level::avx2) {
    return __builtin_cpu_supports("avx2");
  }
#endif
  return level == Level::portable;
}

Multiply choose_kernel(Kind kind, Level level) noexcept {
  const bool is_int8 = kind == Kind::int8;
#ifdef LETHEON_X86
  if (level == Level::vnni) {
    return is_int8 ? run<add_vnni_int8> : run<add_vnni_int16>;
  }
  if (level == Level::avx2) {
    return is_int8 ? run<add_avx2_int8> : run<add_avx2_int16>;
  }
#endif
  static_cast<void>(level);
  return is_int8 ? run<add_portable<std::uint8_t, std::int8_t>>
                 : run<add_portable<std::int16_t, std::int16_t>>;
}

Multiply choose_kernel(Kind kind) noexcept {
  for (const Level level : {Level::vnni, Level::avx2}) {
    if (is_supported(level)) {
      return choose_kernel(kind, level);
    }
  }
  return choose_kernel(kind, Level::portable);
}

}  // namespace letheon::index
