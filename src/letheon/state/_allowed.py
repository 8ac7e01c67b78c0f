"""Tables of classes and functions that a file may name, and of classes that no model may contain.

The tables are literal on purpose: every entry was added by hand. They come from
`sklearn.utils.all_estimators` of scikit-learn 1.9 and the helper types in fitted estimators. A name
that an older scikit-learn does not have cannot be imported there. Functions on the list only
compute: none of them reads or writes files, or calls its arguments. Classes that may be values are
called by the object that contains them, so their constructors must only compute, too.
"""

from collections.abc import Iterator

_SEARCH = (
    "it keeps wall times, so two fits on the same rows differ. Use "
    "letheon.ForgetSearchCV, which letheon.convert makes of a GridSearchCV or RandomizedSearchCV. "
    "Or put the search outside: GridSearchCV(NaiveUnlearner(estimator), ...)"
)

REFUSED: dict[str, str] = {
    "sklearn.model_selection._search.BaseSearchCV": _SEARCH,
    "sklearn.cluster._birch.Birch": (
        "its nodes refer to each other in circles; use MiniBatchKMeans or BisectingKMeans"
    ),
    "catboost.core.CatBoost": (
        "letheon cannot save models of CatBoost yet, so they could have no digest; use "
        "LightGBM or XGBoost"
    ),
    "joblib.memory.Memory": "it is a cache on disk that would keep forgotten rows",
}

# Types that occur as values, such as `dtype=np.float64` of an encoder.
_TYPES = """
builtins: bool int float complex str bytes object
numpy: bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 longlong ulonglong float16 float32
    float64 complex64 complex128 str_ bytes_ object_ datetime64 timedelta64 void generic number
    integer floating signedinteger unsignedinteger
"""

