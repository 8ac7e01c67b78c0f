// What a greedy node remembers: for each chosen attribute the candidates of lowest priority, with
// what lies left of each. From it the node's split follows without looking at any row.
//
// A list keeps the lowest priorities among *all* distinct values of the node; the greatest value,
// which is no candidate, may be among them and is passed over. Attributes of two values, such as
// one-hot columns, have one candidate each and are kept side by side. One allocation per node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "letheon/forest/score.hpp"
#include "letheon/forest/spec.hpp"

namespace letheon::forest {

// A row as the caches see it.
struct RowView {
  const float* x;
  std::uint32_t label;
  std::int64_t q;
  std::uint32_t weight;
};

// How a node is to be split, or that the cache is not enough to say.
struct Verdict {
  enum class Kind : std::uint8_t { split, none, rescan };

  Kind kind = Kind::none;
  std::uint32_t attribute = 0;
  float threshold = 0.0f;
  bool saw_missing = false;   // NaN at the attribute among the node's rows
  bool missing_left = false;  // where NaN goes, if there is any
  bool is_category = false;   // the test is x == threshold, not x <= threshold

  [[nodiscard]] bool sends_left(float x) const noexcept {
    return (is_category ? x == threshold : x <= threshold) || (missing_left && x != x);
  }
};

// The lists of a node as they are collected, before they are packed.
struct Draft {
  struct List {
    std::uint32_t attribute;
    std::uint32_t first;  // index of its first entry
    std::uint32_t size;
    bool truncated;    // the node has values beyond the kept ones
    bool has_missing;  // then `missing` holds its lanes, at n_lanes * (number of the list)
    bool is_category = false;
  };

  std::uint32_t n_lanes = 0;
  std::vector<List> lists;
  std::vector<float> values;
  std::vector<std::int64_t> copies;  // weight of the rows that have the value
  std::vector<std::int64_t> left;    // n_lanes per entry: rows that the value sends left
  std::vector<std::int64_t> missing;

  void clear(std::uint32_t lanes) {
    n_lanes = lanes;
    lists.clear();
    values.clear();
    copies.clear();
    left.clear();
    missing.clear();
  }
};

struct GiniRivals;

using Bytes8 = std::vector<std::uint64_t>;  // storage aligned for every member of a block

class Block {
 public:
  explicit Block(std::uint64_t* storage) noexcept : base_(reinterpret_cast<std::byte*>(storage)) {}

  // Writes the draft into `storage`; `weight` is that of the node.
  static void pack(const Draft& draft, std::int64_t weight, bool regression, Bytes8& storage);

  [[nodiscard]] std::size_t n_bytes() const noexcept;

  // One row leaves, or comes. `admit` returns false when the lists would need an entry that only
  // a look at the rows can make; the block is then no longer valid. `key` and `weight` are the
  // node's, the weight with the new row.
  void withdraw(const RowView& row) noexcept;
  [[nodiscard]] bool admit(const RowView& row, std::uint64_t key, const Spec& spec,
                           std::int64_t weight) noexcept;

  // One row of two classes leaves, and the node's split by Gini is looked at: true if it is
  // certainly still the best. `left` and `totals` are the lanes of its left side and of the node,
  // without the row; every split with two sides must be eligible.
  [[nodiscard]] bool withdraw_and_confirm(const RowView& row, const std::int64_t* left,
                                          const std::int64_t* totals) noexcept;
  // `totals` are the lanes of all the node's rows.
  [[nodiscard]] Verdict decide(Lanes totals, const Spec& spec) noexcept;

  [[nodiscard]] std::size_t n_attributes() const noexcept {
    return header().n_pairs + header().n_lists;
  }
  // Whether an attribute is among the chosen ones.
  [[nodiscard]] bool has(std::uint32_t attribute) const noexcept;
  // Gives every attribute the number that `numbers` says; false if one has none (kNoColumn), and
  // the block is then no longer valid.
  [[nodiscard]] bool renumber(std::span<const std::uint32_t> numbers) noexcept;

 private:
  enum class Layout : std::uint8_t { narrow, wide, moments };

  struct Header {
    std::uint64_t n_bytes;
    std::uint32_t n_pairs;
    std::uint32_t n_lists;
    std::uint32_t n_lanes;
    std::uint32_t entries_at;  // where the entries of the lists begin
    Layout layout;
    bool keeps_missing;  // some list does
  };

  struct Entry {
    std::uint64_t offset;
    std::uint32_t attribute;
    std::uint32_t rank;  // place among the chosen attributes
    std::uint32_t size;
    std::uint32_t capacity;
    std::uint32_t n_used;  // leading candidates that the last decision has looked at
    std::uint8_t n_one_sided;  // how many of them have an empty side; kUnknown since a value left
    std::uint8_t truncated;
    std::uint8_t keeps_missing;  // lanes of the missing rows are there
    std::uint8_t is_category;    // only rows that have the value are left of it
  };
  static constexpr std::uint8_t kUnknown = 255;

  template <typename Count>
  class Pairs;
  template <typename Count>
  class List;
  template <typename Count, typename Rule>
  class Decision;

  [[nodiscard]] Header& header() const noexcept { return *reinterpret_cast<Header*>(base_); }
  [[nodiscard]] std::span<Entry> entries() const noexcept {
    return {reinterpret_cast<Entry*>(base_ + header().entries_at), header().n_lists};
  }
  template <typename Count>
  static void pack_as(const Draft& draft, Layout layout, Bytes8& storage);
  template <typename Count>
  void withdraw_as(const RowView& row) noexcept;
  void withdraw_narrow(const RowView& row) noexcept;
  void withdraw_wide(const RowView& row) noexcept;
  template <typename Count>
  [[nodiscard]] bool confirm_as(const RowView& row, GiniRivals& rivals) noexcept;
  [[nodiscard]] bool confirm_narrow(const RowView& row, float bound,
                                    const std::int64_t* totals) noexcept;
  [[nodiscard]] bool confirm_wide(const RowView& row, float bound,
                                  const std::int64_t* totals) noexcept;
  template <typename Count>
  [[nodiscard]] bool admit_as(const RowView& row, std::uint64_t key, const Spec& spec) noexcept;
  template <typename Count>
  [[nodiscard]] bool renumber_as(std::span<const std::uint32_t> numbers) noexcept;

  std::byte* base_;
};

}  // namespace letheon::forest
