"""The key ring: safe files, rotation, revocation, destruction, and what a kill leaves."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from letheon.exceptions import CorruptFileError, KeyFileError
from letheon.ledger import core
from letheon.ledger.keys.derivation import commit_to_key, derive_training_seed
from letheon.ledger.keys.keyring import KINDS, KeyRing
from letheon.verifier import Trust, VerificationError
from tests.ledger.key_kills import ACTIONS, LEDGER


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ring") / "home"
    KeyRing.create(home)
    return home


@pytest.fixture
def home(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "home"))


@pytest.fixture
def ring(home: Path) -> KeyRing:
    return KeyRing(home)


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def key_files(home: Path) -> list[Path]:
    return sorted((home / "keys").glob("*.key"))


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def check_ring(home: Path) -> KeyRing:
    """Raise unless the ring opens, has one current key, and has lost no published key."""
    ring = KeyRing(home)
    for keyid, key in ring.trust().keys.items():
        assert ring.signer_for(keyid).public == key.public
    assert (home / "keys" / "current").read_text() == f"{ring.signer.keyid}\n"
    assert Trust.from_pinned(ring.root, ring.statements()).current == ring.signer.keyid
    return ring


def test_a_ring_signs_seals_and_tags_as_before_when_it_is_opened_again(home: Path) -> None:
    ring = KeyRing(home)
    key = ring.new_key("epoch")
    sealed, tag = ring.encrypt(key, b"rows", b"c"), ring.compute_tag("person", b"ann")
    again = KeyRing(home)
    assert again.signer.sign(b"x") == ring.signer.sign(b"x")
    assert again.decrypt(key, sealed, b"c") == b"rows"
    assert again.compute_tag("person", b"ann") == tag


def test_tags_of_other_purposes_parts_and_rings_differ(ring: KeyRing, tmp_path: Path) -> None:
    other = KeyRing.create(tmp_path / "other")
    tags = {
        ring.compute_tag("person", b"ann"),
        ring.compute_tag("request", b"ann"),
        ring.compute_tag("person", b"an", b"n"),
        ring.compute_tag("person", b"a", b"nn"),
        other.compute_tag("person", b"ann"),
    }
    assert len(tags) == 5


def test_ids_by_kind_and_label(ring: KeyRing) -> None:
    plain, mine, other = (ring.new_key("epoch", label) for label in ("", "a1", "a12"))
    intake = ring.new_key("intake", "a1")
    assert ring.list_ids("epoch") == sorted([plain, mine, other])
    assert ring.list_ids("epoch", "a1") == [mine]
    assert ring.list_ids("epoch", "") == [plain]
    assert ring.list_ids("intake") == [intake]


@pytest.mark.parametrize(
    ("kind", "label"), [("sign", ""), ("tag", ""), ("epoch", "A"), ("epoch", "../x")]
)
def test_kinds_and_labels_that_are_none(ring: KeyRing, kind: str, label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        ring.new_key(kind, label)


@pytest.mark.parametrize("key_id", ["tag", "sign-" + "0" * 64, "../keys/tag", "epoch-1", ""])
def test_what_must_not_be_destroyed_is_not(ring: KeyRing, home: Path, key_id: str) -> None:
    before = key_files(home)
    with pytest.raises(ValueError, match="not the id"):
        ring.destroy(key_id)
    assert key_files(home) == before


def test_seeds_follow_from_key_and_beacon(ring: KeyRing) -> None:
    key = ring.new_key("training")
    seed = ring.derive_seed(key, b"beacon")
    assert seed == derive_training_seed(ring.read_secret(key), b"beacon")
    assert seed != ring.derive_seed(key, b"another")
    assert 0 <= seed < 2**128
    assert ring.commit_to(key) == commit_to_key(ring.read_secret(key))


def test_files_are_private_whatever_the_mask(tmp_path: Path, no_mask: None) -> None:
    home = tmp_path / "home"
    ring = KeyRing.create(home)
    for kind in KINDS:
        ring.new_key(kind)
    ring.rotate(LEDGER, 0)
    assert modes(home / "keys") == {0o600}
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_refused(home: Path) -> None:
    (home / "keys").chmod(0o750)
    with pytest.raises(KeyFileError, match=f"chmod 700 {home / 'keys'}"):
        KeyRing(home)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_use_is_refused(home: Path, mode: int) -> None:
    key_files(home)[0].chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {key_files(home)[0]}"):
        KeyRing(home)


def test_a_file_opened_to_others_later_is_refused_at_its_next_use(ring: KeyRing) -> None:
    key = ring.new_key("epoch")
    ring._files.path_of(key).chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        ring.read_secret(key)


def test_every_damaged_byte_of_a_key_is_noticed(ring: KeyRing) -> None:
    key = ring.new_key("epoch")
    path = ring._files.path_of(key)
    whole = path.read_bytes()
    mutants = [whole[:-1], whole + b"\n", b"", bytes(len(whole))]
    mutants += [
        whole[:i] + bytes([whole[i] ^ flip]) + whole[i + 1 :]
        for i in range(len(whole))
        for flip in (1, 2, 32, 128)
    ]
    for mutant in mutants:
        path.write_bytes(mutant)
        with pytest.raises(KeyFileError, match="damaged"):
            ring.read_secret(key)


def test_exchanged_keys_are_noticed(ring: KeyRing) -> None:
    one, two = ring.new_key("epoch"), ring.new_key("epoch")
    ring._files.path_of(one).write_bytes(ring._files.path_of(two).read_bytes())
    with pytest.raises(KeyFileError, match="damaged"):
        ring.read_secret(one)


def test_a_missing_key_is_named(home: Path) -> None:
    (home / "keys" / "tag.key").unlink()
    with pytest.raises(KeyFileError, match=r"tag\.key is missing"):
        KeyRing(home)


def test_a_link_is_no_key(ring: KeyRing) -> None:
    key = ring.new_key("epoch")
    path = ring._files.path_of(key)
    elsewhere = path.rename(path.with_suffix(".moved"))
    path.symlink_to(elsewhere)
    with pytest.raises(KeyFileError, match="cannot be read"):
        ring.read_secret(key)


def test_a_folder_without_a_ring(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="key folder"):
        KeyRing(tmp_path)


def test_a_complete_ring_is_not_made_again(home: Path) -> None:
    root = KeyRing(home).root
    with pytest.raises(KeyFileError, match="already"):
        KeyRing.create(home)
    assert KeyRing(home).root == root


def linked_copy_after_destruction(ring: KeyRing, folder: Path) -> tuple[bytes, bytes]:
    """Return a key's secret, and what a second name of its file holds after its destruction."""
    key = ring.new_key("epoch")
    secret = ring.read_secret(key)
    (folder / "second-name").hardlink_to(ring._files.path_of(key))
    ring.destroy(key)
    assert not ring.has(key)
    return secret, (folder / "second-name").read_bytes()


