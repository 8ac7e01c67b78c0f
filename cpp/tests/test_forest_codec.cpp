// Bytes of trees: they come back as they were, and damaged ones are refused or still make a forest.
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/codec.hpp"
#include "letheon/forest/forest.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using forest::Forest;
using letheon::testing::check;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;
using letheon::testing::Shape;
using Bytes = std::vector<std::uint8_t>;

// A small forest, its bytes, and an attempt to read other bytes instead.
class Saved {
 public:
  explicit Saved(std::uint64_t seed) {
    Luck luck(seed);
    shape_ = {.n_rows = 6 + luck.below(12),
              .n_columns = 1 + luck.below(4),
              .n_classes = static_cast<std::uint32_t>(seed % 4),
              .missing = seed % 2 == 0,
              .weighted = seed % 3 == 0};
    people_ = random_people(luck, shape_);
    spec_ = random_spec(luck, shape_);
    spec_.cache_rows = 2;
    forest_ = std::make_unique<Forest>(spec_);
    forest_->fit(people_.batch(), shape_.n_classes, people_.ids(), 1);
    bytes_ = forest_->trees_bytes(counting(shape_.n_classes), 1);
  }

  [[nodiscard]] const Bytes& bytes() const noexcept { return bytes_; }

  [[nodiscard]] bool is_taken(const Bytes& bytes) const {
    Forest twin(spec_);
    const std::vector<letheon::Bytes> blocks{bytes};
    try {
      twin.restore(people_.batch(), shape_.n_classes, people_.ids(), blocks, 1);
    } catch (const std::invalid_argument&) {
      return false;
    }
    return true;
  }

  // True if the bytes were taken; they must be harmless then.
  bool try_bytes(const Bytes& bytes) {
    Forest twin(spec_);
    twin.fit(people_.batch(), shape_.n_classes, people_.ids(), 1);
    const std::vector<letheon::Bytes> blocks{bytes};
    try {
      twin.restore(people_.batch(), shape_.n_classes, people_.ids(), blocks, 1);
    } catch (const std::invalid_argument&) {
      check(twin.trees_bytes(counting(shape_.n_classes), 1) == bytes_, "what it held is there");
      return false;
    }
    check(twin.trees_bytes(counting(shape_.n_classes), 1) == bytes, "written as read");
    const auto cost = letheon::forest::restore_cost(
        bytes, {spec_.tree_keys.size(), shape_.n_rows, shape_.n_columns, shape_.n_classes,
                spec_.is_regression(), 64 * shape_.n_rows});
    check(twin.n_bytes() <= cost.bytes, "a forest takes no more than was counted");
    check(cost.steps >= twin.n_nodes(), "every node is a step");
    require_same_nodes(twin);
    require_sound(twin);
    const std::vector<letheon::Slot> slots{0, 2};
    twin.forget(slots, true, 1);
    require_sound(twin);
    return true;
  }

  // Where the tags of split nodes stand.
  [[nodiscard]] std::vector<std::size_t> tags_of_splits() const {
    std::vector<std::size_t> tags;
    const std::size_t n_sums = shape_.n_classes == 0 ? 12 : 4 * shape_.n_classes;
    std::size_t at = 16;
    for (std::size_t t = 0; t < spec_.tree_keys.size(); ++t) {
      const std::size_t end = at + 8 + bytes_[at] + 256u * bytes_[at + 1];
      at += 8;
      while (at < end) {
        if (bytes_[at] != 0) {
          tags.push_back(at);
        }
        at += 1 + (bytes_[at] != 0 ? 8 : 0) + n_sums;
      }
    }
    check(at == bytes_.size(), "nodes follow each other to the end");
    return tags;
  }

  void try_blocks() {
    const std::size_t n_trees = spec_.tree_keys.size();
    std::vector<Bytes> parts;
    for (std::size_t t = 0; t < n_trees; ++t) {
      forest::Spec one = spec_;
      one.tree_keys = {spec_.tree_keys[t]};
      one.sample_keys = {};
      if (!spec_.sample_keys.empty()) {
        one.sample_keys = {spec_.sample_keys[t]};
      }
      Forest single(one);
      single.fit(people_.batch(), shape_.n_classes, people_.ids(), 1);
      parts.push_back(single.trees_bytes(counting(shape_.n_classes), 1));
    }
    std::vector<letheon::Bytes> blocks(parts.begin(), parts.end());
    Forest joined(spec_);
    joined.restore(people_.batch(), shape_.n_classes, people_.ids(), blocks, 2);
    check(joined.trees_bytes(counting(shape_.n_classes), 1) == bytes_, "trees built elsewhere");
    blocks.push_back(blocks.front());
    letheon::testing::check_refused(
        [&] { joined.restore(people_.batch(), shape_.n_classes, people_.ids(), blocks, 1); },
        "one tree too many");
    blocks.resize(n_trees - 1);
    letheon::testing::check_refused(
        [&] { joined.restore(people_.batch(), shape_.n_classes, people_.ids(), blocks, 1); },
        "one tree too few");
  }

