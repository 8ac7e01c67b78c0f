r"""Key ring of a ledger: signing keys, the tag key, and keys that will be destroyed.

Private keys are in ``keys``. ``public/keys`` contains the first public key and the statements that
rotate and revoke keys, numbered from 1. The statements decide which key is current. The file
``keys/current`` names the current key again; a new key ring is complete once this file exists.

An encrypted text is ``letheon-seal-v1\n``, 16 random bytes, the chunk size and the text length (8
bytes each, big-endian), and then for each chunk a random nonce of 12 bytes and the chunk encrypted
with AES-256-GCM. The associated data of chunk i is the header, i, and the context, so that a chunk
that was changed, moved, dropped, or taken from another text is rejected.
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

from letheon.exceptions import CorruptFileError, KeyFileError
from letheon.ledger.core import destroy_file, lock_file
from letheon.ledger.keys.derivation import commit_to_key, compute_tag, derive_training_seed
from letheon.ledger.keys.signing import Signer, new_seed, sign_statement
from letheon.state import sync_directory, write_atomically
from letheon.verifier import (
    REVOCATION,
    ROTATION,
    STATEMENT_TYPE,
    Trust,
    from_hex,
    keyid_of,
)

KEY_BYTES = 32
CHUNK = 64 << 20
_MAGIC = b"letheon-seal-v1\n"
_HEADER = struct.Struct(">16s16sQQ")
_INDEX = struct.Struct(">Q")
_NONCE, _TAG = 12, 16
_MOST_CHUNK = 1 << 30

Buffer = bytes | bytearray | memoryview


class Cipher(NamedTuple):
    """Encryption with a key of 32 bytes in memory."""

    secret: bytes

    def encrypt(self, data: Buffer, context: bytes) -> bytes:
        """Return the data encrypted and authenticated.

        AES-256-GCM with random nonces, for up to 2**32 chunks per key. Destroying the key makes the
        data unrecoverable.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            Data of any length.
        context : bytes
            Purpose and owner of the data; `decrypt` requires the same context.
        """
        cipher, text = AESGCM(self.secret), memoryview(data).cast("B")
        header = _HEADER.pack(_MAGIC, os.urandom(16), CHUNK, len(text))
        pieces = [header]
        for index, (begin, end) in enumerate(_chunk_ranges(len(text), CHUNK)):
            nonce = os.urandom(_NONCE)
            encrypted = cipher.encrypt(
                nonce, text[begin:end], _associated_data(header, index, context)
            )
            pieces += [nonce, encrypted]
        return b"".join(pieces)

    def decrypt(self, encrypted: Buffer, context: bytes) -> bytes:
        """Return the data that was encrypted with this key and context.

        Raises
        ------
        CorruptFileError
            The data was changed, or the key or the context is wrong.
        """
        text = memoryview(encrypted).cast("B")
        if len(text) < _HEADER.size or text[: len(_MAGIC)] != _MAGIC:
            raise CorruptFileError("not an encrypted file of letheon, or a truncated one")
        header = bytes(text[: _HEADER.size])
        _, _, chunk, length = _HEADER.unpack(header)
        if not 0 < chunk <= _MOST_CHUNK or length > len(text):
            raise CorruptFileError("an encrypted file is damaged: its header was changed")
        n_chunks = max(1, -(-length // chunk))
        if len(text) != _HEADER.size + length + n_chunks * (_NONCE + _TAG):
            raise CorruptFileError("an encrypted file is truncated, or data was added to it")
        cipher, pieces, at = AESGCM(self.secret), [], _HEADER.size
        for index, (begin, end) in enumerate(_chunk_ranges(length, chunk)):
            body = at + _NONCE
            after = body + end - begin + _TAG
            associated_data = _associated_data(header, index, context)
            try:
                pieces.append(cipher.decrypt(text[at:body], text[body:after], associated_data))
            except InvalidTag:
                raise CorruptFileError(
                    "an encrypted file was changed, or the key or context is wrong"
                ) from None
            at = after
        return b"".join(pieces)


def _chunk_ranges(length: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each chunk; an empty text has one empty chunk."""
    for begin in range(0, max(length, 1), chunk):
        yield begin, min(begin + chunk, length)


def _associated_data(header: bytes, index: int, context: bytes) -> bytes:
    return header + _INDEX.pack(index) + context


