"""Published data and remaining rows do not reveal who was erased.

The game: one of many candidates was in the data and was erased. The attacker has everything that
the ledger publishes about it, the rows that are left, the method and its seeds, and 32 candidates,
of whom one is right. For each of the 2^16 people of the pool it retrains the model with that person
and hashes it, hashes the person's row, id and request, and looks all hashes up in what was
published. Everything is made by the ledger's own functions (blob, salts, slots, tree, proof, root
of requests), without a database. The tiny model is the mean of the rows: its bytes with one more
person are a sum and two hashes, so that 2^16 retrainings take a second. Draws are seeded, so that a
99 % interval cannot fail by bad luck.

The same attacks are then made on all files of a real ledger, with real models.
"""

import hashlib
import re
import secrets
import types
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier, state
from letheon.data import Rows, as_ids
from letheon.ledger import Ledger
from letheon.ledger import core as _blobs
from letheon.ledger.certificates.facts import JudgementBasis
from letheon.ledger.certificates.statement import requests_root
from letheon.ledger.core import BlobStore
from letheon.ledger.db.log import compute_root
from letheon.ledger.models import commitment
from letheon.ledger.models.commitment import build_tree, count_slots, draw_row_slots, encode_rows
from letheon.ledger.worker.compute import Computation, compute
from letheon.verifier import leaf_hash, parse_strict, slot_leaf
from tests.ledger.residue import quick_folder

POOL = 1 << 16
GAMES = 2_048
HINTS = 32
N_LEFT = 20
ZEROS = bytes(32)
# Zeros would be residue: a purge looks for the salts of the erased.
KNOWN_SALT = hashlib.sha256(b"publicly known").digest()


class Draws:
    """A source of randomness that is the same in every run, or that gives nothing but zeros."""

    def __init__(self, seed: int, *, blinding: bool = True) -> None:
        self._rng = np.random.default_rng(seed)
        self._blinding = blinding

    def token_bytes(self, size: int) -> bytes:
        return self._rng.bytes(size) if self._blinding else bytes(size)

    def token_hex(self, size: int) -> str:
        # Names of files and ids of requests are no blinding.
        return self._rng.bytes(size).hex()


def seed_draws(
    patch: pytest.MonkeyPatch, *, nonces: bool = True, salts: bool = True, slots: bool = True
) -> None:
    """Make the ledger's draws repeatable, and switch a kind of blinding off."""
    patch.setattr(_blobs, "secrets", Draws(1, blinding=nonces))
    patch.setattr(commitment, "secrets", Draws(2, blinding=salts))
    urandom = types.SimpleNamespace(urandom=Draws(3, blinding=slots).token_bytes)
    patch.setattr(commitment, "os", urandom)


@dataclass(frozen=True)
class Pool:
    """People who may have been erased, and remaining people."""

    X: Any
    ids: list[str]
    left: Rows

    def rows_with(self, person: int) -> Rows:
        one = Rows(self.X[person : person + 1], None, as_ids([self.ids[person]]))
        return self.left.concat(one)


@dataclass(frozen=True)
class PublishedModels:
    """What one erasure makes public; the proof is the auditor's."""

    before: str
    after: str
    root_before: bytes
    root_after: bytes
    proof: bytes
    requests: str


@pytest.fixture(scope="module")
def pool() -> Pool:
    rng = np.random.default_rng(0)
    left = Rows(rng.normal(size=(N_LEFT, 3)), None, as_ids([f"q{n:07d}" for n in range(N_LEFT)]))
    return Pool(rng.normal(size=(POOL, 3)), [f"p{n:07d}" for n in range(POOL)], left)


def train(X: Any) -> dict[str, Any]:
    """Return the tiny model; rows are added one after another, so a row more is one sum more."""
    return {"mean": np.add.reduce(X, axis=0) / len(X), "rows": len(X)}


class PlainCipher:
    """Seals nothing: the address must not tell anything by itself."""

    def encrypt(self, data: bytes) -> bytes:
        return data

    def decrypt(self, data: bytes) -> bytes:
        return data


def erase(person: int, pool: Pool, blobs: BlobStore, rng: np.random.Generator) -> PublishedModels:
    """Do with the ledger's own functions what it does when one person is erased."""
    rows = pool.rows_with(person)
    slots = count_slots(len(rows))
    vault = draw_row_slots(len(rows), slots)
    tree = build_tree(rows, vault, slots)
    proof, after = tree.transition(vault.slots[-1:])
    return PublishedModels(
        before=blobs.write(state.encode(train(rows.X)), PlainCipher()),
        after=blobs.write(state.encode(train(pool.left.X)), PlainCipher()),
        root_before=tree.root,
        root_after=after.root,
        proof=proof,
        requests=requests_root([(rng.bytes(32).hex(), rng.bytes(16).hex())]),
    )


