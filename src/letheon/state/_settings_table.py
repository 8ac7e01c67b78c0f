"""Rules for the settings of listed classes in files, one rule for each attribute name.

A class on the allow-list can still do harm with the wrong setting: `CountVectorizer` opens files
with ``input="filename"``. A rule applies to an attribute name in all classes, because a
name has the same meaning everywhere in scikit-learn.

The tables were written from `_parameter_constraints` of scikit-learn 1.9 and are literal on
purpose. A rule is a list of words: lower-case words are allowed texts, capitals are kinds of
values, and angle brackets are patterns of texts. Every rule except ``NONE`` also allows None, bools
and numbers.

========== =====================================================================================
ARRAYS     lists, tuples, dicts and arrays of allowed values; sparse matrices, generators
CLASSES    the networks and optimisers on the allow-list, and `functools.partial` of them
FUNCTIONS  the functions on the allow-list, and `functools.partial` of them
GRID       a dict of lists of options; each option obeys the rule of the parameter that it names
JOBS       a number of workers: a whole number from -128 to 128
KEYWORDS   a dict whose values obey the rules of their keys; unknown keys take numbers and arrays
LABELS     any text, but only inside a container: names of columns, labels, words
NONE       nothing but None
OBJECTS    instances of listed classes
OFF        nothing but None and False
ON         nothing but None and True
SIZE       a number of at most 10^9
TEXT       any text: it is compared, counted or shown, and never looked up or run
THREADS    a number of threads: a whole number from 1 to 1024
TYPES      types and dtypes of NumPy, and built-in ones
========== =====================================================================================
"""

from letheon.state._allowed import read_table

_KINDS = (
    "ARRAYS CLASSES FUNCTIONS GRID JOBS KEYWORDS LABELS NONE OBJECTS OFF ON SIZE TEXT THREADS TYPES"
)
KINDS = frozenset(_KINDS.split())

# Regular expressions that take time in proportion to the text. Only the last character may repeat,
# so a match cannot fail late and start over. A word boundary may follow `\w`, which always stops at
# one, or any pattern that starts at one. Otherwise only plain words are allowed.
_CHARACTER = r"(?:\\[wdsWDS]|[A-Za-z0-9_@#:,/' .-]|\\[.+*?()\[\]{}|^$-]|\[\^?[A-Za-z0-9_@#', -]+\])"
_WORD_CHARACTER = r"(?:\\[wd]|[A-Za-z0-9_]|\[[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*\]|\[\^\\d\\W\])"
_REPEAT = r"(?:[+*]|\{[0-9]{1,2}(?:,(?:[0-9]{1,2})?)?\})"
_START = r"(?:\(\?u\))?(?:\\b|\^)?"
_REGEX = "|".join(
    (
        rf"{_START}{_CHARACTER}{{0,20}}(?:{_CHARACTER}{_REPEAT})?",
        rf"{_START}{_CHARACTER}{{0,20}}\\w{_REPEAT}?\\b",
        rf"(?:\(\?u\))?\\b{_WORD_CHARACTER}{{1,20}}{_REPEAT}\\b",
        rf"\^?{_CHARACTER}{{1,20}}\$",
        r"[A-Za-z0-9_ ]{1,40}(?:\|[A-Za-z0-9_ ]{1,40}){1,20}",
    )
)
PATTERNS: dict[str, str] = {
    "<regex>": _REGEX,
    "<format>": r"(?:[^{}]|\{feature_name\}|\{transformer_name\})*",
    "<importance>": r"auto|(?:[A-Za-z][A-Za-z0-9_]{0,40}\.){0,8}(?:coef_|feature_importances_)",
    "<scaled>": r" ?(?:[0-9]{0,9}\.?[0-9]{1,9} ?\* ?)?(?:mean|median)",
    "<name>": r"[a-z0-9-]+",
    "<device>": r"auto|cpu|mps|cuda(?::[0-9]{1,2})?",
    "<dtype>": (
        r"bool|boolean|u?int(?:8|16|32|64)?|float(?:16|32|64)?|complex(?:64|128)?|number|object|"
        r"category|string|str|datetime|timedelta|datetimetz|datetime64|timedelta64"
    ),
}

