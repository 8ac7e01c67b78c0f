// From rows to leaves: the trees of one chain over blocks of rows, one byte per row and tree.
//
// Each column that the trees test becomes one byte per row: 0 for a missing value, else the place
// of the value among the thresholds that are used; or one bit per row, where the table holds bits.
// A set of rows is one bit per row. Every split divides the set that reaches it, and the sets of
// the leaves make up the bits of the numbers of the leaves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "letheon/boosting/tree.hpp"
#include "letheon/common/table.hpp"

namespace letheon::boosting {

inline constexpr std::size_t kBlockRows = 512;

class Coder {
 public:
  Coder() = default;
  explicit Coder(std::span<const Tree> trees);

  struct Scratch {
    std::vector<std::uint8_t> places;  // kBlockRows per used column
    std::vector<std::uint8_t> is_packed;  // of each used column
    std::vector<float> values;
  };

  // Must be called before the rows of a table are read, whenever the table has changed.
  void read_codes(const Table& table);
  // Reads the rows [begin, begin + n) of a table, or of a matrix; n <= kBlockRows.
  void read(const Table& table, std::size_t begin, std::size_t n, Scratch& scratch) const;
  void read(const MatrixView& X, std::size_t begin, std::size_t n, Scratch& scratch) const;
  // leaves[i] = leaf of row i in tree t of the chain, for kBlockRows rows.
  void find_leaves(std::size_t t, const Scratch& scratch, std::uint8_t* leaves) const noexcept;

 private:
  struct UsedColumn {
    std::uint32_t column;
    bool categorical;
    std::vector<float> thresholds;  // ascending
    std::array<std::uint8_t, 256> places{};  // of the codes of the table; 0 for missing values

    [[nodiscard]] std::uint8_t place_of(float x) const noexcept;
  };
  struct Test {
    std::uint32_t used;  // number of the used column
    std::uint8_t place;
    bool categorical;
    bool missing_left;
    std::int8_t left;  // as in a split
    std::int8_t right;

    [[nodiscard]] bool sends_left(std::uint8_t x) const noexcept {
      if (x == 0) {
        return missing_left;
      }
      return categorical ? x == place : x <= place;
    }
  };

  void place_block(const UsedColumn& used, const float* x, std::uint8_t* out) const noexcept;

  std::vector<UsedColumn> columns_;
  std::vector<std::vector<Test>> tests_;  // of each tree
};

}  // namespace letheon::boosting