_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{16})\n")
_LONGEST = 128
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFiles:
    """Folder of key files, addressed by name (without ``.key``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Create the folder if it is missing; raise `KeyFileError` if other users can access it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self.folder.parent)
        self.require_private()

    def require_private(self) -> None:
        """Raise `KeyFileError` if other users can access the folder or a key file."""
        try:
            _require_private(self.folder, self.folder.stat(), "700")
        except (FileNotFoundError, NotADirectoryError):
            raise KeyFileError(
                f"the key folder {self.folder} is missing; nothing can be signed or decrypted "
                "without it. Restore the folder from a backup, or create a new ledger"
            ) from None
        for path in self.folder.glob("*.key"):
            with contextlib.suppress(FileNotFoundError):
                _require_private(path, path.lstat(), "600")

    def path_of(self, name: str) -> Path:
        """Return the path of the key file with this name."""
        return self.folder / f"{name}.key"

    def has(self, name: str) -> bool:
        """Return whether a key file with this name exists."""
        return self.path_of(name).exists()

    def list_names(self, start: str = "") -> list[str]:
        """Return the names of all keys that begin with `start`, sorted."""
        return sorted(path.stem for path in self.folder.glob(f"{start}*.key"))

    def read(self, name: str) -> bytes:
        """Return the secret in the key file with this name.

        Raises
        ------
        KeyFileError
            The file is missing, damaged, a link, or readable by other users.
        """
        path = self.path_of(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise KeyFileError(
                f"the key {path} is missing; it was destroyed or never existed"
            ) from None
        except OSError as error:
            raise KeyFileError(f"the key {path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            _require_private(path, os.fstat(descriptor), "600")
            line = file.read(_LONGEST).decode("ascii", "replace")
        match = _LINE.fullmatch(line)
        secret = bytes.fromhex(match[1]) if match else b""
        if match is None or not hmac.compare_digest(_checksum(name, secret), match[2]):
            raise KeyFileError(
                f"the key {path} is damaged, or its destruction was interrupted; restore the key "
                "from a backup, or repeat the destruction"
            )
        return secret

    def write(self, name: str, secret: bytes) -> None:
        """Write a new secret durably; the caller must hold the lock."""
        if self.has(name):
            raise KeyFileError(
                f"the key {self.path_of(name)} already exists; key files are never replaced"
            )
        line = f"{secret.hex()} {_checksum(name, secret)}\n"
        write_atomically(self.path_of(name), [line.encode()])

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[int]:
        """Lock out other writers and destroy partial files; yield the number of partial files."""
        with lock_file(self.folder / ".lock"):
            partials = list(self.folder.glob(".*.partial"))
            for partial in partials:
                destroy_file(partial)
            yield len(partials)


def _require_private(path: Path, status: os.stat_result, mode: str) -> None:
    if status.st_mode & _OTHERS:
        raise KeyFileError(
            f"other users can access {path} (mode {stat.S_IMODE(status.st_mode):04o}); run: "
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
    """Content of the public files: the first key, the statements, and the trusted keys."""

    root: str
    statements: tuple[bytes, ...]
    trust: Trust


class KeyRing:
    """The keys in the folder of a ledger.

    Parameters
    ----------
    home : Path
        Folder of the ledger, with ``keys`` and ``public/keys``.

    Raises
    ------
    KeyFileError
        A key is missing, damaged, or accessible to other users.

    Notes
    -----
    Keys that will be destroyed are read from disk at every use. Only the tag key and the signing
    keys stay in memory.
    """

    def __init__(self, home: Path) -> None:
        self._files, self._public = KeyFiles(home / "keys"), home / "public" / "keys"
        self._files.require_private()
        self._signers: dict[str, Signer] = {}
        self._known: _KeyChain | None = None
        self._guard = threading.Lock()
        if not self.is_complete(home):
            raise KeyFileError(
                f"the key ring in {home} is incomplete; restore keys/ from a backup, or create the "
                "ledger again if it was never used"
            )
        self._tag_key = self._files.read(_TAG_KEY)
        self._repair_current_file()

    @classmethod
    def create(cls, home: Path) -> Self:
        """Create a key ring, or complete an interrupted creation.

        Raise `KeyFileError` if the folder contains a complete key ring.
        """
        files, public = KeyFiles(home / "keys"), home / "public" / "keys"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.create()
        public.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(public.parent)
        sync_directory(home)
        with files.hold_lock():
            if cls.is_complete(home):
                raise KeyFileError(f"{home} already contains a key ring; use a new folder")
            keyid = _make_first_key(files, public)
            if not files.has(_TAG_KEY):
                files.write(_TAG_KEY, os.urandom(KEY_BYTES))
            _write_line(files.folder / "current", keyid)
        return cls(home)

    @staticmethod
    def is_complete(home: Path) -> bool:
        """Return whether this folder has a complete key ring; if not, `create` can be repeated."""
        return (home / "keys" / "current").exists()

    @property
    def root(self) -> str:
        """First public key in hexadecimal, which verifiers pin."""
        return self._load_chain().root

    @property
    def signer(self) -> Signer:
        """Current signing key."""
        return self.signer_for(self._load_chain().trust.current)

    def signer_at(self, sequence: int) -> Signer:
        """Return the signing key for the certificate with this number, even after a rotation.

        If that key was revoked before this number, no key can sign the certificate. Then the
        current key is returned; it can sign statements about the certificate, such as a purge.
        """
        trust = self._load_chain().trust
        valid = [keyid for keyid, key in trust.keys.items() if key.first <= sequence <= key.last]
        return self.signer_for(valid[-1] if valid else trust.current)

    def signer_for(self, keyid: str) -> Signer:
        """Return the signing key with this id; raise `KeyFileError` if there is none."""
        if keyid not in self._signers:
            self._signers[keyid] = _read_signer(self._files, keyid)
        return self._signers[keyid]

    def statements(self) -> list[bytes]:
        """Return the envelopes of key rotations and revocations, in order."""
        return list(self._load_chain().statements)

    def trust(self) -> Trust:
        """Return the keys that a verifier trusts after pinning `root`."""
        return self._load_chain().trust

    def compute_tag(self, purpose: str, *parts: bytes) -> str:
        """Return the keyed tag of the parts in hexadecimal; each purpose has independent tags."""
        return compute_tag(self._tag_key, purpose.encode(), *parts)

    def derive_salt(self, model_folder: str) -> bytes:
        """Return the secret salt of the commitments to the settings and seeds of a model."""
        return bytes.fromhex(self.compute_tag("settings", model_folder.encode()))

    def new_key(self, kind: str, label: str = "") -> str:
        """Create a key durably and return its id.

        Parameters
        ----------
        kind : {"epoch", "intake", "training", "noise", "purge"}
            Purpose of the key.
        label : str, default=""
            Owner of the key, in lower-case letters and digits; see `list_ids`.
        """
        if kind not in KINDS or not _LABEL.fullmatch(label):
            raise ValueError(
                f"kind={kind!r} must be one of {KINDS}, and label={label!r} must have at most 64 "
                "characters from a-z and 0-9"
            )
        key_id = "-".join(filter(None, [kind, label, os.urandom(8).hex()]))
        with self._files.hold_lock():
            self._files.write(key_id, os.urandom(KEY_BYTES))
        return key_id

    def has(self, key_id: str) -> bool:
        """Return whether the key exists."""
        return self._files.has(_require_key_id(key_id))

    def list_ids(self, kind: str, label: str | None = None) -> list[str]:
        """Return the ids of all keys of a kind, or only of those with this label."""
        names = [name for name in self._files.list_names(f"{kind}-") if _ID.fullmatch(name)]
        if label is None:
            return names
        start = f"{kind}-{label}-" if label else f"{kind}-"
        return [name for name in names if len(name) == len(start) + 16 and name.startswith(start)]

    def read_secret(self, key_id: str) -> bytes:
        """Return the secret bytes of a key, with which derived values can be computed again."""
        return self._files.read(_require_key_id(key_id))

    def load_cipher(self, key_id: str) -> Cipher:
        """Read a key from disk and return a cipher with it; do not keep the cipher."""
        return Cipher(self.read_secret(key_id))

    def encrypt(self, key_id: str, data: Buffer, context: bytes) -> bytes:
        """Return the data encrypted with a key."""
        return self.load_cipher(key_id).encrypt(data, context)

    def decrypt(self, key_id: str, encrypted: Buffer, context: bytes) -> bytes:
        """Return the plain data that was encrypted with a key."""
        return self.load_cipher(key_id).decrypt(encrypted, context)

    def commit_to(self, key_id: str) -> str:
        """Return the public commitment to a key."""
        return commit_to_key(self.read_secret(key_id))

    def derive_seed(self, key_id: str, beacon: bytes) -> int:
        """Return the 128-bit seed derived from a key and a beacon."""
        return derive_training_seed(self.read_secret(key_id), beacon)

    def destroy(self, key_id: str) -> None:
        """Overwrite and delete a key durably; do nothing if it does not exist."""
        path = self._files.path_of(_require_key_id(key_id))
        with self._files.hold_lock():
            destroy_file(path)

    def list_partial_files(self) -> list[Path]:
        """Return partial files, which are being written or were left by a killed process."""
        folders = (self._files.folder, self._public)
        return [path for folder in folders for path in sorted(folder.glob(".*.partial"))]

    def remove_partial_files(self) -> int:
        """Destroy partial files of keys and statements; return the number of files."""
        if not self.list_partial_files():
            return 0
        with self._files.hold_lock() as n_keys:
            partials = self.list_partial_files()
            for path in partials:
                destroy_file(path)
        return n_keys + len(partials)

    def rotate(self, ledger_id: str, sequence: int) -> bytes:
        """Make a new signing key current and return the rotation statement.

        Parameters
        ----------
        ledger_id : str
            Name of the ledger.
        sequence : int
            Number of the last certificate that the old key signs.

        Notes
        -----
        The private key is written before the statement, and the rotation takes effect when the file
        of the statement exists. So after a crash, either the old or the new key is current. A key
        without a statement is destroyed by the next rotation.
        """
        with self._files.hold_lock():
            chain = self._load_chain()
            old = self.signer_for(chain.trust.current)
            for name in self._files.list_names("sign-"):  # without a statement
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
        """Sign, publish and return the statement that a key is not trusted after a certificate.

        Raises
        ------
        KeyFileError
            The key is current (rotate first) or does not belong to this ring.
        """
        with self._files.hold_lock():
            chain = self._load_chain()
            if keyid not in chain.trust.keys:
                raise KeyFileError(
                    f"{keyid!r} is not the id of a signing key; `letheon key list` lists them"
                )
            if keyid == chain.trust.current:
                raise KeyFileError("the current key cannot be revoked; rotate the keys first")
            predicate = {"revokedKey": keyid, "lastSequence": after_sequence}
            signer = self.signer_for(chain.trust.current)
            return self._publish_statement(chain, ledger_id, REVOCATION, keyid, predicate, signer)

    @property
    def _current_file(self) -> Path:
        return self._files.folder / "current"

    def _load_chain(self) -> _KeyChain:
        """Return the content of the public files; read them again if a statement was added."""
        paths = sorted(self._public.glob("[0-9][0-9][0-9][0-9].json"))
        with self._guard:
            if self._known is None or len(self._known.statements) != len(paths):
                root = _read_root(self._public / "root.pub").hex()
                statements = tuple(path.read_bytes() for path in paths)
                try:
                    trust = Trust.from_pinned(root, list(statements))
                except ValueError as error:
                    raise KeyFileError(
                        f"the statements in {self._public} are not valid: {error}"
                    ) from error
                self._known = _KeyChain(root, statements, trust)
            return self._known

    def _repair_current_file(self) -> None:
        """Update ``keys/current`` if a crash left it behind the statements."""
        current = self._current_file.read_text("ascii", "replace").removesuffix("\n")
        chain = self._load_chain()
        if current == chain.trust.current:
            return
        if re.fullmatch("[0-9a-f]{64}", current) and current not in chain.trust.keys:
            raise KeyFileError(
                f"{self._current_file} names a key that has no statement in {self._public}; "
                "restore the missing statements from a backup"
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
        """Sign the next statement, check that a verifier accepts it, and publish it."""
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
    """Return the id of the first signing key; create and publish it if necessary."""
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
        raise KeyFileError(f"the key {files.path_of(f'sign-{keyid}')} does not match its name")
    return signer


def _read_root(path: Path) -> bytes:
    try:
        return from_hex(path.read_text("ascii").removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise KeyFileError(
            f"the first public key {path} is missing or damaged: {error}; restore it from a backup"
        ) from error


def _write_line(path: Path, line: str) -> None:
    write_atomically(path, [f"{line}\n".encode()])


def _require_key_id(key_id: str) -> str:
    if not _ID.fullmatch(key_id):
        raise ValueError(
            f"{key_id!r} is not the id of an encryption key; expected an id from new_key"
        )
    return key_id