_METRICS = (
    "braycurtis canberra chebyshev cityblock correlation cosine dice euclidean hamming "
    "haversine infinity inner_product jaccard l1 l2 mahalanobis manhattan matching minkowski "
    "nan_euclidean p precomputed pyfunc rogerstanimoto russellrao seuclidean sokalmichener "
    "sokalsneath sqeuclidean wminkowski yule"
)
_KERNELS = (
    "additive_chi2 chi2 cosine epanechnikov exponential gaussian knn laplacian linear poly "
    "polynomial precomputed rbf sigmoid tophat"
)
_METHODS = (
    "decision_function fit fit_predict fit_transform inverse_transform partial_fit predict "
    "predict_log_proba predict_proba score split transform"
)
_ANSWERS = "ARRAYS auto decision_function predict predict_log_proba predict_proba"
_SCORES = (
    "accuracy adjusted_mutual_info_score adjusted_rand_score average_precision balanced_accuracy "
    "completeness_score d2_absolute_error_score d2_brier_score d2_log_loss_score "
    "explained_variance f1 f1_macro f1_micro f1_samples f1_weighted fowlkes_mallows_score "
    "homogeneity_score jaccard jaccard_macro jaccard_micro jaccard_samples jaccard_weighted loss "
    "matthews_corrcoef mutual_info_score neg_brier_score neg_log_loss neg_max_error "
    "neg_mean_absolute_error neg_mean_absolute_percentage_error neg_mean_gamma_deviance "
    "neg_mean_poisson_deviance neg_mean_squared_error neg_mean_squared_log_error "
    "neg_median_absolute_error neg_negative_likelihood_ratio neg_root_mean_squared_error "
    "neg_root_mean_squared_log_error normalized_mutual_info_score positive_likelihood_ratio "
    "precision precision_macro precision_micro precision_samples precision_weighted r2 rand_score "
    "recall recall_macro recall_micro recall_samples recall_weighted roc_auc roc_auc_ovo "
    "roc_auc_ovo_weighted roc_auc_ovr roc_auc_ovr_weighted top_k_accuracy v_measure_score warn"
)
XGBOOST_OBJECTIVES = (
    "binary:hinge binary:logistic binary:logitraw count:poisson multi:softmax multi:softprob "
    "reg:absoluteerror reg:gamma reg:logistic reg:pseudohubererror reg:quantileerror "
    "reg:squarederror reg:squaredlogerror reg:tweedie"
)
LIGHTGBM_OBJECTIVES = (
    "binary cross_entropy cross_entropy_lambda fair gamma huber mape multiclass multiclassova "
    "poisson quantile regression regression_l1 tweedie"
)
_CODECS = (
    "ascii us-ascii cp1250 cp1251 cp1252 windows-1252 iso-8859-1 iso8859-1 iso-8859-15 latin-1 "
    "latin1 latin_1 utf-8 utf8 utf_8 UTF-8 UTF8 utf-8-sig utf-16 utf-32"
)