class BlobAttacker:
    """Looks hashes of every candidate up in what was published."""

    def __init__(self, pool: Pool) -> None:
        self.known: dict[bytes, int] = {}
        rows = encode_rows(Rows(pool.X, None, as_ids(pool.ids)))
        models = retrained(pool)
        for person, (row, model, name) in enumerate(zip(rows, models, pool.ids, strict=True)):
            guesses = (
                hashlib.sha256(model).digest(),
                hashlib.sha256(ZEROS + model).digest(),
                hashlib.sha256(row).digest(),
                slot_leaf(ZEROS, N_LEFT, row),
                slot_leaf(b"", N_LEFT, row),
                hashlib.sha256(name.encode()).digest(),
                compute_root([leaf_hash(hashlib.sha256(ZEROS + name.encode()).digest())]),
            )
            self.known.update(dict.fromkeys(guesses, person))

    def guess(self, seen: PublishedModels, hints: list[int], rng: np.random.Generator) -> int:
        """Return whom the hashes point to, or one of the hints at random."""
        for digest in digests_in(seen):
            if self.known.get(digest) in hints:
                return self.known[digest]
        return int(rng.choice(hints))


def retrained(pool: Pool) -> Iterator[bytes]:
    """The model's bytes with each candidate: all but the means and the checksum stay the same."""
    encoded = state.encode(train(pool.rows_with(0).X))
    means = (np.add.reduce(pool.left.X, axis=0) + pool.X) / (N_LEFT + 1)
    place = encoded.index(means[0].tobytes())
    head = encoded.index(hashlib.sha256(encoded[len(b"letheon-state-v1\0") + 32 :]).digest())
    before, after = encoded[head + 32 : place], encoded[place + means[0].nbytes :]
    for mean in means:
        body = before + mean.tobytes() + after
        yield encoded[:head] + hashlib.sha256(body).digest() + body


def digests_in(seen: PublishedModels) -> Iterator[bytes]:
    yield from (bytes.fromhex(seen.before), bytes.fromhex(seen.after), bytes.fromhex(seen.requests))
    yield from (seen.root_before, seen.root_after)
    proof = parse_strict(seen.proof)
    yield from (bytes.fromhex(leaf["leaf"]) for leaf in proof["erased"])
    yield from (bytes.fromhex(sibling) for sibling in proof["siblings"])


def play(pool: Pool, attacker: BlobAttacker, n_games: int) -> int:
    """Return how many games the attacker wins."""
    rng, wins = np.random.default_rng(7), 0
    with quick_folder() as folder:
        blobs = BlobStore(folder)
        for _ in range(n_games):
            hints = rng.choice(POOL, HINTS, replace=False).tolist()
            erased = hints[int(rng.integers(HINTS))]
            seen = erase(erased, pool, blobs, rng)
            wins += attacker.guess(seen, hints, rng) == erased
    return wins


@pytest.fixture(scope="module")
def attacker(pool: Pool) -> BlobAttacker:
    return BlobAttacker(pool)


def test_attacker_knows_how_to_retrain(pool: Pool) -> None:
    models = list(retrained(pool))
    for person in (0, 1, 77, POOL - 1):
        assert models[person] == state.encode(train(pool.rows_with(person).X))