_CLASSES = """
lightgbm.sklearn: LGBMClassifier LGBMRegressor
sklearn._loss.link: HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit
sklearn._loss.loss: AbsoluteError ExponentialLoss HalfBinomialLoss HalfBinomialLossArrayAPI
    HalfGammaLoss HalfMultinomialLoss HalfMultinomialLossArrayAPI HalfPoissonLoss
    HalfPoissonLossArrayAPI HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity HuberLoss
    PinballLoss
sklearn.calibration: CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration
    _TemperatureScaling
sklearn.cluster._affinity_propagation: AffinityPropagation
sklearn.cluster._agglomerative: AgglomerativeClustering FeatureAgglomeration
sklearn.cluster._bicluster: SpectralBiclustering SpectralCoclustering
sklearn.cluster._birch: Birch
sklearn.cluster._bisect_k_means: BisectingKMeans _BisectingTree
sklearn.cluster._dbscan: DBSCAN
sklearn.cluster._hdbscan.hdbscan: HDBSCAN
sklearn.cluster._kmeans: KMeans MiniBatchKMeans
sklearn.cluster._mean_shift: MeanShift
sklearn.cluster._optics: OPTICS
sklearn.cluster._spectral: SpectralClustering
sklearn.compose._column_transformer: ColumnTransformer make_column_selector
sklearn.compose._target: TransformedTargetRegressor
sklearn.covariance._elliptic_envelope: EllipticEnvelope
sklearn.covariance._empirical_covariance: EmpiricalCovariance
sklearn.covariance._graph_lasso: GraphicalLasso GraphicalLassoCV
sklearn.covariance._robust_covariance: MinCovDet
sklearn.covariance._shrunk_covariance: LedoitWolf OAS ShrunkCovariance
sklearn.cross_decomposition._pls: CCA PLSCanonical PLSRegression PLSSVD
sklearn.decomposition._dict_learning: DictionaryLearning MiniBatchDictionaryLearning SparseCoder
sklearn.decomposition._factor_analysis: FactorAnalysis
sklearn.decomposition._fastica: FastICA
sklearn.decomposition._incremental_pca: IncrementalPCA
sklearn.decomposition._kernel_pca: KernelPCA
sklearn.decomposition._lda: LatentDirichletAllocation
sklearn.decomposition._nmf: MiniBatchNMF NMF
sklearn.decomposition._pca: PCA
sklearn.decomposition._sparse_pca: MiniBatchSparsePCA SparsePCA
sklearn.decomposition._truncated_svd: TruncatedSVD
sklearn.discriminant_analysis: LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis
sklearn.dummy: DummyClassifier DummyRegressor
sklearn.ensemble._bagging: BaggingClassifier BaggingRegressor
sklearn.ensemble._forest: ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier
    RandomForestRegressor RandomTreesEmbedding
sklearn.ensemble._gb: GradientBoostingClassifier GradientBoostingRegressor
sklearn.ensemble._hist_gradient_boosting.binning: _BinMapper
sklearn.ensemble._hist_gradient_boosting.gradient_boosting: HistGradientBoostingClassifier
    HistGradientBoostingRegressor
sklearn.ensemble._iforest: IsolationForest
sklearn.ensemble._stacking: StackingClassifier StackingRegressor
sklearn.ensemble._voting: VotingClassifier VotingRegressor
sklearn.ensemble._weight_boosting: AdaBoostClassifier AdaBoostRegressor
sklearn.feature_extraction._dict_vectorizer: DictVectorizer
sklearn.feature_extraction._hash: FeatureHasher
sklearn.feature_extraction.image: PatchExtractor
sklearn.feature_extraction.text: CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer
sklearn.feature_selection._from_model: SelectFromModel
sklearn.feature_selection._rfe: RFE RFECV
sklearn.feature_selection._sequential: SequentialFeatureSelector
sklearn.feature_selection._univariate_selection: GenericUnivariateSelect SelectFdr SelectFpr
    SelectFwe SelectKBest SelectPercentile
sklearn.feature_selection._variance_threshold: VarianceThreshold
sklearn.frozen._frozen: FrozenEstimator
sklearn.gaussian_process._gpc: GaussianProcessClassifier _BinaryGaussianProcessClassifierLaplace
sklearn.gaussian_process._gpr: GaussianProcessRegressor
sklearn.gaussian_process.kernels: CompoundKernel ConstantKernel DotProduct ExpSineSquared
    Exponentiation Matern PairwiseKernel Product RBF RationalQuadratic Sum WhiteKernel
sklearn.impute._base: MissingIndicator SimpleImputer
sklearn.impute._iterative: IterativeImputer
sklearn.impute._knn: KNNImputer
sklearn.isotonic: IsotonicRegression
sklearn.kernel_approximation: AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler
    SkewedChi2Sampler
sklearn.kernel_ridge: KernelRidge
sklearn.linear_model._base: LinearRegression
sklearn.linear_model._bayes: ARDRegression BayesianRidge
sklearn.linear_model._coordinate_descent: ElasticNet ElasticNetCV Lasso LassoCV MultiTaskElasticNet
    MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV
sklearn.linear_model._glm.glm: GammaRegressor PoissonRegressor TweedieRegressor
    _GeneralizedLinearRegressor
sklearn.linear_model._huber: HuberRegressor
sklearn.linear_model._least_angle: Lars LarsCV LassoLars LassoLarsCV LassoLarsIC
sklearn.linear_model._logistic: LogisticRegression LogisticRegressionCV
sklearn.linear_model._omp: OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV
sklearn.linear_model._passive_aggressive: PassiveAggressiveClassifier PassiveAggressiveRegressor
sklearn.linear_model._perceptron: Perceptron
sklearn.linear_model._quantile: QuantileRegressor
sklearn.linear_model._ransac: RANSACRegressor
sklearn.linear_model._ridge: Ridge RidgeCV RidgeClassifier RidgeClassifierCV
sklearn.linear_model._stochastic_gradient: SGDClassifier SGDOneClassSVM SGDRegressor
sklearn.linear_model._theil_sen: TheilSenRegressor
sklearn.manifold._classical_mds: ClassicalMDS
sklearn.manifold._isomap: Isomap
sklearn.manifold._locally_linear: LocallyLinearEmbedding
sklearn.manifold._mds: MDS
sklearn.manifold._spectral_embedding: SpectralEmbedding
sklearn.manifold._t_sne: TSNE
sklearn.metrics._scorer: _CurveScorer _MultimetricScorer _PassthroughScorer _Scorer
sklearn.mixture._bayesian_mixture: BayesianGaussianMixture
sklearn.mixture._gaussian_mixture: GaussianMixture
sklearn.model_selection._classification_threshold: FixedThresholdClassifier
    TunedThresholdClassifierCV
sklearn.model_selection._split: BaseCrossValidator BaseShuffleSplit GroupKFold GroupShuffleSplit
    KFold LeaveOneGroupOut LeaveOneOut LeavePGroupsOut LeavePOut PredefinedSplit RepeatedKFold
    RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold StratifiedKFold StratifiedShuffleSplit
    TimeSeriesSplit _CVIterableWrapper
sklearn.multiclass: OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier _ConstantPredictor
sklearn.multioutput: ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain
sklearn.naive_bayes: BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB
sklearn.neighbors._classification: KNeighborsClassifier RadiusNeighborsClassifier
sklearn.neighbors._graph: KNeighborsTransformer RadiusNeighborsTransformer
sklearn.neighbors._kde: KernelDensity
sklearn.neighbors._lof: LocalOutlierFactor
sklearn.neighbors._nca: NeighborhoodComponentsAnalysis
sklearn.neighbors._nearest_centroid: NearestCentroid
sklearn.neighbors._regression: KNeighborsRegressor RadiusNeighborsRegressor
sklearn.neighbors._unsupervised: NearestNeighbors
sklearn.neural_network._multilayer_perceptron: MLPClassifier MLPRegressor
sklearn.neural_network._rbm: BernoulliRBM
sklearn.neural_network._stochastic_optimizers: AdamOptimizer SGDOptimizer
sklearn.pipeline: FeatureUnion Pipeline
sklearn.preprocessing._data: Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer
    PowerTransformer QuantileTransformer RobustScaler StandardScaler
sklearn.preprocessing._discretization: KBinsDiscretizer
sklearn.preprocessing._encoders: OneHotEncoder OrdinalEncoder
sklearn.preprocessing._function_transformer: FunctionTransformer
sklearn.preprocessing._label: LabelBinarizer LabelEncoder MultiLabelBinarizer
sklearn.preprocessing._polynomial: PolynomialFeatures SplineTransformer
sklearn.preprocessing._target_encoder: TargetEncoder
sklearn.random_projection: GaussianRandomProjection SparseRandomProjection
sklearn.semi_supervised._label_propagation: LabelPropagation LabelSpreading
sklearn.semi_supervised._self_training: SelfTrainingClassifier
sklearn.svm._classes: LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR
sklearn.tree._classes: DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier
    ExtraTreeRegressor
sklearn.utils._metadata_requests: MetadataRequest MethodMetadataRequest
xgboost.sklearn: XGBClassifier XGBRegressor
"""