# Rule -> names of parameters of scikit-learn's estimators and helpers that obey it.
_SKLEARN = f"""
: C accept_sparse add_indicator allow_single_cluster alpha_1 alpha_2 alpha_W alpha_init
    alpha_per_target alternate_sign angle assume_centered atol beta_1 beta_2 bin_seeding binarize
    binary bootstrap bootstrap_features breadth_first break_ties ccp_alpha check_inverse clip
    cluster_all cluster_selection_epsilon code_size coef0 compute_distances
    compute_inverse_components compute_labels compute_score copy_X copy_X_train copy_x damping
    degrees_of_freedom_prior delta dense_output distance_threshold doc_topic_prior
    early_exaggeration enet_tol eps epsilon error_on_new eta0 exponent fit_intercept
    fit_inverse_transform fit_path fit_prior flatten_transform force_alpha forget_factor
    fresh_restarts hessian_tol high high_inclusive ignore_implicit_zeros include_bias
    interaction_only intercept_scaling jitter keep_empty_features l2_regularization lambda_1
    lambda_2 lambda_init learning_decay learning_offset learning_rate_init low low_inclusive
    lowercase max_eps mean_change_tol mean_precision_prior metric_mds min_grad_norm
    min_impurity_decrease min_weight_fraction_leaf mini_batch modified_tol momentum nesterov
    nesterovs_momentum noise_variance normalize_y novelty nu passthrough percentile perp_tol
    perplexity positive positive_code positive_dict power power_t predecessor_correction prefit
    quantile radius raise_exc reassignment_ratio refit reg reg_covar reg_param remove_zero_eig
    residual_threshold ridge_alpha rtol sample_interval sample_posterior scale score
    shrink_threshold shrinking sign skewedness skip_complete smooth_idf sort sparse_output
    sparse_threshold split_sign standardize stop_probability stop_score store_covariance
    store_cv_results store_precision sublinear_tf support_fraction test_size threshold_lambda tol
    topic_word_prior total_samples train_size transform_alpha unit_variance use_idf validate
    var_smoothing verbose warm_start weight_concentration_prior with_centering with_mean
    with_scaling with_std xi y_max y_min
SIZE: block_size branching_factor cache_size convergence_iter encoded_missing_value evaluate_every
    fresh_restarts_max_iter gap init_size k_best leaf_size max_bins max_categories max_cluster_size
    max_depth max_df max_doc_update_iter max_fun max_iter max_iter_predict max_leaf_nodes
    max_n_alphas max_no_improvement max_patches max_skips max_subpopulation max_train_size
    max_trials min_bin_freq min_cluster_size min_df min_features_to_select min_frequency min_samples
    min_samples_leaf min_samples_split n_best n_classes n_estimators n_features n_groups n_iter
    n_iter_no_change n_iter_without_progress n_knots n_nearest_features n_neighbors n_nonzero_coefs
    n_oversamples n_quantiles n_refinements n_repeats n_restarts_optimizer n_splits n_subsamples
    n_svd_vecs n_targets neg_label norm_order p sample_steps step stop_n_inliers subsample
    transform_max_iter transform_n_nonzero_coefs unknown_value validation_fraction verbose_interval
JOBS: n_jobs
THREADS: n_threads
NONE: callback is_data_valid is_model_valid memory pre_dispatch preprocessor tokenizer xp device
ARRAYS: U_init V_init alpha center class_prior code_init connectivity constant_value
    covariance_prior dict_init dictionary feature_range indices is_categorical l1_ratio length_scale
    max_value mean_prior means_init min_value ngram_range noise_level noise_variance_init params
    patch_size periodicity precisions_init preference quantile_range sample_weight seeds sigma_0
    test_fold w_init weights_init
ARRAYS SIZE: Cs alphas degree hidden_layer_sizes min_categories n_bins thresholds
ARRAYS LABELS: known_categories monotonic_cst transform_input transformer_weights vocabulary
ARRAYS LABELS auto: categories
ARRAYS LABELS balanced balanced_subsample: class_weight
ARRAYS LABELS english: stop_words
ARRAYS LABELS first if_binary: drop
ARRAYS LABELS from_dtype: categorical_features
ARRAYS LABELS no_interactions pairwise: interaction_cst
ARRAYS OBJECTS: calibrators kernels scorers
ARRAYS OBJECTS SIZE: n_clusters
ARRAYS OBJECTS SIZE prefit: cv
ARRAYS OBJECTS {_SCORES}: scoring
ARRAYS OBJECTS TEXT: estimators owner requests steps transformer_list transformers
ARRAYS TEXT: classes constant fill_value missing_values outlier_label pos_label separator
ARRAYS auto: precompute
ARRAYS fixed: alpha_bounds constant_value_bounds gamma_bounds length_scale_bounds noise_level_bounds
    periodicity_bounds sigma_0_bounds
ARRAYS deprecated: random_state
ARRAYS distance uniform: weights
ARRAYS empirical uniform: priors
ARRAYS C F A K random: order
ARRAYS quantile uniform: knots
ARRAYS warn: l1_ratios
{_ANSWERS}: chain_method response_method stack_method
ARRAYS OBJECTS auto classical_mds custom identity k-means++ lda nndsvd nndsvda nndsvdar pca random
    warn zero: init
ARRAYS TYPES <dtype>: dtype dtype_exclude dtype_include
FUNCTIONS: func inverse_func oob_score pooling_func score_func
FUNCTIONS OBJECTS {_METRICS} {_KERNELS}: metric
FUNCTIONS OBJECTS {_KERNELS}: kernel
FUNCTIONS {_KERNELS} euclidean nearest_neighbors precomputed_nearest_neighbors: affinity
FUNCTIONS constant kmeans mean median most_frequent prior quantile stratified uniform: strategy
KEYWORDS: fun_args inv_kw_args kernel_params kw_args kwargs metric_params pairwise_kernels_kwargs
    solver_options
OBJECTS absolute_error epsilon_insensitive exponential gamma hinge huber linear log_loss
    modified_huber perceptron poisson quantile square squared_epsilon_insensitive squared_error
    squared_hinge: loss
fmin_l_bfgs_b: optimizer
precomputed: covariance
OBJECTS: covariance_estimator estimator final_estimator k1 k2 regressor transformer
OBJECTS drop passthrough: remainder
SIZE all: k param
SIZE auto: batch_size iterated_power max_samples n_features_to_select
SIZE auto mle: n_components
SIZE auto warn: n_init
SIZE log2 sqrt: max_features
<format>: verbose_feature_names_out
<importance>: importance_getter
<regex>: pattern token_pattern
<scaled> auto: threshold
{_CODECS}: encoding
content: input
FW D auto: path_method
LU QR auto none: power_iteration_normalizer
absolute_error aic bic deprecated entropy friedman_mse gini k_best log_loss poisson squared_error
    threshold: criterion
adam auto cd cholesky eigen highs highs-ds highs-ipm interior-point lbfgs liblinear lsqr mu
    newton-cg newton-cholesky revised~simplex sag saga sgd sparse_cg svd: solver
adaptive auto constant invscaling optimal pa1 pa2: learning_rate lr_schedule
all missing-only: features
amg arpack auto dense lobpcg randomized: eigen_solver
arabic ascending descending random roman: imputation_order
arbitrary-variance unit-variance: whiten
arpack auto ball_tree brute deflation elkan kd_tree lloyd nipals parallel randomized svd: algorithm
arpack auto covariance_eigh full randomized: svd_solver
arpack lapack randomized: svd_method
ascii unicode: strip_accents
auto: compute_full_tree contamination density dual early_stopping eigen_tol ensemble increasing
    normalized_stress shrinkage smooth sparse
auto ball_tree brute kd_tree: neighbors_algorithm
auto binary continuous multiclass: target_type
auto eigen svd: gcv_mode
OBJECTS auto identity log: link
auto scale: gamma
average complete single ward: linkage
averaged_inverted_cdf closest_observation hazen interpolated_inverted_cdf inverted_cdf linear
    median_unbiased normal_unbiased weibull: quantile_method
backward forward: direction
barnes_hut bistochastic box-cox cd exact hessian isotonic lars log ltsa modified scale sigmoid
    standard temperature yeo-johnson {_METHODS}: method
batch online: learning_method
best random: splitter
biggest_inertia largest_cluster: bisecting_strategy
both centroid medoid: store_centers
A B cd connectivity distance fdr fpr fwe k_best lars percentile: mode
cd lars: fit_algorithm
char char_wb word: analyzer
clip nan raise: out_of_bounds
cluster_qr discretize kmeans: assign_labels
concat: feature_name_combiner
constant continue error linear periodic: extrapolation
constant mean median most_frequent: initial_strategy
cube exp logcosh: fun
cyclic random: selection
dbscan xi: cluster_method
deprecated: probability shuffle
deprecated elasticnet l1 l2: penalty
deprecated euclidean precomputed: dissimilarity
diag full spherical tied: covariance_type
dict pair string: input_type
dirichlet_distribution dirichlet_process: weight_concentration_prior_type
eigh svd: whiten_solver
eom leaf: cluster_selection_method
error ignore infrequent_if_exist use_encoded_value warn: handle_unknown
error zeros: handle_missing
frobenius itakura-saito kullback-leibler: beta_loss
hard soft: voting
identity logistic relu tanh: activation
ignore replace strict: decode_error
k-means++ kmeans random random_from_data: init_params
lars lasso_cd lasso_lars omp threshold: transform_algorithm
normal uniform: output_distribution
one-to-one: feature_names_out
onehot onehot-dense ordinal: encode
ovo ovr: decision_function_shape
quartimax varimax: rotation
same: alpha_H
scott silverman: bandwidth
warn: copy use_legacy_attributes
"""