 private:
  // Sums are checked against the rows, so damage can only have moved a threshold between values.
  void require_same_nodes(Forest& twin) const {
    for (std::size_t t = 0; t < spec_.tree_keys.size(); ++t) {
      const forest::TreeView mine = forest_->tree(t);
      const forest::TreeView other = twin.tree(t);
      check(mine.kind == other.kind && mine.left == other.left && mine.right == other.right &&
                mine.weight == other.weight && mine.values == other.values,
            "the same nodes with the same sums");
    }
  }

  void require_sound(Forest& twin) const {
    const forest::Answer answer = twin.predict(people_.matrix(), 1);
    for (const double value : answer.values) {
      check(std::isfinite(value), "answers are numbers");
    }
    check(twin.n_unbuilt() <= twin.n_nodes() && twin.tree(0).kind.size() >= 1, "a forest");
  }

  Shape shape_;
  People people_;
  forest::Spec spec_;
  std::unique_ptr<Forest> forest_;
  Bytes bytes_;
};

void round_trips() {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Saved saved(seed);
    check(saved.try_bytes(saved.bytes()), "its own bytes are taken");
    saved.try_blocks();
  }
}

void every_truncation_is_refused() {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Saved saved(seed);
    Bytes longer = saved.bytes();
    longer.push_back(0);
    check(!saved.try_bytes(longer), "a byte too many");
    for (std::size_t n = 0; n < saved.bytes().size(); ++n) {
      Bytes part = saved.bytes();
      part.resize(n);
      check(!saved.try_bytes(part), "cut off");
    }
  }
}

void every_changed_byte_is_harmless() {
  std::size_t n_refused = 0;
  std::size_t n_taken = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Saved saved(seed);
    for (std::size_t i = 0; i < saved.bytes().size(); ++i) {
      for (const int flip : {0x01, 0x80, 0xFF, 0x04}) {
        Bytes altered = saved.bytes();
        altered[i] = static_cast<std::uint8_t>(altered[i] ^ flip);
        ++(saved.try_bytes(altered) ? n_taken : n_refused);
      }
    }
  }
  check(n_refused > 3 * n_taken, "most are refused");
  check(n_taken > 0, "a threshold may move between two values");
}

// What the format says of a node's missing values must be so.
void every_wrong_tag_is_refused() {
  std::size_t n_splits = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Saved saved(seed);
    for (const std::size_t place : saved.tags_of_splits()) {
      ++n_splits;
      for (int flip = 1; flip < 256; ++flip) {
        Bytes altered = saved.bytes();
        altered[place] = static_cast<std::uint8_t>(altered[place] ^ flip);
        // Where missing values go may be either side as far as the sums can tell.
        check(flip == 8 || !saved.is_taken(altered), "no other tag fits the node");
      }
    }
  }
  check(n_splits > 100, "many splits were tried");
}

void a_split_needs_two_sides() {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Saved saved(seed);
    for (const std::size_t place : saved.tags_of_splits()) {
      Bytes altered = saved.bytes();
      const auto least = std::bit_cast<std::uint32_t>(-3.0e38f);
      for (std::size_t k = 0; k < 4; ++k) {
        altered[place + 5 + k] = static_cast<std::uint8_t>(least >> (8 * k));
      }
      check(!saved.is_taken(altered), "all rows on one side");
    }
  }
}

// One row, split into itself and nothing, with sums to match.
void nothing_is_no_side() {
  const People one{.X = {1.0f}, .labels = {0}, .ints = {7}};
  forest::Spec spec;
  spec.n_columns = 1;
  spec.tree_keys = {1};
  spec.min_samples_split = 1;
  for (const float threshold : {0.0f, 2.0f}) {
    const auto bits = std::bit_cast<std::uint32_t>(threshold);
    const std::uint8_t n_left = threshold < 1.0f ? 0 : 1;
    Bytes bytes{'L', 'T', 'R', 'F', 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0};
    bytes.push_back(static_cast<std::uint8_t>(1 | (n_left != 0 ? 8 : 0)));
    bytes.insert(bytes.end(), {0, 0, 0, 0});
    for (std::size_t k = 0; k < 4; ++k) {
      bytes.push_back(static_cast<std::uint8_t>(bits >> (8 * k)));
    }
    bytes.insert(bytes.end(), {1, 0, 0, 0});
    bytes.insert(bytes.end(), {0, n_left, 0, 0, 0});
    bytes.insert(bytes.end(), {0, static_cast<std::uint8_t>(1 - n_left), 0, 0, 0});
    Forest made(spec);
    const std::vector<letheon::Bytes> blocks{bytes};
    letheon::testing::check_refused(
        [&] { made.restore(one.batch(), 1, one.ids(), blocks, 1); }, "an empty side");
  }
}

}  // namespace

int main() {
  round_trips();
  every_truncation_is_refused();
  every_changed_byte_is_harmless();
  every_wrong_tag_is_refused();
  a_split_needs_two_sides();
  nothing_is_no_side();
  return letheon::testing::result();
}
