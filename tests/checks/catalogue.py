"""Which check must catch which cheat."""

from typing import Any

from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from tests.checks import cheats

BYTES = "check_canary_bytes_absent_from_saved_model"
AGGREGATES = "check_aggregates_do_not_reveal_the_row"
TRACE = "check_forgotten_values_leave_no_trace"
READER = "check_predict_while_forgetting"
SETTINGS = "check_changed_parameters_are_noticed"
DIGEST = "check_digest_depends_on_state"
FAILURE = "check_forget_failure_leaves_model_unchanged"
RETRAIN = "check_forget_equals_retrain"
BATCH = "check_forget_in_one_batch_equals_one_by_one"
MOVES = "check_forget_moves_answers_towards_retrain"

CHEATS: list[tuple[Any, str]] = [
    (cheats.IgnoresForget(Ridge()), RETRAIN),
    (cheats.IgnoresForget(Ridge()), MOVES),
    (cheats.KeepsTheModel(Ridge()), RETRAIN),
    (cheats.KeepsTheModel(StandardScaler()), MOVES),
    (cheats.KeepsTheModelAndDigestsRowsOnly(Ridge()), RETRAIN),
    (cheats.KeepsTheModelAndDigestsRowsOnly(Ridge()), DIGEST),
    (cheats.ChangesOnFailure(Ridge()), FAILURE),
    (cheats.LosesRowsOnFailure(Ridge()), FAILURE),
    (cheats.ConstantDigest(Ridge()), DIGEST),
    (cheats.DigestOfIds(Ridge()), DIGEST),
    (cheats.DigestsFloatsOnly(Ridge()), DIGEST),
    (cheats.DigestsNoLists(Ridge()), DIGEST),
    (cheats.LyingReceipt(Ridge()), "check_forget_removes_all_rows_of_a_person"),
    (cheats.RemembersOrder(DecisionTreeClassifier()), BATCH),
    (cheats.ClaimsTooMuch(Ridge()), "check_guarantee_is_honest"),
    (cheats.PredictLeavesATrace(Ridge()), "check_predict_is_pure"),
    (cheats.ShowsAnEmptyModel(Ridge()), READER),
    (cheats.ShowsHalfAModel(Ridge()), READER),
    (cheats.ShowsTheGapBetweenTwoAttributes(Ridge()), READER),
    (cheats.HasNoModelForAMoment(Ridge()), READER),
    (cheats.UndressesWhilePreparing(Ridge()), READER),
    (cheats.IgnoresSettings(Ridge()), SETTINGS),
    (cheats.IgnoresSettings(StandardScaler()), SETTINGS),
    (cheats.RefusesSettingsVaguely(Ridge()), SETTINGS),
    (cheats.NoticesNumbersOnly(Ridge()), SETTINGS),
    (cheats.ResurrectingSISA(DecisionTreeClassifier(), n_shards=2), BATCH),
]