# Parameters that only versions before 1.9 have, and attributes of helpers that are not parameters.
_MORE = f"""
: approx_hessian constant_hessian force_int_remainder_cols t _stop_words_id
SIZE: n_alphas
OFF: skip_parameter_validation
ARRAYS: class_indexing_offsets f_cached ms rng velocities vs y_true_int y_true_one_hot
ARRAYS TEXT: estimator_params label
ARRAYS OBJECTS: closs interval_y_pred interval_y_true left right
canonical regression: deflation_mode
# Fitted attributes that control a model like parameters.
ARRAYS default pandas polars: _sklearn_output_config
{_ANSWERS}: _response_method chain_method_ stack_method_
FUNCTIONS: _kmeans_single _score_func
FUNCTIONS OBJECTS {_METRICS} {_KERNELS}: _metric effective_metric_ metric_
KEYWORDS: _kwargs _metric_params effective_metric_params_ metric_params_
NONE: _callback_fit_ctx _parent_callback_ctx _skl_callbacks _skl_callbacks_to_teardown like out
# Keywords of the functions on the list.
ARRAYS LABELS: labels target_names
ARRAYS raw_values uniform_average variance_weighted: multioutput
all pred true: normalize
auto crammer_singer multinomial one_vs_one one_vs_rest ovo ovr raise softmax: multi_class
SIZE binary macro micro samples weighted: average
batch group l1 l2 max: norm
mean none sum: reduction
no equiv safe same_kind unsafe: casting
warn: zero_division
ARRAYS auto: discrete_features
"""