def test_games_are_won_by_chance_alone(
    pool: Pool, attacker: BlobAttacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_draws(monkeypatch)
    least, most = binom.interval(0.99, GAMES, 1 / HINTS)
    assert least <= play(pool, attacker, GAMES) <= most


@pytest.mark.parametrize("off", ["nonces", "salts"])
def test_games_are_won_without_blinding(
    off: str, pool: Pool, attacker: BlobAttacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_draws(monkeypatch, **{off: False})
    assert play(pool, attacker, 512) > 0.99 * 512


@pytest.mark.parametrize("secret", [True, False])
def test_slot_does_not_show_who_came_when(secret: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_draws(monkeypatch, slots=secret)
    rng, wins, slots = np.random.default_rng(5), 0, count_slots(HINTS)
    for _ in range(GAMES):
        erased = int(rng.integers(HINTS))
        slot = int(draw_row_slots(HINTS, slots).slots[erased])
        wins += (slot if slot < HINTS else int(rng.integers(HINTS))) == erased
    least, most = binom.interval(0.99, GAMES, 1 / HINTS)
    assert (least <= wins <= most) if secret else wins > 0.99 * GAMES


MODELS: dict[str, Callable[[], Any]] = {
    "naive": lambda: NaiveUnlearner(GaussianNB(), random_state=0),
    "sisa": lambda: SISAClassifier(LogisticRegression(), n_shards=2, random_state=0),
    "forest": lambda: DaREForestClassifier(n_estimators=3, max_depth=3, random_state=0),
}


def facts_of_each(name: str, **given: Any) -> list[dict[str, Any]]:
    """Return the facts of a certificate if the first, second, ... person is erased."""
    rng = np.random.default_rng(3)
    y = np.arange(24) % 2
    X, ids = rng.normal(size=(24, 3)) + y[:, None], [f"r{number:07d}" for number in range(24)]
    rows = Rows(X, y, as_ids(ids))
    model = MODELS[name]().fit(X, y, ids=ids)
    training = {"rule": "caller-seed-v1", "beacon": "none", "keyCommitment": "00" * 32, "key": ""}
    facts = []
    for person in ids[:6]:
        job = Computation(
            kind="erase",
            model=state.encode(model),
            rows=state.encode(rows),
            ids=[person],
            trusted=(),
            judged=JudgementBasis(None, rows, 0.5),
            training=training,
            since_retrain=0,
            retrain_seconds_per_row=None,
            **given,
        )
        facts.append(compute(job).facts)
    return facts


@pytest.mark.parametrize("name", sorted(MODELS))
def test_figures_of_an_exact_method_do_not_depend_on_who_was_erased(name: str) -> None:
    facts = facts_of_each(name)
    blinded = [other.pop("predictor")["sha256"] for other in facts]
    assert all(other == facts[0] for other in facts)
    assert len({*blinded}) == len(blinded)


def test_the_predictors_digest_confirms_a_guess_only_with_the_nonce() -> None:
    guesses, same = (facts_of_each("forest", nonce=bytes(32)) for _ in range(2))
    hidden = facts_of_each("forest")
    assert [facts["predictor"] for facts in guesses] == [facts["predictor"] for facts in same]
    assert not any(facts["predictor"] in [g["predictor"] for g in guesses] for facts in hidden)


def public_digests(folder: Path) -> set[bytes]:
    """Every value of 32 bytes in any file, plain, in hexadecimal digits, or inside base64."""
    digests: set[bytes] = set()
    for file in folder.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        texts = [data, *map(b64decode, re.findall(rb'"payload":"([^"]+)"', data))]
        hexes = (word for text in texts for word in re.findall(rb"[0-9a-f]{64}", text))
        digests.update(bytes.fromhex(word.decode()) for word in hexes)
        digests.update(b64decode(word) for word in re.findall(rb"\n([A-Za-z0-9+/]{43}=)\n", data))
        digests.add(hashlib.sha256(data).digest())
    return digests


def candidate_digests(X: Any, y: Any, ids: list[str], person: int, left: Rows) -> set[bytes]:
    """What an auditor who has the rows that are left computes for one candidate."""
    one = Rows(X[person : person + 1], y[person : person + 1], as_ids([ids[person]]))
    rows = left.concat(one)
    model = MODELS["naive"]().fit(rows.X, rows.y, ids=rows.ids.to_array())
    encoded, row = state.encode(model), next(iter(encode_rows(one)))
    return {
        bytes.fromhex(state.digest(model)),
        *(hashlib.sha256(start + encoded).digest() for start in (b"", ZEROS)),
        *(slot_leaf(salt, len(left), row) for salt in (b"", ZEROS, KNOWN_SALT)),
        *(hashlib.sha256(start + ids[person].encode()).digest() for start in (b"", ZEROS)),
        hashlib.sha256(row).digest(),
    }


@pytest.mark.parametrize("blinding", [True, False])
def test_files_of_a_real_ledger_fit_no_candidate(
    blinding: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blinding:
        nonces = types.SimpleNamespace(token_bytes=bytes, token_hex=secrets.token_hex)
        monkeypatch.setattr(_blobs, "secrets", nonces)
        salts = types.SimpleNamespace(token_bytes=lambda size: KNOWN_SALT * (size // 32))
        monkeypatch.setattr(commitment, "secrets", salts)
    rng = np.random.default_rng(4)
    n_left, n_candidates, erased = 20, 64, 41
    X, y = rng.normal(size=(n_left + n_candidates, 3)), np.arange(n_left + n_candidates) % 2
    ids = [f"person-{number:04d}" for number in range(len(X))]
    held = [*range(n_left), n_left + erased]
    model = MODELS["naive"]().fit(X[held], y[held], ids=[ids[number] for number in held])
    with quick_folder() as folder, closing(Ledger.create(folder / "h", name="game")) as ledger:
        ledger.models.register(model, X[held], y[held], ids=[ids[n] for n in held], name="m")
        ledger.requests.submit([ids[n_left + erased]], model="m", verified=True)
        ledger.run_once(force=True)
        assert [request.state for request in ledger.requests.list()] == ["purged"]
        seen = public_digests(ledger.export(tmp_path / "bundle", tier="auditor"))
    left = Rows(X[:n_left], y[:n_left], as_ids(ids[:n_left]))
    suspects = [
        person
        for person in range(n_candidates)
        if seen & candidate_digests(X[n_left:], y[n_left:], ids[n_left:], person, left)
    ]
    assert suspects == ([] if blinding else [erased])
