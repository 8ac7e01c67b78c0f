r"""The key ring of a ledger: signing keys, the key of tags, and keys that are made to be destroyed.

Private parts lie in ``keys``, public ones in ``public/keys``: the first public key and the
statements that rotate and revoke keys, numbered from 1. The statements decide which key is the
current one; the file ``keys/current`` repeats it, and its first writing completes a new ring.

A sealed text is ``letheon-seal-v1\n``, a random name of 16 bytes, the size of a chunk and the
length of the text (8 bytes each, big-endian), and then per chunk a random nonce of 12 bytes and
the chunk under AES-256-GCM. The associated data of chunk i is all of that header, i, and the
context. So a chunk that was altered, moved, dropped, or taken from another text is refused.
"""

import contextlib
import hashlib
import hmac
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from letheon.exceptions import CorruptFileError, KeyFileError
from letheon.ledger.core import destroy_file, lock_file
from letheon.ledger.keys.signing import Signer, new_seed, sign_statement
from letheon.state import sync_directory, write_atomically
from letheon.verifier import REVOCATION, ROTATION, STATEMENT_TYPE, Trust, from_hex, keyid_of

KEY_BYTES = 32
CHUNK = 64 << 20
_MAGIC = b"letheon-seal-v1\n"
_HEADER = struct.Struct(">16s16sQQ")
_INDEX = struct.Struct(">Q")
_NONCE, _TAG = 12, 16
_MOST_CHUNK = 1 << 30

Buffer = bytes | bytearray | memoryview


