// Exact dot products of a query with 16 rows at a time.
//
// Rows are held in chunks of 16. A row is a sequence of words of 4 bytes: 4 values of 8 bits, or 2 of
// 16 bits, filled up with zeros. Word g of row i is at byte 64 g + 4 i of its chunk, so that one
// vector instruction serves all 16 rows. Rows of 8 bits are held as value + 128.
#pragma once

#include <cstddef>
#include <cstdint>

namespace letheon::index {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kWordBytes = 4;
inline constexpr std::size_t kStride = kLanes * kWordBytes;

enum class Kind : std::uint8_t { int8, int16 };

// Largest absolute value of the grid. Sums of products of 512 values of 16 bits stay below 2^31, and
// so do those of 65,535 values of 8 bits.
[[nodiscard]] constexpr int grid_limit(Kind kind) noexcept {
  return kind == Kind::int8 ? 127 : 2047;
}
inline constexpr std::size_t kMaxColumns = 65535;

// What the processor offers. All levels give the same integers.
enum class Level : std::uint8_t { portable, avx2, vnni };

[[nodiscard]] bool is_supported(Level level) noexcept;

// out[i] = sum over g of row word (as unsigned bytes, or as two int16) times query word (as signed).
using Multiply = void (*)(const std::uint8_t* chunk, const std::uint8_t* query,
                          std::size_t n_words, std::int64_t* out);

[[nodiscard]] Multiply choose_kernel(Kind kind, Level level) noexcept;
// The kernel of the best level that this processor has.
[[nodiscard]] Multiply choose_kernel(Kind kind) noexcept;

}  // namespace letheon::index