# Classes that may be values: an optimiser or a network may be given as its class.
_CLASS_VALUES = """
letheon.deep._nets: CNN MLP ResNet
torch.optim.adadelta: Adadelta
torch.optim.adagrad: Adagrad
torch.optim.adam: Adam
torch.optim.adamax: Adamax
torch.optim.adamw: AdamW
torch.optim.asgd: ASGD
torch.optim.nadam: NAdam
torch.optim.radam: RAdam
torch.optim.rmsprop: RMSprop
torch.optim.rprop: Rprop
torch.optim.sgd: SGD
"""

_FUNCTIONS = """
numpy: absolute add amax amin arccos arccosh arcsin arcsinh arctan arctan2 arctanh asarray average
    bitwise_and bitwise_count bitwise_or bitwise_xor cbrt ceil clip conjugate copysign cos cosh
    cumsum deg2rad degrees diff divide divmod equal exp exp2 expm1 fabs float_power floor
    floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside hypot invert isfinite
    isinf isnan isnat lcm ldexp left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor matmul matvec max maximum mean median min minimum
    modf multiply nan_to_num nanmax nanmean nanmedian nanmin nansum negative nextafter not_equal
    positive power prod ptp rad2deg radians ravel reciprocal remainder right_shift rint round sign
    signbit sin sinh spacing sqrt square squeeze std subtract sum tan tanh trunc var vecdot vecmat
    where
scipy.special: boxcox erf erfc exp10 expit expm1 gammaln inv_boxcox log1p logit xlogy
sklearn.cluster._kmeans: _kmeans_single_elkan _kmeans_single_lloyd
sklearn.feature_selection._mutual_info: mutual_info_classif mutual_info_regression
sklearn.feature_selection._univariate_selection: chi2 f_classif f_oneway f_regression r_regression
sklearn.metrics._classification: accuracy_score balanced_accuracy_score brier_score_loss
    class_likelihood_ratios classification_report cohen_kappa_score confusion_matrix d2_brier_score
    d2_log_loss_score f1_score fbeta_score hamming_loss hinge_loss jaccard_score log_loss
    matthews_corrcoef multilabel_confusion_matrix precision_recall_fscore_support precision_score
    recall_score zero_one_loss
sklearn.metrics._ranking: auc average_precision_score confusion_matrix_at_thresholds coverage_error
    dcg_score det_curve label_ranking_average_precision_score label_ranking_loss
    metric_at_thresholds ndcg_score precision_recall_curve roc_auc_score roc_curve
    top_k_accuracy_score
sklearn.metrics._regression: d2_absolute_error_score d2_pinball_score d2_tweedie_score
    explained_variance_score max_error mean_absolute_error mean_absolute_percentage_error
    mean_gamma_deviance mean_pinball_loss mean_poisson_deviance mean_squared_error
    mean_squared_log_error mean_tweedie_deviance median_absolute_error r2_score
    root_mean_squared_error root_mean_squared_log_error
sklearn.metrics.cluster._bicluster: consensus_score
sklearn.metrics.cluster._supervised: adjusted_mutual_info_score adjusted_rand_score
    completeness_score fowlkes_mallows_score homogeneity_completeness_v_measure homogeneity_score
    mutual_info_score normalized_mutual_info_score pair_confusion_matrix rand_score v_measure_score
sklearn.metrics.cluster._unsupervised: calinski_harabasz_score davies_bouldin_score
    silhouette_samples silhouette_score
sklearn.metrics.pairwise: additive_chi2_kernel chi2_kernel cosine_distances cosine_similarity
    euclidean_distances haversine_distances laplacian_kernel linear_kernel manhattan_distances
    nan_euclidean_distances pairwise_distances_argmin pairwise_distances_argmin_min pairwise_kernels
    polynomial_kernel rbf_kernel sigmoid_kernel
sklearn.utils.validation: check_array
torch.nn.functional: binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss
    l1_loss mse_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss
    smooth_l1_loss soft_margin_loss
"""


def read_table(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the entries of a table: the text before the colon, and the words after it.

    An entry continues in indented lines; a line that begins with ``#`` is a comment.
    """
    for entry in text.replace("\n    ", " ").strip().split("\n"):
        head, _, words = entry.rpartition(":")
        if not entry.startswith("#"):
            yield head, words.split()


def _qualify_names(text: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for module, names in read_table(text) for name in names)


TYPES = _qualify_names(_TYPES)
CLASSES = _qualify_names(_CLASSES)
CLASS_VALUES = _qualify_names(_CLASS_VALUES)
FUNCTIONS = _qualify_names(_FUNCTIONS)