# Parameters of letheon, and its attributes whose names have another meaning above.
_OURS = """
: calibration_rows clamp data_free deterministic fisher_rows huber_scale l2 max_distance max_error
    max_memory max_smoothness measure_distance min_curvature newton_step noise_seed patience
    regulariser row_norm sigma step_damping weight_decay burn_in period colsample step_bits
    weight_bits label_smoothing max_grad_norm test_time_flip warm_up LoRA.alpha
SIZE: history iterations lane_width n_blocks n_checkpoints n_copies n_shards n_slices n_steps
    n_people n_thresholds random_depth max_leaves n_chains skeleton_people accumulation_steps
    max_items n_probe LoRA.rank
GRID: param_grid
ARRAYS: Scaling.scale TargetCodes.scale TargetSums.scale arguments channels mean risk_edges std
    widths
ARRAYS SIZE: epochs hidden
ARRAYS LABELS all sampled: labels
ARRAYS OBJECTS: backbone steps_
ARRAYS OBJECTS lda ridge: head
ARRAYS OBJECTS clip keep normalize refuse: rows
ARRAYS OBJECTS TEXT: classes index method score weights link features scores state_
ARRAYS TEXT: target_modules
ARRAYS FUNCTIONS OBJECTS TEXT: augment
OBJECTS passthrough: ColumnPart.step
CLASSES OBJECTS: factory module
CLASSES adam adamw sgd: optimizer
FUNCTIONS OBJECTS cross_entropy log_loss poisson pseudo_huber squared squared_error: loss
OBJECTS drop passthrough: step
NONE: checkpoint_dir checkpoint_given_ checkpoint_home_
<device>: device
<name>: definition_name
KEYWORDS default diagram pandas polars sparray spmatrix text: config_
auto cudnn matmul: conv
basic distributed regularized-strong regularized-weak: variant
bfloat16 float32 tf32: precision
block one: stop_origin
constant cosine one-cycle: schedule
cached lbfgs: hessian
cosine jaccard lift: similarity
cumulative new: stage_data
data-dependent tightest worst-case: bound
diagonal kfac: fisher
downgrade raise: if_unproved
eager lazy: rebuild
fisher isotropic: covariance
float32 int64: row_dtype
linear none one-cycle: anneal
objective output: mechanism
max mean stride: pool
mean median vote: aggregation
paper residual robust theorem: stop
per_sample total: reg
published secret: state
"""

