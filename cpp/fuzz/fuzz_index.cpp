// Rows, ids and changes from nowhere: the index refuses them with std::invalid_argument, or takes them
// and is then the index of a fresh build. Built with libFuzzer by `make fuzz`; the tests replay the
// saved inputs.
//
// The first bytes of an input:
//   0  bit 0 int16, bits 1-2 metric (3: Euclidean), bit 3 text ids, bit 4 floats are kept, bit 5 rows are
//      spelt out as floats, bit 6 rows are on the grid already, bit 7 targets
//   1  number of columns - 1, modulo 12
//   2  number of pivots - 1, modulo 40
//   3  number of rows of the first batch, modulo 48
#include "fuzz_index.hpp"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "letheon/index/index.hpp"
#include "source.hpp"

namespace letheon::fuzz {

namespace {

using index::Index;
using index::IndexRows;
using index::Spec;

constexpr std::size_t kHeader = 4;

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "VIOLATED: %s\n", what);
    std::abort();
  }
}

// Rows with their ids and targets, as the input spells them.
struct Batch {
  std::uint32_t n_columns = 1;
  std::vector<float> X{};
  std::vector<std::int64_t> ints{};
  std::vector<std::uint8_t> blob{};
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint64_t> owners{};
  std::vector<double> target{};

  [[nodiscard]] MatrixView matrix() const {
    constexpr std::ptrdiff_t item = sizeof(float);
    return {reinterpret_cast<const std::byte*>(X.data()), X.size() / n_columns, n_columns,
            item * n_columns, item, false};
  }
  [[nodiscard]] IdBatch ids(bool is_text) const {
    IdBatch ids;
    ids.is_text = is_text;
    if (is_text) {
      ids.blob = blob;
      ids.offsets = offsets;
    } else {
      ids.ints = ints;
    }
    return ids;
  }
};

class Driver {
 public:
  Driver(Source& source, Bytes head)
      : source_(source), flags_(head[0]), n_pivots_(1u + head[2] % 40u) {
    spec_.n_columns = 1u + head[1] % 12u;
    spec_.kind = (flags_ & 1) != 0 ? index::Kind::int16 : index::Kind::int8;
    spec_.metric = static_cast<index::Metric>((flags_ >> 1 & 3) % 3);
    spec_.step = 0.25;
    spec_.keeps_rows = (flags_ & 16) != 0;
  }

  bool run(std::size_t n_rows) {
    Index index(spec_, {1, 2});
    if (!add(index, read_batch(n_rows))) {
      require(index.n_rows() == 0 && index.rows().cells.empty(), "a refusal changes nothing");
      return false;
    }
    for (int i = 0; i < 12 && !source_.rest().empty() && index.n_rows() > 0; ++i) {
      step(index);
      require_fresh(index);
    }
    return true;
  }

 private:
  Batch read_batch(std::size_t n) {
    Batch batch{.n_columns = spec_.n_columns};
    for (std::size_t i = 0; i < n; ++i) {
      for (std::uint32_t c = 0; c < spec_.n_columns; ++c) {
        batch.X.push_back((flags_ & 32) != 0
                              ? std::bit_cast<float>(source_.number<std::uint32_t>())
                              : static_cast<float>(static_cast<std::int8_t>(source_.byte())));
      }
      const std::uint8_t id = source_.byte();
      batch.ints.push_back(id % 32);
      batch.blob.push_back(static_cast<std::uint8_t>('a' + id % 32));
      const auto cut = id == 255 ? std::int64_t{-3} : std::int64_t{1};  // offsets that are wrong
      batch.offsets.push_back(batch.offsets.back() + cut);
      batch.owners.push_back(id % 32 % 5u);  // many ties of hashes
      if ((flags_ & 128) != 0) {
        batch.target.push_back(id);
      }
    }
    return batch;
  }

  bool add(Index& index, const Batch& batch) const {
    const index::RowsToAdd rows{batch.matrix(), (flags_ & 64) != 0, batch.owners, batch.target};
    try {
      static_cast<void>(index.add(rows, batch.ids((flags_ & 8) != 0), n_pivots_, 1));
    } catch (const std::invalid_argument&) {
      return false;
    }
    return true;
  }

