// Boosted models for Python.
#include <string>

#include "arrays.hpp"
#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/model.hpp"

namespace letheon::bindings {

namespace {

using boosting::Model;
using boosting::Report;
using boosting::Spec;

boosting::Loss loss_of(const std::string& name) {
  if (name == "log_loss") {
    return boosting::Loss::logistic;
  }
  if (name == "squared_error") {
    return boosting::Loss::squared;
  }
  if (name == "poisson") {
    return boosting::Loss::poisson;
  }
  throw std::invalid_argument("loss must be log_loss, squared_error or poisson");
}

void make_boosting_spec(Spec* self, const std::string& loss, std::uint32_t n_columns,
                        std::uint32_t n_rounds, std::uint32_t max_leaves, std::uint32_t rate,
                        std::uint32_t pilot_rate, std::int64_t l2, std::uint32_t step_bits,
                        std::uint32_t n_chains, std::uint32_t chain_people,
                        std::uint32_t max_bins, std::uint32_t min_samples_leaf,
                        std::uint32_t tree_columns, std::uint64_t key,
                        std::optional<int> y_exponent,
                        const std::optional<Input<std::uint8_t>>& is_categorical) {
  Spec spec;
  spec.loss = loss_of(loss);
  spec.n_columns = n_columns;
  spec.n_rounds = n_rounds;
  spec.max_leaves = max_leaves;
  spec.rate = rate;
  spec.pilot_rate = pilot_rate;
  spec.l2 = l2;
  spec.step_bits = step_bits;
  spec.n_chains = n_chains;
  spec.chain_people = chain_people;
  spec.max_bins = max_bins;
  spec.min_samples_leaf = min_samples_leaf;
  spec.tree_columns = tree_columns;
  spec.key = key;
  spec.y_exponent = y_exponent;
  if (is_categorical) {
    spec.is_categorical = copied(*is_categorical);
  }
  spec.validate();
  new (self) Spec(std::move(spec));
}

void fit_boosting(Model& self, LETHEON_BATCH_PARAMETERS, const Input<std::uint32_t>& order,
                  std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  nb::gil_scoped_release release;
  self.fit(batch, {n_classes, view(order)}, ids, n_threads);
}

void restore_boosting(Model& self, LETHEON_BATCH_PARAMETERS, const Input<std::uint32_t>& order,
                      const Input<std::uint8_t>& trees, std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  nb::gil_scoped_release release;
  self.restore(batch, {n_classes, view(order)}, ids, view(trees), n_threads);
}

Report learn_boosting(Model& self, LETHEON_BATCH_PARAMETERS, const Input<std::uint32_t>& order,
                      bool eager, std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  nb::gil_scoped_release release;
  return self.learn(batch, {n_classes, view(order)}, ids, eager, n_threads);
}

Report forget_boosting(Model& self, const Input<std::uint32_t>& slots, bool eager,
                       std::size_t n_threads) {
  nb::gil_scoped_release release;
  return self.forget(view(slots), eager, n_threads);
}

Report forget_cost_boosting(Model& self, const Input<std::uint32_t>& slots, bool reweighed) {
  nb::gil_scoped_release release;
  return self.forget_cost(view(slots), reweighed);
}

Report reweigh_boosting(Model& self, const Input<std::uint32_t>& before,
                        const Input<std::uint32_t>& after) {
  nb::gil_scoped_release release;
  return self.reweigh(view(before), view(after));
}

auto predict_boosting(Model& self, const Matrix& X, std::uint32_t n_rounds,
                      std::size_t n_threads) {
  const MatrixView rows = matrix(X);
  boosting::Scores scores;
  {
    nb::gil_scoped_release release;
    scores = self.predict(rows, n_rounds, n_threads);
  }
  return owned<2>(std::move(scores.values), {rows.n_rows, scores.n_outputs});
}

auto trees_boosting(Model& self, std::size_t n_threads) {
  std::vector<std::uint8_t> bytes;
  {
    nb::gil_scoped_release release;
    bytes = self.trees_bytes(n_threads);
  }
  const std::size_t n = bytes.size();
  return owned(std::move(bytes), {n});
}

nb::dict tree_boosting(Model& self, std::size_t index) {
  boosting::TreeView found;
  {
    nb::gil_scoped_release release;
    found = self.tree(index);
  }
  const std::size_t n = found.kind.size();
  nb::dict out;
  out["kind"] = owned(std::move(found.kind), {n});
  out["attribute"] = owned(std::move(found.attribute), {n});
  out["threshold"] = owned(std::move(found.threshold), {n});
  out["missing_left"] = owned(std::move(found.missing_left), {n});
  out["left"] = owned(std::move(found.left), {n});
  out["right"] = owned(std::move(found.right), {n});
  out["hessian"] = owned(std::move(found.hessian), {n});
  out["value"] = owned(std::move(found.value), {n});
  return out;
}

nb::dict scale_boosting(Model& self) {
  boosting::ScoreScale scale;
  {
    nb::gil_scoped_release release;
    scale = self.scale();
  }
  nb::dict out;
  const std::size_t n = scale.base.size();
  out["base"] = owned(std::move(scale.base), {n});
  out["exponent"] = scale.exponent;
  out["offset"] = scale.offset;
  return out;
}

auto importances_boosting(Model& self) {
  std::vector<double> values;
  {
    nb::gil_scoped_release release;
    values = self.importances();
  }
  const std::size_t n = values.size();
  return owned(std::move(values), {n});
}

std::pair<std::uint64_t, std::uint64_t> boosting_restore_cost(
    std::uint64_t n_rounds, std::uint64_t n_rows, std::uint64_t n_columns,
    std::uint64_t n_classes, std::uint64_t text_bytes) {
  const auto cost =
      boosting::restore_cost({n_rounds, n_rows, n_columns, n_classes, text_bytes});
  return {cost.bytes, cost.steps};
}

}  // namespace

void bind_boosting(nb::module_& m) {
  nb::class_<Spec>(m, "BoostingSpec", "Settings of a boosted model.")
      .def("__init__", &make_boosting_spec, nb::kw_only(), "loss"_a, "n_columns"_a, "n_rounds"_a,
           "max_leaves"_a, "rate"_a, "pilot_rate"_a, "l2"_a, "step_bits"_a, "n_chains"_a,
           "chain_people"_a, "max_bins"_a, "min_samples_leaf"_a, "tree_columns"_a, "key"_a,
           "y_exponent"_a.none(), "is_categorical"_a.noconvert().none());
  nb::class_<Report>(m, "BoostingReport", "What a change did to a boosted model.")
      .def_ro("chains", &Report::chains)
      .def_ro("trees", &Report::trees)
      .def_ro("rounds", &Report::rounds)
      .def_ro("everything", &Report::everything)
      .def_ro("emptied", &Report::emptied);
  m.def("boosting_restore_cost", &boosting_restore_cost, "n_rounds"_a, "n_rows"_a, "n_columns"_a,
        "n_classes"_a, "text_bytes"_a,
        "Bytes of memory and steps that restoring a boosted model takes at most.");
  nb::class_<Model>(m, "Boosting", "Rows, ids and trees; see letheon.boosting.")
      .def("__init__",
           [](Model* self, const Spec& spec) { new (self) Model(spec, random_key()); }, "spec"_a)
      .def("fit", &fit_boosting, LETHEON_BATCH_NAMES, "order"_a.noconvert(), "n_threads"_a)
      .def("restore", &restore_boosting, LETHEON_BATCH_NAMES, "order"_a.noconvert(),
           "trees"_a.noconvert(), "n_threads"_a)
      .def("learn", &learn_boosting, LETHEON_BATCH_NAMES, "order"_a.noconvert(), "eager"_a,
           "n_threads"_a)
      .def("find_ints", &find_ints<Model>, "values"_a.noconvert())
      .def("find_texts", &find_texts<Model>, "blob"_a.noconvert(), "offsets"_a.noconvert())
      .def("forget", &forget_boosting, "slots"_a.noconvert(), "eager"_a, "n_threads"_a)
      .def("forget_cost", &forget_cost_boosting, "slots"_a.noconvert(), "reweighed"_a)
      .def("reweigh", &reweigh_boosting, "before"_a.noconvert(), "after"_a.noconvert())
      .def("settle", &Model::settle, "n_threads"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("predict", &predict_boosting, "X"_a.noconvert(), "n_rounds"_a, "n_threads"_a)
      .def("copy_rows", &copy_rows<Model>, "slots"_a.noconvert())
      .def("rows", &rows<Model>, "order"_a.noconvert())
      .def("ids", &ids<Model>)
      .def("trees", &trees_boosting, "n_threads"_a)
      .def("tree", &tree_boosting, "index"_a)
      .def("scale", &scale_boosting)
      .def("importances", &importances_boosting)
      .def("class_counts", &class_counts<Model>)
      .def_prop_ro("n_rows", &Model::n_rows, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("is_settled", &Model::is_settled, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("n_done", &Model::n_done)
      .def_prop_ro("n_bytes", &Model::n_bytes, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace letheon::bindings
