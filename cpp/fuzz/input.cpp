#include "input.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>

#include "letheon/common/framing.hpp"
#include "letheon/forest/codec.hpp"
#include "source.hpp"

namespace letheon::fuzz {

namespace {

using testing::Luck;
using testing::People;

constexpr std::array<std::uint8_t, 4> kMagic{'L', 'T', 'R', 'F'};

forest::Spec read_spec(Bytes head, Luck& luck) {
  forest::Spec spec;
  const std::uint8_t what = head[0];
  const std::array criteria{forest::Criterion::gini, forest::Criterion::entropy,
                            forest::Criterion::squared_error, forest::Criterion::gini};
  spec.criterion = criteria[what & 3];
  spec.n_columns = 1 + head[2] % 4u;
  spec.max_features = spec.n_columns;
  spec.random_depth = head[3] % 4u;
  spec.max_depth = head[3] / 16 % 8 == 0 ? forest::kUnlimited : head[3] / 16 % 8u;
  spec.min_samples_leaf = 1 + head[4] % 4u;
  spec.n_thresholds = head[4] / 16 == 0 ? forest::kUnlimited : head[4] / 16u;
  spec.cache_rows = (head[5] & 4) != 0 ? 2 : spec.cache_rows;
  const std::size_t n_trees = 1 + head[5] % 4u;
  for (std::size_t t = 0; t < n_trees; ++t) {
    spec.tree_keys.push_back(luck.next());
    if ((what & 16) != 0) {
      spec.sample_keys.push_back(luck.next());
    }
  }
  spec.sample_limit = std::uint64_t{1} << 63;
  if ((head[5] & 32) != 0 && spec.is_regression()) {
    spec.y_exponent = 10;
  }
  for (std::uint32_t j = 0; (head[5] & 64) != 0 && j < spec.n_columns; ++j) {
    spec.categorical.push_back(static_cast<std::uint8_t>(head[6] >> j & 1));
  }
  return spec;
}

// Writes trees whose sums are right and whose splits are the input's: forgeries that no check of
// sums can find.
class Forger {
 public:
  Forger(const Table& table, const forest::Spec& spec, std::vector<std::uint8_t>& out) noexcept
      : table_(table), spec_(spec), out_(out) {}

  void node(Source& source, std::span<Slot> rows, std::uint32_t depth) {
    const std::uint8_t choice = source.byte();
    const std::uint32_t attribute = source.byte() % spec_.n_columns;
    const std::uint8_t pivot = source.byte();
    if (choice % 4 == 0 || rows.size() < 2 || depth >= spec_.max_depth) {
      leaf(rows);
      return;
    }
    const Column& column = table_.column(attribute);
    const float threshold = column.at(rows[pivot % rows.size()]);
    const bool saw_missing =
        std::ranges::any_of(rows, [&](Slot slot) { return std::isnan(column.at(slot)); });
    const bool missing_left = saw_missing && (choice & 4) != 0;
    const bool is_category = spec_.is_category(attribute);
    const auto right = std::ranges::stable_partition(rows, [&](Slot slot) {
      const float x = column.at(slot);
      return (is_category ? x == threshold : x <= threshold) || (missing_left && std::isnan(x));
    });
    const std::span<Slot> left = rows.first(rows.size() - right.size());
    if (left.empty() || right.empty() || std::isnan(threshold)) {
      leaf(rows);
      return;
    }
    const bool sends_left = saw_missing ? missing_left : weight(left) >= weight(right);
    out_.push_back(static_cast<std::uint8_t>((depth < spec_.random_depth ? 2 : 1) |
                                             (saw_missing ? 4 : 0) | (sends_left ? 8 : 0)));
    put(out_, attribute);
    put(out_, std::bit_cast<std::uint32_t>(threshold));
    sums(rows);
    node(source, left, depth + 1);
    node(source, right, depth + 1);
  }

 private:
  void leaf(std::span<const Slot> rows) {
    out_.push_back(0);
    sums(rows);
  }

  [[nodiscard]] std::int64_t weight(std::span<const Slot> rows) const noexcept {
    std::int64_t total = 0;
    for (const Slot slot : rows) {
      total += table_.weight(slot);
    }
    return total;
  }

  void sums(std::span<const Slot> rows) {
    if (table_.is_regression()) {
      std::int64_t sum = 0;
      for (const Slot slot : rows) {
        sum += std::int64_t{table_.weight(slot)} * table_.q(slot);
      }
      put(out_, static_cast<std::uint32_t>(weight(rows)));
      put(out_, sum);
      return;
    }
    std::vector<std::uint32_t> counts(table_.n_lanes(), 0);
    for (const Slot slot : rows) {
      counts[table_.label(slot)] += table_.weight(slot);
    }
    for (const std::uint32_t count : counts) {
      put(out_, count);
    }
  }

  const Table& table_;
  const forest::Spec& spec_;
  std::vector<std::uint8_t>& out_;
};

std::vector<std::uint8_t> forge(Source& source, const Case& made) {
  const forest::Spec& spec = made.spec;
  Table table(spec.n_columns, spec.is_regression(), spec.y_exponent);
  const auto slots = table.append(made.people.batch(), made.n_classes);
  table.rescale();
  std::vector<std::uint8_t> out(kMagic.begin(), kMagic.end());
  put(out, forest::kTreeFormat);
  put(out, static_cast<std::uint32_t>(spec.tree_keys.size()));
  put(out, table.n_lanes());
  for (std::size_t t = 0; t < spec.tree_keys.size(); ++t) {
    std::vector<Slot> rows;
    std::ranges::copy_if(slots, std::back_inserter(rows), [&](Slot slot) {
      return spec.sample_keys.empty() ||
             mix64(spec.sample_keys[t], table.owner(slot)) < spec.sample_limit;
    });
    std::vector<std::uint8_t> nodes;
    Forger(table, spec, nodes).node(source, rows, 0);
    put(out, std::uint64_t{nodes.size()});
    out.insert(out.end(), nodes.begin(), nodes.end());
  }
  return out;
}

// The second block begins where the second magic stands.
std::vector<Bytes> two_blocks(Bytes trees) {
  if (trees.empty()) {
    return {};
  }
  const auto second = std::ranges::search(trees.subspan(1), kMagic);
  const auto middle = static_cast<std::size_t>(second.begin() - trees.begin());
  return {trees.first(middle), trees.subspan(middle)};
}

}  // namespace

Case read_case(Bytes input) {
  const Bytes head = input.first(kHeader);
  Source source(input.subspan(kHeader));
  Case made;
  Luck luck(head[6] + head[7] * 256u);
  made.spec = read_spec(head, luck);
  made.n_classes = made.spec.is_regression() ? 0 : 1 + head[2] / 16 % 5u;
  made.eager = (head[5] & 16) != 0;
  made.people = testing::random_people(luck, {.n_rows = 1 + head[1] % 32u,
                                              .n_columns = made.spec.n_columns,
                                              .n_classes = made.n_classes,
                                              .missing = (head[0] & 4) != 0,
                                              .weighted = (head[0] & 8) != 0,
                                              .text = (head[0] & 32) != 0});
  if ((head[0] & 64) != 0) {
    read_rows(source, made.people);
  }
  if ((head[0] & 128) != 0) {
    made.trees = forge(source, made);
  } else {
    made.trees.assign(source.rest().begin(), source.rest().end());
  }
  made.blocks = (head[5] & 8) != 0 ? two_blocks(made.trees) : std::vector<Bytes>{made.trees};
  return made;
}

}  // namespace letheon::fuzz
