// Looking at the rows of a node: which attributes vary, and which candidates they offer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "letheon/forest/block.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

// The attributes of a node in the order of their hashes, found one after the other.
class AttributeOrder {
 public:
  // Leaves out the attributes whose bit is set in `known_constant` (if given).
  void start(std::uint64_t key, const Spec& spec,
             const std::vector<std::uint64_t>* known_constant);
  [[nodiscard]] std::optional<std::uint32_t> next() noexcept;

 private:
  std::vector<std::pair<std::uint64_t, std::uint32_t>> heap_;
};

// Working memory of one thread; grows to what the largest node needs.
struct Scratch {
  std::vector<Slot> rows;
  std::vector<Slot> moved;
  std::vector<std::uint8_t> goes_left;
  // Targets of the rows in hand, and of those that have a value.
  std::vector<std::uint16_t> labels, labels_present;
  std::vector<std::int64_t> q, q_present;
  std::vector<std::uint32_t> weights, weights_present;
  std::vector<float> values;
  std::vector<std::uint32_t> priorities;
  std::vector<std::uint32_t> cells;
  std::vector<std::uint32_t> place_numbers;
  std::span<const std::uint32_t> places;  // rows whose priority was low enough
  std::vector<std::int64_t> tallies;
  std::vector<std::uint64_t> found;
  std::vector<float> edges;
  std::vector<std::int64_t> copies;
  std::vector<std::uint64_t> by_value;
  std::vector<std::int64_t> lanes;
  std::vector<std::uint64_t> passed_over;
  AttributeOrder order;
  Draft draft;
  Bytes8 block;
  std::vector<std::vector<std::uint64_t>> constants;  // by depth
};

struct Adder;

struct RandomPick {
  std::uint32_t attribute;
  Extremes extremes;
};

class Scanner {
 public:
  Scanner(const Table& table, const Spec& spec, Scratch& scratch) noexcept
      : table_(table), spec_(spec), scratch_(scratch) {}

  // Takes a node's rows in hand. They must stay where they are until the next call.
  void load(std::span<const Slot> rows);

  // Fills scratch.draft with the lists of the chosen attributes, `keep` candidates each.
  // Attributes found constant are added to `known_constant` (if given).
  void greedy(std::uint64_t key, std::uint32_t keep, std::vector<std::uint64_t>* known_constant);
  // The first attribute that varies, if there is one.
  [[nodiscard]] std::optional<RandomPick> random(std::uint64_t key,
                                                 std::vector<std::uint64_t>* known_constant);

  // Weight of the rows in hand that a split sends to the left.
  [[nodiscard]] std::int64_t weight_left(const Verdict& verdict) const noexcept;
  // Adds the rows in hand that go left to `lanes` (and the squares of q to `squares`, if given).
  void add_left(const std::uint8_t* goes_left, std::span<std::int64_t> lanes,
                Wide* squares) const noexcept;

  // Number of candidates kept per attribute in a node of so many rows.
  [[nodiscard]] std::uint32_t keep(std::size_t n_rows) const noexcept;

 private:
  [[nodiscard]] bool list(std::uint32_t attribute, std::uint64_t key, std::uint32_t keep);
  [[nodiscard]] bool list_codes(const Column& column, std::uint32_t attribute, std::uint64_t key,
                                std::uint32_t keep);
  [[nodiscard]] bool list_values(const Column& column, std::uint32_t attribute, std::uint64_t key,
                                 std::uint32_t keep);
  void take_found();
  void weigh_copies(const std::uint32_t* weights, std::size_t first);
  void count_left(const Adder& adder, std::size_t n, std::size_t first, bool is_category);
  [[nodiscard]] std::optional<Extremes> extremes(std::uint32_t attribute,
                                                 std::uint64_t threshold_key);
  [[nodiscard]] Extremes category_extremes(std::uint64_t key) const noexcept;
  [[nodiscard]] bool codes_vary(const Column& column) const noexcept;
  void tally_codes(const Column& column);
  void gather_values(const Column& column);
  // Moves the rows without a value out of the way; returns how many have one.
  std::size_t set_missing_apart(std::int64_t* missing);
  // Finds the values of lowest priority; true if there may be more.
  [[nodiscard]] bool lowest_priorities(std::uint64_t key, std::size_t n, std::uint32_t keep);

  const Table& table_;
  const Spec& spec_;
  Scratch& scratch_;
  std::span<const Slot> rows_;
  // Targets of the rows whose values are in hand: all, or those with a value.
  const std::uint16_t* labels_ = nullptr;
  const std::int64_t* q_ = nullptr;
  const std::uint32_t* weights_ = nullptr;
};

}  // namespace letheon::forest