  void step(Index& index) {
    const std::uint8_t choice = source_.byte();
    const std::size_t n_pivots = n_pivots_;
    if (choice % 4 == 0) {
      n_pivots_ = 1u + choice / 4;
    }
    if (choice % 2 == 0) {
      const std::size_t n_before = index.n_rows();
      const Batch batch = read_batch(1 + choice / 2 % 5u);
      const bool added = add(index, batch);
      require(index.n_rows() == n_before + (added ? batch.ints.size() : 0), "all rows or none");
      n_pivots_ = added ? n_pivots_ : n_pivots;
    } else {
      forget(index, 1 + choice / 2 % 4);
    }
    ask(index);
  }

  void forget(Index& index, int n) {
    Batch wanted;  // all rows of an id leave together
    for (int i = 0; i < n; ++i) {
      const std::uint8_t id = source_.byte();
      wanted.ints.push_back(id % 32);
      wanted.blob.push_back(static_cast<std::uint8_t>('a' + id % 32));
      wanted.offsets.push_back(static_cast<std::int64_t>(wanted.blob.size()));
    }
    const auto slots = index.find(wanted.ids((flags_ & 8) != 0)).slots;
    const std::size_t n_before = index.n_rows();
    static_cast<void>(index.forget(slots, n_pivots_, 1));
    require(index.n_rows() == n_before - slots.size(), "the rows are gone");
    const Slot unknown = source_.number<std::uint16_t>() + 1000u;
    try {
      static_cast<void>(index.forget({&unknown, 1}, n_pivots_, 1));
      require(false, "an unknown slot is refused");
    } catch (const std::invalid_argument&) {
      require(index.n_rows() == n_before - slots.size(), "a refusal changes nothing");
    }
  }

  void ask(const Index& index) {
    if (index.n_rows() == 0) {
      return;
    }
    const Batch queries = read_batch(2);
    const std::size_t k = 1 + source_.byte() % 9u;
    try {
      const auto hits = index.query(queries.matrix(), {k, 1 + source_.byte() % 50u, {}, 1});
      for (std::size_t i = 0; i < hits.numbers.size(); ++i) {
        require((hits.numbers[i] >= 0) == (i % k < index.n_rows()), "k rows, or all of them");
      }
    } catch (const std::invalid_argument&) {
      // A query that is not finite.
    }
  }

  // An index that is built from the rows as they are: what the reader of a file does.
  void require_fresh(const Index& index) const {
    const IndexRows rows = index.rows();
    if (rows.cells.empty()) {
      return;
    }
    std::vector<float> X(rows.X);
    X.insert(X.end(), rows.grid.begin(), rows.grid.end());
    Batch all{.n_columns = spec_.n_columns, .X = std::move(X), .ints = rows.ids.ints,
              .blob = rows.ids.blob, .offsets = rows.ids.offsets, .target = rows.target};
    const bool is_text = rows.ids.is_text;
    for (std::size_t i = 0; i < rows.cells.size(); ++i) {
      const auto id = is_text ? all.blob[i] - 'a' : all.ints[i];
      all.owners.push_back(static_cast<std::uint64_t>(id % 5));
    }
    Index fresh(spec_, {3, 4});
    const bool is_grid = !spec_.keeps_rows || (flags_ & 64) != 0;
    static_cast<void>(
        fresh.add({all.matrix(), is_grid, all.owners, all.target}, all.ids(is_text), n_pivots_, 1));
    const IndexRows other = fresh.rows();
    require(other.grid == rows.grid && other.cells == rows.cells && other.X == rows.X,
            "a fresh index is the same");
  }

  Source& source_;
  std::uint8_t flags_;
  std::size_t n_pivots_;
  Spec spec_;
};

}  // namespace

bool try_index(Bytes input) {
  if (input.size() < kHeader) {
    return false;
  }
  Source source(input.subspan(kHeader));
  return Driver(source, input.first(kHeader)).run(input[3] % 48u);
}

}  // namespace letheon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(letheon::fuzz::try_index({data, size}));
  return 0;
}