# Parameters of XGBoost and LightGBM with which two fits on the same rows are equal.
_XGBOOST = f"""
: base_score colsample_bylevel colsample_bynode colsample_bytree enable_categorical gamma
    huber_slope learning_rate max_cat_threshold max_cat_to_onehot max_delta_step min_child_weight
    missing random_state reg_alpha reg_lambda scale_pos_weight subsample tweedie_variance_power
    validate_parameters verbosity
ARRAYS: feature_weights monotone_constraints quantile_alpha
ARRAYS LABELS: feature_types interaction_constraints
ARRAYS aucpr auc error gamma-deviance gamma-nloglik logloss mae map mape merror mlogloss mphe
    poisson-nloglik rmse rmsle tweedie-nloglik: eval_metric
JOBS: n_jobs
KEYWORDS: kwargs
NONE: callbacks early_stopping_rounds
SIZE: max_bin max_depth max_leaves n_estimators num_parallel_tree
auto hist: tree_method
cover gain total_cover total_gain weight: importance_type
cpu: device
depthwise lossguide: grow_policy
gbtree: booster
one_output_per_tree: multi_strategy
uniform: sampling_method
{XGBOOST_OBJECTIVES}: objective
"""
_LIGHTGBM = f"""
: alpha bagging_seed boost_from_average cat_l2 cat_smooth colsample_bytree data_random_seed
    enable_bundle extra_seed extra_trees fair_c feature_fraction_bynode feature_fraction_seed
    feature_pre_filter force_col_wise force_row_wise is_enable_sparse is_unbalance learning_rate
    max_cat_threshold max_cat_to_onehot max_delta_step min_child_samples min_child_weight
    min_data_in_bin min_data_per_group min_split_gain monotone_penalty neg_bagging_fraction
    objective_seed other_rate path_smooth poisson_max_delta_step pos_bagging_fraction random_state
    reg_alpha reg_lambda reg_sqrt scale_pos_weight sigmoid subsample subsample_for_bin
    subsample_freq top_rate tweedie_variance_power use_missing verbose zero_as_missing
ARRAYS: interaction_constraints monotone_constraints
ARRAYS LABELS balanced: class_weight
JOBS: n_jobs
OFF: linear_tree use_quantized_grad
ON: deterministic
SIZE: max_bin max_depth n_estimators num_leaves
advanced basic intermediate: monotone_constraints_method
bagging goss: data_sample_strategy
cpu: device device_type
gain split: importance_type
gbdt: boosting_type
serial: tree_learner
{LIGHTGBM_OBJECTIVES}: objective
"""


def _by_name(*tables: str) -> dict[str, str]:
    rules = [pair for table in tables for pair in read_table(table)]
    return {name: rule for rule, names in rules for name in names}


_BOOSTERS = {_XGBOOST: "XGBClassifier XGBRegressor", _LIGHTGBM: "LGBMClassifier LGBMRegressor"}

# Name of an attribute -> rule. "Class.name" is the rule of one class only.
RULES: dict[str, str] = {
    **_by_name(_SKLEARN, _MORE),
    **{f"MetadataRequest.{method}": "OBJECTS" for method in _METHODS.split()},
    **{
        f"{name}.{parameter}": rule
        for table, names in _BOOSTERS.items()
        for name in names.split()
        for parameter, rule in _by_name(table).items()
    },
}
# Tag of an estimator of XGBoost or LightGBM -> the parameters that it may have.
BOOSTER_PARAMETERS: dict[str, frozenset[str]] = {
    f"{'xgboost' if name.startswith('X') else 'lightgbm'}.sklearn.{name}": frozenset(
        _by_name(table)
    )
    for table, names in _BOOSTERS.items()
    for name in names.split()
}
OUR_RULES: dict[str, str] = {**RULES, **_by_name(_OURS)}