def test_destruction_overwrites_before_it_unlinks(ring: KeyRing, tmp_path: Path) -> None:
    secret, left = linked_copy_after_destruction(ring, tmp_path)
    assert left == bytes(len(left))
    assert secret.hex().encode() not in left


def test_the_look_at_the_second_name_catches_a_mere_unlink(
    ring: KeyRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_overwrite_with_zeros", lambda path: None)
    secret, left = linked_copy_after_destruction(ring, tmp_path)
    assert secret.hex().encode() in left


def test_nothing_of_a_destroyed_key_is_in_the_home(ring: KeyRing, home: Path) -> None:
    key = ring.new_key("epoch")
    secret = ring.read_secret(key)
    ring.destroy(key)
    ring.destroy(key)
    held = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert secret not in held
    assert secret.hex().encode() not in held
    with pytest.raises(KeyFileError, match="missing"):
        ring.read_secret(key)


def disk_calls(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[str]:
    """Return the calls that change the disk, in order; those on folders are marked."""
    calls: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            calls.append(f"{name} folder" if folder else name)
            return call(*args, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "replace", "unlink"):
            patch.setattr(os, name, noted(name, getattr(os, name)))
        action()
    return calls


def test_everything_reaches_the_disk_in_order(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ["write", "fsync", "replace", "fsync folder"]
    assert disk_calls(monkeypatch, lambda: ring.new_key("epoch")) == kept
    gone = ["write", "fsync", "unlink", "fsync folder"]
    assert disk_calls(monkeypatch, lambda: ring.destroy(ring.list_ids("epoch")[0])) == gone
    # The private key, the statement, the name of the current key.
    assert disk_calls(monkeypatch, lambda: ring.rotate(LEDGER, 1)) == 3 * kept


def test_a_key_that_cannot_be_overwritten_stays_and_says_so(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ring.new_key("epoch")

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            ring.destroy(key)
    assert ring.has(key)
    ring.destroy(key)
    assert not ring.has(key)


def test_rotation_and_revocation_convince_the_verifier(ring: KeyRing) -> None:
    first = ring.signer
    ring.rotate(LEDGER, 5)
    second = ring.signer
    ring.revoke(LEDGER, first.keyid, 3)
    trust = Trust.from_pinned(first.public.hex(), ring.statements())
    assert trust.key(first.keyid, 3) == first.public
    assert trust.key(second.keyid, 6) == second.public
    for keyid, sequence in [(first.keyid, 4), (second.keyid, 5)]:
        with pytest.raises(VerificationError):
            trust.key(keyid, sequence)


def test_the_key_for_a_sequence_is_the_one_that_the_verifier_trusts(ring: KeyRing) -> None:
    for last in (2, 2, 4, 7):
        ring.rotate(LEDGER, last)
    trust = ring.trust()
    for sequence in range(1, 10):
        signer = ring.signer_at(sequence)
        assert trust.key(signer.keyid, sequence) == signer.public


def test_for_a_sequence_whose_key_was_revoked_the_current_key_speaks(ring: KeyRing) -> None:
    first = ring.signer
    ring.rotate(LEDGER, 5)
    ring.revoke(LEDGER, first.keyid, 3)
    assert [ring.signer_at(sequence) == first for sequence in (3, 4, 5, 6)] == [True] + [False] * 3
    current = ring.signer_at(4)
    assert ring.trust().key(current.keyid, 4, later=True) == current.public


def test_a_statement_that_no_verifier_accepts_is_not_published(ring: KeyRing) -> None:
    ring.rotate(LEDGER, 5)
    before = ring.statements()
    with pytest.raises(VerificationError, match="the old key ends before"):
        ring.rotate(LEDGER, 2)
    with pytest.raises(VerificationError, match="another ledger"):
        ring.rotate("prod-eu-2", 9)
    assert ring.statements() == before
    ring.rotate(LEDGER, 6)
    assert len(ring._files.list_names("sign-")) == 3


def test_the_current_key_cannot_be_revoked(ring: KeyRing) -> None:
    with pytest.raises(KeyFileError, match="rotate the keys first"):
        ring.revoke(LEDGER, ring.signer.keyid, 1)
    with pytest.raises(KeyFileError, match="not the id of a signing key"):
        ring.revoke(LEDGER, "0" * 64, 1)


def test_another_process_sees_a_rotation_at_once(home: Path, ring: KeyRing) -> None:
    before = ring.signer.keyid
    KeyRing(home).rotate(LEDGER, 1)
    assert ring.signer.keyid != before
    assert ring.signer_at(1).keyid == before


def test_an_altered_statement_stops_the_ring(home: Path) -> None:
    KeyRing(home).rotate(LEDGER, 1)
    statement = home / "public" / "keys" / "0001.json"
    statement.write_bytes(statement.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(KeyFileError, match="are not valid"):
        KeyRing(home)


def test_a_statement_that_was_taken_away_stops_the_ring(home: Path) -> None:
    KeyRing(home).rotate(LEDGER, 1)
    (home / "public" / "keys" / "0001.json").unlink()
    with pytest.raises(KeyFileError, match="restore the missing statements"):
        KeyRing(home)


def test_threads_that_make_keys_do_not_disturb_each_other(ring: KeyRing) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend(ring.new_key("intake") for _ in range(5)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ring.list_ids("intake") == sorted(made)
    assert len({ring.read_secret(key) for key in made}) == 20


def test_sealed_under_another_key_is_refused(ring: KeyRing) -> None:
    one, two = ring.new_key("epoch"), ring.new_key("epoch")
    with pytest.raises(CorruptFileError):
        ring.decrypt(two, ring.encrypt(one, b"rows", b""), b"")


Kills = dict[str, list[Path]]


@pytest.fixture(scope="module")
def kills(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """Return, by action, the homes that kills at every step left, and that of a whole run."""
    base = tmp_path_factory.mktemp("kills")
    sources, out = base / "sources", base / "out"
    for action in set(ACTIONS) - {"create"}:
        shutil.copytree(pristine, sources / action)
    (sources / "create").mkdir()
    KeyRing(sources / "destroy").new_key("epoch")
    KeyRing(sources / "revoke").rotate(LEDGER, 3)
    call = [sys.executable, "-m", "tests.ledger.key_kills", str(sources), str(out)]
    subprocess.run(call, check=True, cwd=Path(__file__).parents[2], timeout=300)
    return {action.name: sorted(action.iterdir()) for action in out.iterdir()}


def test_a_kill_anywhere_in_the_making_of_a_ring(kills: Kills) -> None:
    assert len(kills["create"]) > 15
    for home in kills["create"]:
        root = home / "public" / "keys" / "root.pub"
        published = root.read_text() if root.exists() else None
        if not KeyRing.is_complete(home):
            KeyRing.create(home)
        ring = check_ring(home)
        assert published in (None, f"{ring.root}\n")
        assert len(ring._files.list_names("sign-")) == 1


def test_a_kill_anywhere_in_the_making_of_a_key(kills: Kills) -> None:
    homes = kills["new_key"]
    assert len(homes) > 5
    for home in homes:
        ring = check_ring(home)
        assert all(len(ring.read_secret(key)) == 32 for key in ring.list_ids("epoch"))
        ring.new_key("epoch")
        assert not list((home / "keys").glob(".*.partial"))
    assert {len(KeyRing(home).list_ids("epoch")) for home in homes} == {1, 2}


def test_a_kill_anywhere_in_a_destruction(kills: Kills) -> None:
    homes = kills["destroy"]
    assert len(homes) > 5
    (key,) = KeyRing(homes[0]).list_ids("epoch")
    secret = KeyRing(homes[0]).read_secret(key).hex().encode()
    for home in homes:
        check_ring(home).destroy(key)
        held = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
        assert secret not in held


def rotated_to(home: Path) -> int:
    """Return the number of rotations a kill left, after a check of the ring and one more."""
    ring = check_ring(home)
    done = len(ring.statements())
    ring.rotate(LEDGER, 4)
    check_ring(home)
    assert len(ring._files.list_names("sign-")) == done + 2
    return done


def test_a_kill_anywhere_in_a_rotation(kills: Kills) -> None:
    assert len(kills["rotate"]) > 15
    assert {rotated_to(home) for home in kills["rotate"]} == {0, 1}


def test_a_kill_anywhere_in_a_revocation(kills: Kills) -> None:
    assert {len(check_ring(home).statements()) for home in kills["revoke"]} == {1, 2}


@pytest.mark.parametrize("bug", ["rotate_carelessly", "rotate_in_place"])
def test_the_kills_catch_a_rotation_in_a_wrong_order(kills: Kills, bug: str) -> None:
    caught = 0
    for home in kills[bug]:
        try:
            check_ring(home)
        except KeyFileError:
            caught += 1
    assert caught > 0