class Cipher(NamedTuple):
    """A key of 32 bytes that was read, for many texts."""

    secret: bytes

    def encrypt(self, data: Buffer, context: bytes) -> bytes:
        """Return the data encrypted and authenticated.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            The text, of any length.
        context : bytes
            What the text is, and of what; `unseal` refuses any other.

        Guarantee
        ---------
        Confidential and authentic under AES-256-GCM for up to 2**32 chunks per key: nonces are
        random. Who destroys the key destroys the text.
        """
        cipher, text = AESGCM(self.secret), memoryview(data).cast("B")
        header = _HEADER.pack(_MAGIC, os.urandom(16), CHUNK, len(text))
        pieces = [header]
        for index, (begin, end) in enumerate(_chunk_ranges(len(text), CHUNK)):
            nonce = os.urandom(_NONCE)
            sealed = cipher.encrypt(
                nonce, text[begin:end], _associated_data(header, index, context)
            )
            pieces += [nonce, sealed]
        return b"".join(pieces)

    def decrypt(self, sealed: Buffer, context: bytes) -> bytes:
        """Return the data that was sealed under this key and in this context.

        Raises
        ------
        CorruptFileError
            If a byte was altered, or the key or the context is another one.
        """
        text = memoryview(sealed).cast("B")
        if len(text) < _HEADER.size or text[: len(_MAGIC)] != _MAGIC:
            raise CorruptFileError("this is no sealed text of letheon, or it is truncated")
        header = bytes(text[: _HEADER.size])
        _, _, chunk, length = _HEADER.unpack(header)
        if not 0 < chunk <= _MOST_CHUNK or length > len(text):
            raise CorruptFileError("the header of a sealed text was altered")
        n_chunks = max(1, -(-length // chunk))
        if len(text) != _HEADER.size + length + n_chunks * (_NONCE + _TAG):
            raise CorruptFileError("a sealed text is truncated, or something was added to it")
        cipher, pieces, at = AESGCM(self.secret), [], _HEADER.size
        for index, (begin, end) in enumerate(_chunk_ranges(length, chunk)):
            body = at + _NONCE
            after = body + end - begin + _TAG
            bound = _associated_data(header, index, context)
            try:
                pieces.append(cipher.decrypt(text[at:body], text[body:after], bound))
            except InvalidTag:
                raise CorruptFileError(
                    "a sealed text was altered, or its key or its context is another one"
                ) from None
            at = after
        return b"".join(pieces)


def _chunk_ranges(length: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each chunk; an empty text has one, which is empty."""
    for begin in range(0, max(length, 1), chunk):
        yield begin, min(begin + chunk, length)


def _associated_data(header: bytes, index: int, context: bytes) -> bytes:
    return header + _INDEX.pack(index) + context


def compute_tag(key: bytes, *parts: bytes) -> str:
    """Return the HMAC-SHA256 of parts, each after its length, so that none runs into the next."""
    message = b"".join([_INDEX.pack(len(part)) + part for part in parts])
    return hmac.digest(key, message, "sha256").hex()


def derive_key(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Return HKDF-SHA256 of a key (RFC 5869)."""
    kdf: Any = HKDF(algorithm=SHA256(), length=length, salt=salt, info=info)
    derived: bytes = kdf.derive(key)
    return derived


def derive_training_seed(secret: bytes, beacon: bytes) -> int:
    """Return the seed of 128 bits that a training key and a later beacon give.

    ``seed = HKDF-SHA256(key, salt = beacon, info = "letheon/training-seed/v1")``. The key is
    committed before the beacon is known, so nobody chooses the seed.
    """
    return int.from_bytes(derive_key(secret, beacon, b"letheon/training-seed/v1", 16), "big")


def commit_to_key(secret: bytes) -> str:
    """Return ``SHA-256("letheon/key-commitment/v1" || key)``: it tells nothing of a random key."""
    return hashlib.sha256(b"letheon/key-commitment/v1" + secret).hexdigest()


_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{16})\n")
_LONGEST = 128
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFiles:
    """The folder of secrets, by name (without ``.key``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder; it may be there already, if nobody else can look into it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self.folder.parent)
        self.require_private()

    def require_private(self) -> None:
        """Refuse a folder or a file that others can read or write."""
        try:
            _require_private(self.folder, self.folder.stat(), "700")
        except (FileNotFoundError, NotADirectoryError):
            raise KeyFileError(
                f"there is no folder of keys at {self.folder}; without it nothing can be signed "
                "or unsealed: restore it, or make a new ledger"
            ) from None
        for path in self.folder.glob("*.key"):
            with contextlib.suppress(FileNotFoundError):
                _require_private(path, path.lstat(), "600")

    def path_of(self, name: str) -> Path:
        """Return where the secret of this name lies."""
        return self.folder / f"{name}.key"

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return self.path_of(name).exists()

    def list_names(self, start: str = "") -> list[str]:
        """Return all names that begin so, sorted."""
        return sorted(path.stem for path in self.folder.glob(f"{start}*.key"))

    def read(self, name: str) -> bytes:
        """Return a secret.

        Raises
        ------
        KeyFileError
            If it is missing, damaged, a link, or readable by others.
        """
        path = self.path_of(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise KeyFileError(f"the key {path} is missing: destroyed, or never here") from None
        except OSError as error:
            raise KeyFileError(f"the key {path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            _require_private(path, os.fstat(descriptor), "600")
            line = file.read(_LONGEST).decode("ascii", "replace")
        found = _LINE.fullmatch(line)
        secret = bytes.fromhex(found[1]) if found else b""
        if found is None or not hmac.compare_digest(_checksum(name, secret), found[2]):
            raise KeyFileError(
                f"the key {path} is damaged, or its destruction was interrupted; restore it from "
                "a copy, or destroy it again"
            )
        return secret

    def write(self, name: str, secret: bytes) -> None:
        """Write a new secret; it is on the disk when this returns. For the holder of the lock."""
        if self.has(name):
            raise KeyFileError(f"there is a key {self.path_of(name)} already; it is never replaced")
        line = f"{secret.hex()} {_checksum(name, secret)}\n"
        write_atomically(self.path_of(name), [line.encode()])

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[int]:
        """Keep other writers out, and destroy what writers left that died; give how many files."""
        with lock_file(self.folder / ".lock"):
            left = list(self.folder.glob(".*.partial"))
            for partial in left:
                destroy_file(partial)
            yield len(left)


def _require_private(path: Path, status: os.stat_result, mode: str) -> None:
    if status.st_mode & _OTHERS:
        raise KeyFileError(
            f"others can use {path} (mode {stat.S_IMODE(status.st_mode):04o}); type: "
            f"chmod {mode} {path}"
        )


def _checksum(name: str, secret: bytes) -> str:
    text = b"letheon/key-check/v1\n" + name.encode() + b"\n" + secret
    return hashlib.sha256(text).hexdigest()[:16]


KINDS = ("epoch", "intake", "training", "noise", "purge")
_ID = re.compile(rf"(?:{'|'.join(KINDS)})(?:-[a-z0-9]{{1,64}})?-[0-9a-f]{{16}}")
_LABEL = re.compile("[a-z0-9]{0,64}")
_TAG_KEY = "tag"


class _KeyChain(NamedTuple):
    """What the public files say: the first key, the statements, and whom to trust."""

    root: str
    statements: tuple[bytes, ...]
    trust: Trust


class KeyRing:
    """The keys in the home of a ledger.

    Parameters
    ----------
    home : Path
        Folder of the ledger, which holds ``keys`` and ``public/keys``.

    Raises
    ------
    KeyFileError
        If a key is missing, damaged, or can be used by others.

    Notes
    -----
    Keys that will be destroyed are read anew at every use. What stays in this object is the key of
    tags and the signing keys.
    """

    def __init__(self, home: Path) -> None:
        self._files, self._public = KeyFiles(home / "keys"), home / "public" / "keys"
        self._files.require_private()
        self._signers: dict[str, Signer] = {}
        self._known: _KeyChain | None = None
        self._guard = threading.Lock()
        if not self.is_complete(home):
            raise KeyFileError(f"the key ring in {home} was never completed; make the ledger again")
        self._tag_key = self._files.read(_TAG_KEY)
        self._repair_current_file()

    @classmethod
    def create(cls, home: Path) -> Self:
        """Make a new ring, or complete one whose making was interrupted; not a second one."""
        files, public = KeyFiles(home / "keys"), home / "public" / "keys"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.create()
        public.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(public.parent)
        sync_directory(home)
        with files.hold_lock():
            if cls.is_complete(home):
                raise KeyFileError(f"there is a key ring in {home} already")
            keyid = _make_first_key(files, public)
            if not files.has(_TAG_KEY):
                files.write(_TAG_KEY, os.urandom(KEY_BYTES))
            _write_line(files.folder / "current", keyid)
        return cls(home)

    @staticmethod
    def is_complete(home: Path) -> bool:
        """Return whether `create` went through in this folder; if not, it can be repeated."""
        return (home / "keys" / "current").exists()

    @property
    def root(self) -> str:
        """The first public key in hexadecimal: what an auditor pins."""
        return self._load_chain().root

    @property
    def signer(self) -> Signer:
        """The current signing key."""
        return self.signer_for(self._load_chain().trust.current)

    def signer_at(self, sequence: int) -> Signer:
        """Return the key for the certificate of this sequence, whatever was rotated since.

        If that key was revoked before the sequence, no key can sign the certificate any more, and
        the current one is returned: it can still speak of the certificate, as a purge does.
        """
        trust = self._load_chain().trust
        counts = [keyid for keyid, key in trust.keys.items() if key.first <= sequence <= key.last]
        return self.signer_for(counts[-1] if counts else trust.current)

    def signer_for(self, keyid: str) -> Signer:
        """Return the signing key of this name, or raise `KeyFileError`."""
        if keyid not in self._signers:
            self._signers[keyid] = _read_signer(self._files, keyid)
        return self._signers[keyid]

    def statements(self) -> list[bytes]:
        """Return the envelopes of rotations and revocations, in order."""
        return list(self._load_chain().statements)

    def trust(self) -> Trust:
        """Return whom a verifier trusts who has pinned `root`."""
        return self._load_chain().trust

    def compute_tag(self, purpose: str, *parts: bytes) -> str:
        """Return the HMAC of parts, in hexadecimal; other purposes give unrelated tags."""
        return compute_tag(self._tag_key, purpose.encode(), *parts)

    def new_key(self, kind: str, label: str = "") -> str:
        """Make a key and return its id; the file is on the disk then.

        Parameters
        ----------
        kind : {"epoch", "intake", "training", "noise", "purge"}
            What it is for.
        label : str, default=""
            Whose it is, in lower-case letters and digits, to find it again by `ids`.
        """
        if kind not in KINDS or not _LABEL.fullmatch(label):
            raise ValueError(f"kind={kind!r} is not one of {KINDS}, or label={label!r} is no label")
        key_id = "-".join(filter(None, [kind, label, os.urandom(8).hex()]))
        with self._files.hold_lock():
            self._files.write(key_id, os.urandom(KEY_BYTES))
        return key_id

    def has(self, key_id: str) -> bool:
        """Return whether the key is still there."""
        return self._files.has(_require_key_id(key_id))

    def list_ids(self, kind: str, label: str | None = None) -> list[str]:
        """Return the ids of all keys of a kind, or of those with one label."""
        found = [name for name in self._files.list_names(f"{kind}-") if _ID.fullmatch(name)]
        if label is None:
            return found
        start = f"{kind}-{label}-" if label else f"{kind}-"
        return [name for name in found if len(name) == len(start) + 16 and name.startswith(start)]

    def read_secret(self, key_id: str) -> bytes:
        """Return a key itself, for whoever may recompute what it gave."""
        return self._files.read(_require_key_id(key_id))

    def load_cipher(self, key_id: str) -> Cipher:
        """Return what seals and unseals under a key, which is read once; keep it for a moment."""
        return Cipher(self.read_secret(key_id))

    def encrypt(self, key_id: str, data: Buffer, context: bytes) -> bytes:
        """Return the data sealed under a key."""
        return self.load_cipher(key_id).encrypt(data, context)

    def decrypt(self, key_id: str, sealed: Buffer, context: bytes) -> bytes:
        """Return data that were sealed under a key."""
        return self.load_cipher(key_id).decrypt(sealed, context)

    def commit_to(self, key_id: str) -> str:
        """Return the public commitment to a key."""
        return commit_to_key(self.read_secret(key_id))

    def derive_seed(self, key_id: str, beacon: bytes) -> int:
        """Return the seed of 128 bits that a key and a beacon give."""
        return derive_training_seed(self.read_secret(key_id), beacon)

    def destroy(self, key_id: str) -> None:
        """Overwrite and remove a key, durably; one that is gone is no error."""
        path = self._files.path_of(_require_key_id(key_id))
        with self._files.hold_lock():
            destroy_file(path)

    def list_partial_files(self) -> list[Path]:
        """Return files that are being written, or that a writer left that died."""
        folders = (self._files.folder, self._public)
        return [path for folder in folders for path in sorted(folder.glob(".*.partial"))]

    def remove_partial_files(self) -> int:
        """Destroy what writers of keys and statements left that died; return how many files."""
        if not self.list_partial_files():
            return 0
        with self._files.hold_lock() as n_keys:
            left = self.list_partial_files()
            for path in left:
                destroy_file(path)
        return n_keys + len(left)

    def rotate(self, ledger_id: str, sequence: int) -> bytes:
        """Make a new signing key the current one and return the statement that says so.

        Parameters
        ----------
        ledger_id : str
            Name of the ledger.
        sequence : int
            The last certificate that the old key signs; later ones need the new key.

        Notes
        -----
        The private key is on the disk before the statement names its public key, and the
        statement's file is what makes the rotation happen: a crash leaves the old key or the new
        one. A key that no statement came to name is erased by the next rotation.
        """
        with self._files.hold_lock():
            chain = self._load_chain()
            old = self.signer_for(chain.trust.current)
            for name in self._files.list_names("sign-"):  # that no statement came to name
                if name.removeprefix("sign-") not in chain.trust.keys:
                    destroy_file(self._files.path_of(name))
            new = _make_signer(self._files)
            predicate = {
                "oldKey": old.keyid,
                "newKey": {"keyid": new.keyid, "public": new.public.hex()},
                "lastSequence": sequence,
            }
            envelope = self._publish_statement(
                chain, ledger_id, ROTATION, new.keyid, predicate, old, new
            )
            _write_line(self._current_file, new.keyid)
        return envelope

    def revoke(self, ledger_id: str, keyid: str, after_sequence: int) -> bytes:
        """Return the statement that a key is not trusted after a sequence, signed by the current.

        Raises
        ------
        KeyFileError
            If it is the current key (rotate first) or none of this ring.
        """
        with self._files.hold_lock():
            chain = self._load_chain()
            if keyid not in chain.trust.keys:
                raise KeyFileError(f"{keyid!r} is no signing key of this ledger")
            if keyid == chain.trust.current:
                raise KeyFileError("the current key cannot revoke itself; rotate first")
            predicate = {"revokedKey": keyid, "lastSequence": after_sequence}
            signer = self.signer_for(chain.trust.current)
            return self._publish_statement(chain, ledger_id, REVOCATION, keyid, predicate, signer)

    @property
    def _current_file(self) -> Path:
        return self._files.folder / "current"

    def _load_chain(self) -> _KeyChain:
        """Return what the public files say now; another process may have rotated."""
        paths = sorted(self._public.glob("[0-9][0-9][0-9][0-9].json"))
        with self._guard:
            if self._known is None or len(self._known.statements) != len(paths):
                root = _read_root(self._public / "root.pub").hex()
                statements = tuple(path.read_bytes() for path in paths)
                try:
                    trust = Trust.from_pinned(root, list(statements))
                except ValueError as error:
                    raise KeyFileError(
                        f"the statements in {self._public} do not hold: {error}"
                    ) from error
                self._known = _KeyChain(root, statements, trust)
            return self._known

    def _repair_current_file(self) -> None:
        """Bring ``keys/current`` up to the statements, after a crash between the two."""
        said = self._current_file.read_text("ascii", "replace").removesuffix("\n")
        chain = self._load_chain()
        if said == chain.trust.current:
            return
        if re.fullmatch("[0-9a-f]{64}", said) and said not in chain.trust.keys:
            raise KeyFileError(
                f"{self._current_file} names a key that no statement in {self._public} introduces; "
                "restore the newer statements"
            )
        with self._files.hold_lock():
            _write_line(self._current_file, self._load_chain().trust.current)

    def _publish_statement(
        self,
        chain: _KeyChain,
        ledger_id: str,
        kind: str,
        subject: str,
        predicate: dict[str, Any],
        *signers: Signer,
    ) -> bytes:
        """Sign the next statement, see that a verifier accepts it, and publish it."""
        number, known = len(chain.statements) + 1, chain.trust.statements
        before = {"sha256": known[-1]} if known else "genesis"
        place = {"id": ledger_id, "number": number, "previousStatement": before}
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": ledger_id, "digest": {"sha256": subject}}],
            "predicateType": kind,
            "predicate": {"ledger": place, **predicate},
        }
        envelope = sign_statement(statement, *signers)
        Trust.from_pinned(chain.root, [*chain.statements, envelope])
        write_atomically(self._public / f"{number:04d}.json", [envelope])
        return envelope


def _make_first_key(files: KeyFiles, public: Path) -> str:
    """Return the keyid of the first signing key; made and published unless that was done."""
    root = public / "root.pub"
    if root.exists():
        return _read_signer(files, keyid_of(_read_root(root))).keyid
    for name in files.list_names("sign-"):
        destroy_file(files.path_of(name))
    signer = _make_signer(files)
    _write_line(root, signer.public.hex())
    return signer.keyid


def _make_signer(files: KeyFiles) -> Signer:
    seed = new_seed()
    signer = Signer.from_seed(seed)
    files.write(f"sign-{signer.keyid}", seed)
    return signer


def _read_signer(files: KeyFiles, keyid: str) -> Signer:
    signer = Signer.from_seed(files.read(f"sign-{keyid}"))
    if signer.keyid != keyid:
        raise KeyFileError(f"the key {files.path_of(f'sign-{keyid}')} is another one than its name")
    return signer


def _read_root(path: Path) -> bytes:
    try:
        return from_hex(path.read_text("ascii").removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise KeyFileError(f"the first public key {path} is missing or damaged: {error}") from error


def _write_line(path: Path, line: str) -> None:
    write_atomically(path, [f"{line}\n".encode()])


def _require_key_id(key_id: str) -> str:
    if not _ID.fullmatch(key_id):
        raise ValueError(f"{key_id!r} is no id of a key that can be destroyed")
    return key_id
