"""Check certificates of unlearning with this one file, the bundle and the ledger's public key.

Run it as ``python verifier.py BUNDLE --key PUBLIC_KEY``; it needs Python and `cryptography`, but
no other part of letheon. The file is ordered as an auditor reads it: bytes, envelopes and keys,
then the levels. A failed check raises `VerificationError` with the place and the reason.

    ====== ======================================= ===========================================
    level  shows                                   does not show
    ====== ======================================= ===========================================
    V0     no certificate was edited, swapped or   that the work was done; that no certificate
           dropped from the middle; every file is  is missing at the end (V1 with events does)
           in the signed index of the bundle
    V1     one append-only log, no roll-back       private copies; a fork shown to others only,
           behind a checkpoint you have seen       unless witnesses are pinned
    V2     exactly the stated number of slots of   what the rows were, and that the model
           the data set became empty, no other     was trained on them (re-derivation does)
    V3     the ledger signed for each purge and    stores that are not listed; the scan itself
           for a scan without a hit                is done by `letheon audit residue`
    W1     the rows of a person's receipt were     whose rows they are, without row and salt;
           in the data set and were removed        what the model learned from them
    W2     a predictor file is that of the newest  that the certified model is right (the audit
           certified version of its model          does), and that this file is the one in use
    ====== ======================================= ===========================================

The verdict of a bundle is `passed`, `failed` or `incomplete`. A bundle passes only if no level was
skipped that its tier promises: V0, V1 and V3 for the public tier, V0 to V3 for the auditor's.

These parameters and this error mean the same in all functions and are explained only here.

Parameters
----------
certificate, chain : SignedStatement, sequence of SignedStatement
    A certificate whose signature was checked; all certificates of a ledger, from the first one on.
trust : Trust
    The keys of the ledger.
data, envelope, receipt : bytes
    Content of the file that the function is about.
folder, path, limit : path, path, int
    Folder of the bundle; a file; the largest number of bytes to read.
name, tenant : str
    A model, in certificates `model_id`; its tenant. In a checkpoint, the name of the signer.
leaf, leaves, left, right, root, root1, root2 : bytes
    Hashes of the log: of an event, of all events, of two subtrees, of the whole tree.
index, size, size1, size2 : int
    Place of an event in the log; number of events.
proof : sequence of bytes
    Hashes that lead to a root. In `transition_roots`, the file of a transition proof.
note, notes, text : Note, mapping of int to Note, str
    A checkpoint of the log; checkpoints by size; the text of a checkpoint. In `from_hex` and
    `from_base64`, the digits.
witnesses : iterable of str
    C2SP verifier keys of the witnesses that must have signed the newest checkpoint.
public, signature, message : bytes
    The 32 bytes of an Ed25519 key, a signature by it, and the signed bytes.
row_bytes, salt, place, commitment : bytes, bytes, int, bytes
    A row as bytes, its secret, its position at registration, and what `slot_commitment` returns.

Raises
------
VerificationError
    A check failed: something is missing, not valid, or does not belong to the rest.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

SMALL = 1 << 20  # bytes of a certificate, statement, note or event
LARGE = 1 << 28  # bytes of a proof or of the log's proofs
LARGEST = 1 << 34  # bytes of any file of a bundle
LARGEST_BUNDLE = 1 << 38
MOST_FILES = 1_000_000
DEEPEST = 32
MAX_INT = 2**53 - 1

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Version 2 also states the digest of the model's predictor.
UNLEARNING_V1 = "urn:letheon:attestation:unlearning:v1"
UNLEARNING = "urn:letheon:attestation:unlearning:v2"
CERTIFICATES = (UNLEARNING, UNLEARNING_V1)
PURGE = "urn:letheon:attestation:purge:v1"
ROTATION = "urn:letheon:attestation:key-rotation:v1"
REVOCATION = "urn:letheon:attestation:key-revocation:v1"
INDEX = "urn:letheon:attestation:bundle-index:v1"
FILES_NOT_SEARCHED = "files-not-searched"
WORDS_NOT_SEARCHED = "search-for-ids-that-are-words-of-the-ledger"


class VerificationError(ValueError):
    """The error of a failed check; its text says where and why it failed.

    Examples
    --------
    >>> try:
    ...     from_hex("no digits")
    ... except VerificationError as error:
    ...     print(error)
    expected 64 lower-case hexadecimal digits
    """


def _match(pattern: str, text: str, reason: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise VerificationError(reason)
    return match


def require(condition: bool, reason: str) -> None:
    """Raise `VerificationError` with the reason if the condition is false.

    Parameters
    ----------
    condition : bool
        What must be true.
    reason : str
        Message of the error.

    Examples
    --------
    >>> require(1 < 2, "one is not less than two")
    >>> require(2 < 1, "two is not less than one")
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: two is not less than one
    """
    if not condition:
        raise VerificationError(reason)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# Bytes: one text per value, so that nothing can be changed without changing a signed byte.


def canonical(value: Any) -> bytes:
    """Return the canonical JSON text of a value (RFC 8785, without floats).

    Parameters
    ----------
    value : dict, list, str, int, bool or None
        Plain values; no floats.

    Examples
    --------
    >>> canonical({"b": [1, None], "a": "text"})
    b'{"a":"text","b":[1,null]}'
    """
    try:
        text = json.dumps(_sort_keys(value, 0), ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        raise VerificationError("a string is not valid Unicode") from None


def _sort_keys(value: Any, depth: int) -> Any:
    """Sort keys by UTF-16 code units, as RFC 8785 requires; reject values without a unique form."""
    require(depth <= DEEPEST, f"nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        require(all(isinstance(key, str) for key in value), "a key is not a string")
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _sort_keys(value[key], depth + 1) for key in keys}
    if isinstance(value, list | tuple):
        return [_sort_keys(item, depth + 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        require(abs(value) <= MAX_INT, "an integer is larger than 2**53 - 1")
    elif not (value is None or isinstance(value, bool | str)):
        raise VerificationError(
            f"a {type(value).__name__} has no canonical form; write decimals as strings"
        )
    return value


def parse_strict(data: bytes, limit: int = LARGE) -> Any:
    """Parse JSON in canonical form, without floats, repeated keys or additional bytes.

    Returns
    -------
    dict, list, str, int, bool or None

    Examples
    --------
    >>> parse_strict(b'{"a":1}')
    {'a': 1}
    >>> parse_strict(b'{"a": 1}')
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: not in canonical form (RFC 8785)
    """
    require(len(data) <= limit, f"larger than {limit} bytes")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_require_unique_keys,
            parse_float=_reject_float,
            parse_int=_parse_int,
            parse_constant=_reject_float,
        )
    except RecursionError:
        raise VerificationError(f"nested deeper than {DEEPEST} levels") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise VerificationError(f"not JSON in UTF-8: {error}") from None
    require(canonical(value) == data, "not in canonical form (RFC 8785)")
    return value


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    require(len(content) == len(pairs), "a key is repeated")
    return content


def _reject_float(text: str) -> Any:
    raise VerificationError(f"the number {text[:24]} is not an integer; write decimals as strings")


def _parse_int(text: str) -> int:
    require(len(text) <= 17, "an integer is larger than 2**53 - 1")
    return int(text)


def from_base64(text: str) -> bytes:
    """Decode standard base64; reject texts that are not the encoding of their bytes.

    Returns
    -------
    bytes

    Examples
    --------
    >>> from_base64("bGV0aGU=")
    b'lethe'
    """
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise VerificationError("not standard base64") from None
    require(base64.b64encode(data).decode() == text, "not canonical base64: unused bits are set")
    return data


def from_hex(text: str) -> bytes:
    """Decode 64 lower-case hexadecimal digits to 32 bytes.

    Returns
    -------
    bytes

    Examples
    --------
    >>> len(from_hex("00" * 32))
    32
    """
    _match("[0-9a-f]{64}", text, "expected 64 lower-case hexadecimal digits")
    return bytes.fromhex(text)


# Schemas of statements. They allow codes, digests and counts only: free text could name a person.


def _text_like(pattern: str, **bounds: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$", **bounds}


def _list_of(items: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", **bounds, "items": items}


_WORDS: dict[str, dict[str, Any]] = {
    **{
        name: {"$ref": f"#/$defs/{name}"}
        for name in ("hex32", "digest", "dec", "time", "day", "code", "measure")
    },
    "count": {"type": "integer", "minimum": 0},
    "positive": {"type": "integer", "minimum": 1},
    "object": {"type": "object"},
    "text": {"type": "string"},
    "yes": {"const": True},
    "zero": {"const": 0},
    "scheme": {"const": "salted-slot-merkle-v1"},
}
_WORDS["codes"] = _list_of(_WORDS["code"])
_WORDS["some-codes"] = _list_of(_WORDS["code"], minItems=1)
_WORDS["path"] = _list_of(_WORDS["hex32"])
_WORDS["link"] = {"anyOf": [_WORDS["digest"], {"const": "genesis"}]}


def _object_of(required: str, optional: str = "", **special: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these required and optional keys.

    A key is written ``name:word``; `_WORDS` has the schema of the word. The schema of a key without
    a word is in `special`.
    """
    pairs = [[word.partition(":") for word in names.split()] for names in (required, optional)]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, _, _ in pairs[0]],
        "properties": {n: _WORDS[w] if w else special[n] for n, _, w in pairs[0] + pairs[1]},
    }


def _map_of(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def _require_when(name: str, value: str, *required: str) -> dict[str, Any]:
    return {"if": {"properties": {name: {"const": value}}}, "then": {"required": list(required)}}


_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_BASIS = {"enum": ["measured-vs-retrain", "proxy-estimate", "by-proof"]}
_DEFS: dict[str, Any] = {
    "hex32": _text_like("[0-9a-f]{64}"),
    "digest": _object_of("sha256:hex32"),
    "dec": _text_like(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", maxLength=24),
    "time": _text_like(_DATE + "T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"),
    "day": _text_like(_DATE),
    "code": _text_like("[a-z0-9][a-z0-9._:@/+-]{0,127}"),
    "measure": _object_of(
        "metric:code value:dec n:count basis", "low:dec high:dec evalSet:digest", basis=_BASIS
    ),
}
_NOISE = _object_of("mechanism:code scale:dec seedCommitment:hex32")
_PARAMETER = {"anyOf": [_WORDS["dec"], _WORDS["code"], {"type": "boolean"}]}
_MODEL = "id:code format:code before:digest blinded:yes"
_PREDICTOR = {"anyOf": [_WORDS["digest"], _object_of("reason:code")]}
_UNLEARNING_V1 = _object_of(
    "ledger model dataset erasure method execution guarantee measurements monitor"
    " notClaimed:some-codes times",
    ledger=_object_of("id:code sequence:positive previousCertificate:link checkpointBefore:digest"),
    model=_object_of(_MODEL),
    dataset=_object_of(
        "id:code scheme:scheme rootBefore:hex32 rootAfter:hex32 slots:positive liveAfter:count"
        " transitionProof:digest preprocessing:digest"
    ),
    erasure=_object_of("batch:hex32 rows:positive requestsRoot:hex32 grounds:codes"),
    method=_object_of(
        "name:code version:code definition:digest parameters trainingRandomness noise",
        parameters=_map_of(_PARAMETER),
        trainingRandomness=_object_of("rule:code beacon:code keyCommitment:hex32"),
        noise={"anyOf": [{"const": "none"}, _NOISE]},
    ),
    execution=_object_of(
        "code:digest lockfile:digest image:digest python:code kernel:code threads:positive replay",
        "tolerance:dec",
        replay={"enum": ["bitwise", "bitwise-same-kernel", "tolerance"]},
    ),
    guarantee={
        **_object_of(
            "kind requests releases accounting",
            "epsilon:dec delta:dec assumptions:codes",
            kind={"enum": ["exact", "certified", "empirical"]},
            requests={"enum": ["oblivious", "adaptive"]},
            releases={"enum": ["latest-only", "every-version", "labels-only"]},
            accounting=_object_of(
                "rule:code deletionsSinceRetrain:count",
                "spent:dec budget:dec inputs",
                inputs=_map_of(_WORDS["dec"]),
            ),
        ),
        "allOf": [_require_when("kind", "certified", "epsilon", "delta", "assumptions")],
    },
    measurements=_object_of(
        "efficiency:measure effectiveness:measure consistency:measure certifiability:measure"
    ),
    monitor=_object_of(
        "decision policy:digest lastRetrainSequence:count",
        decision={"enum": ["keep", "retrain-due", "retrained"]},
    ),
    times=_object_of("oldestReceivedOn:day earliestDueOn:day appliedAt:time certifiedAt:time"),
)
_WITH_PREDICTOR = _object_of(f"{_MODEL} predictor", predictor=_PREDICTOR)
_UNLEARNING = _UNLEARNING_V1 | {
    "properties": _UNLEARNING_V1["properties"] | {"model": _WITH_PREDICTOR}
}
_STORE = {
    **_object_of(
        "store:code scope:code state evidence:digest",
        "at:time by:day notSearched:positive",
        state={"enum": ["purged", "expires", "not-searched"]},
    ),
    "allOf": [
        _require_when("state", "purged", "at"),
        _require_when("state", "expires", "by"),
        _require_when("state", "not-searched", "at", "notSearched"),
    ],
}
_PURGE = _object_of(
    "ledger certificate:digest stores salts scanner recipientsTold:count notClaimed:some-codes"
    " times",
    ledger=_object_of("id:code sequence:positive"),
    stores=_list_of(_STORE, minItems=1),
    salts=_object_of("destroyed:count key:code"),
    scanner=_object_of(
        "version:code markers:count files:count bytes:count hits:zero",
        "notSearched",
        notSearched=_object_of("files:count ids:count shortIds:count"),
    ),
    times=_object_of("startedAt:time purgedAt:time"),
)
_KEY_CHAIN = _object_of("id:code number:positive previousStatement:link")
_ROTATION = _object_of(
    "ledger oldKey:hex32 newKey lastSequence:count",
    ledger=_KEY_CHAIN,
    newKey=_object_of("keyid:hex32 public:hex32"),
)
_REVOCATION = _object_of("ledger revokedKey:hex32 lastSequence:count", ledger=_KEY_CHAIN)
_TIER = {"enum": ["public", "auditor"]}
_INDEX = _object_of(
    "ledger tier files:count", ledger=_object_of("id:code sequence:count"), tier=_TIER
)
_FILES = _map_of(_WORDS["hex32"])
_DESCRIPTION = _object_of(
    "format tier ledger:code exportedAt:count size:count models scope",
    "destroyBy:count",
    format={"const": "letheon-bundle-v1"},
    tier=_TIER,
    models=_list_of(_object_of("tenant:code name:code sequence:positive")),
    scope=_object_of("", "tenant:code model:code"),
)
_LOG = _object_of(
    "size:count root:hex32 certificates consistency",
    certificates=_list_of(_object_of("sequence:positive index:count event:object proof:path")),
    consistency=_list_of(_object_of("from:count to:count proof:path")),
)
_TRANSITION = _object_of(
    "scheme:scheme slots:positive erased siblings:path",
    erased=_list_of(_object_of("slot:count leaf:hex32"), minItems=1),
)
_ENVELOPE = _object_of(
    "payload:text payloadType signatures",
    payloadType={"const": PAYLOAD_TYPE},
    signatures=_list_of(_object_of("keyid:hex32 sig:text"), minItems=1, maxItems=2),
)
_RECEIPT = _object_of("certificate:hex32 slot:count place:count salt:hex32 before:path after:path")
MOST_RECEIPT_ROWS = 64
_COMMITMENTS = _object_of(
    "certificate:hex32 rows",
    rows=_list_of(
        _object_of("slot:count commitment:hex32 before:path after:path"),
        minItems=1,
        maxItems=MOST_RECEIPT_ROWS,
    ),
)


def _statement_schema(kind: str, title: str, predicate: dict[str, Any]) -> dict[str, Any]:
    subject = _list_of(_object_of("name:code digest:digest"), minItems=1, maxItems=1)
    name, version = kind.split(":")[3:]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:letheon:schema:{name}-statement:{version}",
        "title": f"in-toto Statement v1 carrying a {title}, predicate {version}",
        "$defs": _DEFS,
        **_object_of(
            "_type subject predicateType predicate",
            _type={"const": STATEMENT_TYPE},
            subject=subject,
            predicateType={"const": kind},
            predicate=predicate,
        ),
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    UNLEARNING_V1: _statement_schema(UNLEARNING_V1, "certificate of unlearning", _UNLEARNING_V1),
    UNLEARNING: _statement_schema(UNLEARNING, "certificate of unlearning", _UNLEARNING),
    PURGE: _statement_schema(PURGE, "purge attestation", _PURGE),
    ROTATION: _statement_schema(ROTATION, "key rotation", _ROTATION),
    REVOCATION: _statement_schema(REVOCATION, "key revocation", _REVOCATION),
    INDEX: _statement_schema(INDEX, "signed index of a bundle", _INDEX),
}
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
_RULES: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, name: (
        isinstance(value, _TYPES[name]) and isinstance(value, bool) == (name == "boolean")
    ),
    "const": lambda value, constant: type(value) is type(constant) and value == constant,
    "enum": lambda value, texts: isinstance(value, str) and value in texts,
    # fullmatch: `$` alone would accept a line break at the end.
    "pattern": lambda value, pattern: (
        not isinstance(value, str) or re.fullmatch(pattern[1:-1], value) is not None
    ),
    "maxLength": lambda value, most: not isinstance(value, str) or len(value) <= most,
    "minimum": lambda value, least: not isinstance(value, int) or value >= least,
    "minItems": lambda value, least: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda value, most: not isinstance(value, list) or len(value) <= most,
    "required": lambda value, names: not isinstance(value, dict) or value.keys() >= set(names),
    "anyOf": lambda value, forms: any(_has_form(value, form) for form in forms),
}


def check_schema(statement: Any) -> None:
    """Raise unless a statement has exactly the fields that its predicate type requires.

    Parameters
    ----------
    statement : dict
        A parsed statement.

    Examples
    --------
    >>> check_schema({"predicateType": "mine"})
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: unknown predicate type
    """
    kind = statement.get("predicateType") if isinstance(statement, dict) else None
    require(isinstance(kind, str) and kind in SCHEMAS, "unknown predicate type")
    _check_form(statement, SCHEMAS[str(kind)], "statement")


def _check_form(value: Any, schema: Mapping[str, Any], place: str) -> None:
    """Check a value against a schema; only the JSON Schema keywords used above are supported."""
    if "$ref" in schema:
        schema = _DEFS[schema["$ref"].removeprefix("#/$defs/")]
    for keyword, rule in schema.items():
        if keyword in _RULES and not _RULES[keyword](value, rule):
            raise VerificationError(f"{place}: the value violates {keyword}: {str(rule)[:200]}")
    if isinstance(value, dict):
        others = schema.get("additionalProperties", {})
        for name, item in value.items():
            rules = schema.get("properties", {}).get(name, others)
            require(rules is not False, f"{place}: unknown key {name[:40]!r}")
            _check_form(item, rules, f"{place}.{name[:40]}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_form(item, schema.get("items", {}), f"{place}[{index}]")
    for rules in schema.get("allOf", ()):
        if _has_form(value, rules["if"]):
            _check_form(value, rules["then"], place)


def _has_form(value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        _check_form(value, schema, "")
    except VerificationError:
        return False
    return True


# Envelopes and keys.


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that a DSSE v1 signature covers (its pre-authentication encoding).

    Parameters
    ----------
    payload_type : str
        Media type of the payload.
    payload : bytes
        What is signed.

    Examples
    --------
    >>> pae("text/plain", b"hello")
    b'DSSEv1 10 text/plain 5 hello'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def keyid_of(public: bytes) -> str:
    """Return the id of a public key: the SHA-256 of its 32 bytes.

    Examples
    --------
    >>> keyid_of(bytes(32))[:8]
    '66687aad'
    """
    return _sha256(public).hex()


def check_signature(public: bytes, signature: bytes, message: bytes) -> None:
    """Raise unless the Ed25519 signature of a message is valid.

    Examples
    --------
    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    >>> check_signature(key.public_key().public_bytes_raw(), key.sign(b"hello"), b"hello")
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise VerificationError(
            f"the signature by key {keyid_of(public)[:16]} is not valid"
        ) from None


@dataclass(frozen=True)
class SignedStatement:
    """A statement with valid signatures and schema, as `open_envelope` returns it.

    Parameters
    ----------
    statement : dict
        The in-toto statement.
    keyids : tuple of str
        Ids of the keys that signed it.
    id : str
        SHA-256 of the signed bytes.
    """

    statement: dict[str, Any]
    keyids: tuple[str, ...]
    id: str

    @property
    def predicate(self) -> dict[str, Any]:
        """The predicate of the statement, which contains its claims."""
        return dict(self.statement["predicate"])

    @property
    def is_certificate(self) -> bool:
        """Whether this is a certificate of unlearning, of this or the earlier version."""
        return self.statement["predicateType"] in CERTIFICATES

    @property
    def sequence(self) -> int:
        """Sequence number of this certificate, or of the certificate this statement belongs to."""
        return int(self.predicate["ledger"]["sequence"])


@dataclass(frozen=True)
class _ParsedEnvelope:
    """A DSSE envelope in canonical form; its signatures have not been checked yet."""

    payload: bytes
    message: bytes
    signatures: dict[str, bytes]

    @classmethod
    def read(cls, data: bytes) -> "_ParsedEnvelope":
        envelope = parse_strict(data, SMALL)
        _check_form(envelope, _ENVELOPE, "envelope")
        keyids = [signature["keyid"] for signature in envelope["signatures"]]
        require(keyids == sorted(set(keyids)), "signatures are repeated, or not sorted by keyid")
        payload = from_base64(envelope["payload"])
        signatures = {item["keyid"]: from_base64(item["sig"]) for item in envelope["signatures"]}
        return cls(payload, pae(PAYLOAD_TYPE, payload), signatures)

    def check(self, keyid: str, public: bytes) -> None:
        require(keyid in self.signatures, f"not signed by key {keyid[:16]}")
        check_signature(public, self.signatures[keyid], self.message)

    def open(self) -> SignedStatement:
        """Parse the payload; call this only after checking a trusted signature."""
        statement = parse_strict(self.payload, SMALL)
        check_schema(statement)
        signers = 2 if statement["predicateType"] == ROTATION else 1
        require(
            len(self.signatures) == signers,
            f"{len(self.signatures)} signatures; expected {signers}",
        )
        return SignedStatement(statement, tuple(self.signatures), _sha256(self.message).hex())


@dataclass(frozen=True)
class TrustedKey:
    """A public key, and the first and last certificate that it may sign.

    Parameters
    ----------
    public : bytes
        The key.
    first, last : int
        Numbers of these certificates.
    revoked : bool, default=False
        Whether the key was revoked.

    Examples
    --------
    >>> key = TrustedKey(bytes(32), last=7)
    >>> key.first, key.last, key.revoked
    (1, 7, False)
    """

    public: bytes
    first: int = 1
    last: int = MAX_INT
    revoked: bool = False


@dataclass
class Trust:
    """The keys of a ledger: the pinned first key, and its successors.

    Each successor was signed by the key before it. A later revocation may be missing here; to be
    sure, get the key statements from the ledger itself.

    Parameters
    ----------
    keys : dict of str to TrustedKey
        All keys by id.
    current : str
        Id of the newest key.
    ledger : str or None
        Id of the ledger, as soon as a statement names it.
    statements : list of str
        Ids of the key statements that were applied.

    Examples
    --------
    >>> trust = Trust.from_pinned("00" * 32)
    >>> trust.public(trust.current).hex() == "00" * 32
    True
    """

    keys: dict[str, TrustedKey]
    current: str
    ledger: str | None = None
    statements: list[str] = field(default_factory=list)

    @classmethod
    def from_pinned(cls, public_key_hex: str, statements: Iterable[bytes] = ()) -> "Trust":
        """Return the keys of a ledger from its first public key and its signed key statements."""
        public = from_hex(public_key_hex.strip())
        trust = cls({keyid_of(public): TrustedKey(public)}, keyid_of(public))
        for number, data in enumerate(statements, 1):
            with _prefix_errors(f"key statement {number}"):
                trust._apply_statement(_ParsedEnvelope.read(data), number)
        return trust

    def public(self, keyid: str) -> bytes:
        """Return the public key with this id, even if it may no longer sign."""
        require(keyid in self.keys, f"key {keyid[:16]} is unknown")
        return self.keys[keyid].public

    def key(self, keyid: str, sequence: int, *, later: bool = False) -> bytes:
        """Return the public key with this id, if it may sign certificate `sequence`.

        With `later`, a key that was introduced later is accepted too, because it may sign
        statements about an earlier certificate.
        """
        public, known = self.public(keyid), self.keys[keyid]
        state = "revoked" if known.revoked else "replaced"
        require(
            sequence <= known.last, f"key {keyid[:16]} was {state} after certificate {known.last}"
        )
        require(
            later or sequence >= known.first,
            f"key {keyid[:16]} is valid from certificate {known.first}",
        )
        return public

    def _apply_statement(self, envelope: _ParsedEnvelope, number: int) -> None:
        envelope.check(self.current, self.public(self.current))
        opened = envelope.open()
        kind, claims = opened.statement["predicateType"], opened.predicate
        require(kind in (ROTATION, REVOCATION), "neither a rotation nor a revocation")
        actual = claims["ledger"]["number"]
        require(actual == number, f"has number {actual}; expected {number}")
        previous = {"sha256": self.statements[-1]} if self.statements else "genesis"
        require(
            claims["ledger"]["previousStatement"] == previous, "does not follow the previous one"
        )
        require(self.ledger in (None, claims["ledger"]["id"]), "belongs to another ledger")
        key = (
            self._apply_rotation(envelope, claims)
            if kind == ROTATION
            else self._apply_revocation(claims)
        )
        subject = {"name": claims["ledger"]["id"], "digest": {"sha256": key}}
        require(opened.statement["subject"] == [subject], "the subject is not this key")
        self.ledger = claims["ledger"]["id"]
        self.statements.append(opened.id)

    def _apply_rotation(self, envelope: _ParsedEnvelope, claims: dict[str, Any]) -> str:
        keyid, public = str(claims["newKey"]["keyid"]), from_hex(claims["newKey"]["public"])
        require(claims["oldKey"] == self.current, "the old key is not the current key")
        require(
            keyid == keyid_of(public) and keyid not in self.keys, "the new key is known already"
        )
        envelope.check(keyid, public)
        old, last = self.keys[self.current], int(claims["lastSequence"])
        require(last >= old.first - 1, "the old key ends before it begins")
        self.keys[self.current] = replace(old, last=last)
        self.keys[keyid] = TrustedKey(public, first=last + 1)
        self.current = keyid
        return keyid

    def _apply_revocation(self, claims: dict[str, Any]) -> str:
        keyid = str(claims["revokedKey"])
        require(keyid != self.current, "the current key cannot revoke itself")
        self.public(keyid)
        last = min(self.keys[keyid].last, claims["lastSequence"])
        self.keys[keyid] = replace(self.keys[keyid], last=last, revoked=True)
        return keyid


def open_envelope(data: bytes, trust: Trust) -> SignedStatement:
    """Check the signatures, keys and schema of an envelope, and return its statement.

    This shows who signed the statement. It shows neither that the statement is true nor that it has
    its place in the chain; for the latter see `check_chain`.

    Returns
    -------
    SignedStatement

    Examples
    --------
    >>> open_envelope(b"{}", Trust.from_pinned("00" * 32))
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: envelope: the value violates required: ...
    """
    envelope = _ParsedEnvelope.read(data)
    for keyid in envelope.signatures:
        envelope.check(keyid, trust.public(keyid))
    opened = envelope.open()
    if opened.is_certificate or opened.statement["predicateType"] in (PURGE, INDEX):
        trust.key(opened.keyids[0], opened.sequence, later=not opened.is_certificate)
    return opened


def certificate_id(envelope: bytes) -> str:
    """Return the id of a certificate, the SHA-256 of its signed bytes; do not check signatures.

    Examples
    --------
    >>> envelope = {"payload": "e30=", "payloadType": PAYLOAD_TYPE, "signatures": []}
    >>> certificate_id(canonical(envelope))
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: envelope.signatures: the value violates minItems: 1
    """
    return _sha256(_ParsedEnvelope.read(envelope).message).hex()


@contextmanager
def _prefix_errors(place: str) -> Iterator[None]:
    """Prefix the text of every error in the block with the place where it occurred."""
    try:
        yield
    except (VerificationError, OSError) as error:
        raise VerificationError(f"{place}: {error}") from None


# V0: the chain of certificates.


@dataclass(frozen=True)
class _ModelLine:
    """The state of one model from which its next certificate must start."""

    model: str
    data: tuple[Any, ...]
    now: tuple[str, int]
    retrained: tuple[str, int]
    last_retrain: int
    randomness: dict[str, str]


def check_chain(envelopes: Iterable[bytes], trust: Trust) -> list[SignedStatement]:
    """Check certificates 1..n, and that each one starts from the state after the earlier ones.

    This does not detect certificates that are missing at the end.

    Parameters
    ----------
    envelopes : iterable of bytes
        The certificates, from the first one on.

    Returns
    -------
    list of SignedStatement

    Examples
    --------
    >>> check_chain([], Trust.from_pinned("00" * 32))
    []
    """
    chain: list[SignedStatement] = []
    lines: dict[str, _ModelLine] = {}
    batches: set[str] = set()
    for sequence, data in enumerate(envelopes, 1):
        with _prefix_errors(f"certificate {sequence}"):
            certificate = open_envelope(data, trust)
            _check_link(certificate, sequence, chain, trust)
            claims = certificate.predicate
            require(
                claims["erasure"]["batch"] not in batches, "the batch already has a certificate"
            )
            batches.add(claims["erasure"]["batch"])
            lines[claims["model"]["id"]] = _check_line(
                certificate, lines.get(claims["model"]["id"])
            )
            chain.append(certificate)
    return chain


def _check_link(
    certificate: SignedStatement, sequence: int, chain: list[SignedStatement], trust: Trust
) -> None:
    require(certificate.is_certificate, "not a certificate of unlearning")
    claims = certificate.predicate["ledger"]
    actual = claims["sequence"]
    require(actual == sequence, f"has sequence {actual}; expected {sequence}")
    before = {"sha256": chain[-1].id} if chain else "genesis"
    require(claims["previousCertificate"] == before, "previousCertificate is not the previous id")
    ledger = chain[0].predicate["ledger"]["id"] if chain else trust.ledger
    require(ledger in (None, claims["id"]), f"ledger {claims['id']} is not {ledger}")


def _check_line(certificate: SignedStatement, line: _ModelLine | None) -> _ModelLine:
    claims, subject = certificate.predicate, certificate.statement["subject"][0]
    model, data, rows = claims["model"], claims["dataset"], claims["erasure"]["rows"]
    name = f"{model['id']}@{certificate.sequence}"
    require(subject["name"] == name, f"the subject is not named {name}")
    constant, after = (data["id"], data["slots"]), (data["rootAfter"], data["liveAfter"])
    randomness = claims["method"]["trainingRandomness"]
    if line is None:
        start = (data["rootBefore"], data["liveAfter"] + rows)
        line = _ModelLine(model["before"]["sha256"], constant, start, start, 0, randomness)
    is_retrain = claims["method"]["name"] == "retrain"
    root, live = line.retrained if is_retrain else line.now
    last = claims["monitor"]["lastRetrainSequence"]
    require(model["before"]["sha256"] == line.model, "before is not the previous version")
    require(constant == line.data, "the data set or its slots changed")
    require(last == line.last_retrain, f"lastRetrainSequence is not {line.last_retrain}")
    require(data["rootBefore"] == root, "rootBefore is not the model's previous root")
    require(data["liveAfter"] == live - rows, f"liveAfter is not {live} - {rows}")
    require(data["liveAfter"] <= line.now[1], "erased rows are back in the data set")
    # If the seed could change, an operator could try seeds after a request and choose a model.
    require(is_retrain or randomness == line.randomness, "the seed changed without a retrain")
    line = replace(line, model=subject["digest"]["sha256"], now=after, randomness=randomness)
    return replace(line, retrained=after, last_retrain=certificate.sequence) if is_retrain else line


def check_next(
    certificate: SignedStatement,
    first: SignedStatement,
    retrain: SignedStatement | None,
    newest: SignedStatement,
) -> None:
    """Raise unless a certificate continues the earlier certificates of its model.

    The earlier certificates must have been checked. `first` and `newest` are the first and the
    newest of them, and `retrain` is the certificate of the last retrain.

    Parameters
    ----------
    first, newest : SignedStatement
        The first and the newest earlier certificate of the model.
    retrain : SignedStatement or None
        The certificate of its last retrain.

    Examples
    --------
    >>> data = {"id": "d", "rootBefore": "a", "rootAfter": "b", "slots": 2, "liveAfter": 1}
    >>> claims = {"ledger": {"sequence": 1}, "dataset": data, "erasure": {"rows": 1},
    ...           "method": {"name": "sisa", "trainingRandomness": {}},
    ...           "model": {"id": "m", "before": {"sha256": "0"}},
    ...           "monitor": {"lastRetrainSequence": 0}}
    >>> subject = [{"name": "m@1", "digest": {"sha256": "1"}}]
    >>> first = SignedStatement({"predicate": claims, "subject": subject}, (), "")
    >>> check_next(first, first, None, first)
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: before is not the previous version
    """
    data, start = newest.predicate["dataset"], first.predicate["dataset"]
    trained = (start["rootBefore"], start["liveAfter"] + first.predicate["erasure"]["rows"])
    if retrain is not None:
        after = retrain.predicate["dataset"]
        trained = (after["rootAfter"], after["liveAfter"])
    line = _ModelLine(
        model=newest.statement["subject"][0]["digest"]["sha256"],
        data=(data["id"], data["slots"]),
        now=(data["rootAfter"], data["liveAfter"]),
        retrained=trained,
        last_retrain=0 if retrain is None else retrain.sequence,
        randomness=newest.predicate["method"]["trainingRandomness"],
    )
    _check_line(certificate, line)


# V1: the log, an RFC 6962 tree whose signed roots are C2SP checkpoints.


def leaf_hash(data: bytes) -> bytes:
    """Return the leaf hash of an event in the log (RFC 6962).

    Examples
    --------
    >>> leaf_hash(canonical({"kind": "received"})).hex()[:8]
    '8aa94c56'
    """
    return _sha256(b"\0" + data)


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node from the hashes of its two subtrees (RFC 6962).

    Examples
    --------
    >>> leaves = [leaf_hash(b"first"), leaf_hash(b"second")]
    >>> node_hash(*leaves) == log_root(leaves)
    True
    """
    return _sha256(b"\1" + left + right)


def log_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root of the tree over these leaf hashes (RFC 6962, section 2.1).

    Examples
    --------
    >>> log_root([leaf_hash(b"only")]) == leaf_hash(b"only")
    True
    """
    peaks: list[tuple[int, bytes]] = []
    for leaf in leaves:
        height, node = 0, leaf
        while peaks and peaks[-1][0] == height:
            height, node = height + 1, node_hash(peaks.pop()[1], node)
        peaks.append((height, node))
    if not peaks:
        return _sha256(b"")
    root = peaks.pop()[1]
    while peaks:
        root = node_hash(peaks.pop()[1], root)
    return root


def _climb_tree(nodes: list[bytes], index: int, last: int, proof: Sequence[bytes]) -> list[bytes]:
    """Climb from nodes to their roots with the siblings in a proof; return the roots.

    A left sibling is combined with all nodes, a right sibling only with the last node. `index` is
    the position of the nodes in their level, and `last` is the position of the level's last node.
    The result is empty if the proof has the wrong length.
    """
    for sibling in proof:
        if last == 0:
            return []
        if index & 1 or index == last:
            nodes = [node_hash(sibling, node) for node in nodes]
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            nodes[-1] = node_hash(nodes[-1], sibling)
        index, last = index >> 1, last >> 1
    return nodes if last == 0 else []


def check_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Raise unless the proof shows that the leaf is at `index` (RFC 9162, 2.1.3.2).

    Examples
    --------
    >>> first, second = leaf_hash(b"first"), leaf_hash(b"second")
    >>> check_inclusion(second, 1, 2, [first], log_root([first, second]))
    """
    require(0 <= index < size, f"index {index} is outside of a log of {size} entries")
    roots = _climb_tree([leaf], index, size - 1, proof)
    require(roots == [root], "the inclusion proof does not lead to the root")


def check_consistency(
    size1: int, root1: bytes, size2: int, root2: bytes, proof: Sequence[bytes]
) -> None:
    """Raise unless the proof shows that the second log continues the first.

    See RFC 9162, section 2.1.4.2.

    Examples
    --------
    >>> first, second = leaf_hash(b"first"), leaf_hash(b"second")
    >>> check_consistency(1, log_root([first]), 2, log_root([first, second]), [second])
    """
    require(
        0 <= size1 <= size2, f"a log of {size2} entries does not continue a log of {size1} entries"
    )
    if size1 in (0, size2):
        require(not proof, "the consistency proof must be empty")
        expected = root2 if size1 == size2 else _sha256(b"")
        require(root1 == expected, f"two roots of size {size1}: a fork")
        return
    path = [root1, *proof] if size1 & (size1 - 1) == 0 else list(proof)
    require(bool(path), "the consistency proof is empty")
    index, last = size1 - 1, size2 - 1
    while index & 1:
        index, last = index >> 1, last >> 1
    roots = _climb_tree([path[0]] * 2, index, last, path[1:])
    require(roots == [root1, root2], "the log was rewritten: the roots differ")


@dataclass(frozen=True)
class Note:
    """A checkpoint of the log, whose signatures have not been checked yet.

    Parameters
    ----------
    origin : str
        Name of the log.
    size : int
        Number of events.
    root : bytes
        Root of the log.
    signatures : tuple of (str, bytes, bytes)
        Name of the signer, hash of the key, and signature.

    Examples
    --------
    >>> Note("example.org/log", 2, bytes(3), ()).body.decode().splitlines()
    ['example.org/log', '2', 'AAAA']
    """

    origin: str
    size: int
    root: bytes
    signatures: tuple[tuple[str, bytes, bytes], ...]

    @property
    def body(self) -> bytes:
        """The text that the signatures cover."""
        return note_body(self.origin, self.size, self.root)


def note_body(origin: str, size: int, root: bytes) -> bytes:
    """Return the text that a checkpoint's signatures cover.

    Parameters
    ----------
    origin : str
        Name of the log.

    Examples
    --------
    >>> note_body("example.org/log", 2, bytes(3)).decode().splitlines()
    ['example.org/log', '2', 'AAAA']
    """
    _match("[a-z0-9][a-z0-9._:@/-]{0,127}", origin, "the origin of the checkpoint is not valid")
    return f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n".encode()


def note_key_hash(name: str, algorithm: int, public: bytes) -> bytes:
    """Return the four bytes by which a signature line refers to its key.

    `algorithm` is 1 for Ed25519 and 4 for the cosignature of a witness.

    Parameters
    ----------
    algorithm : int
        Number of the algorithm.

    Examples
    --------
    >>> len(note_key_hash("example.org/log", 1, bytes(32)))
    4
    """
    return _sha256(name.encode() + b"\n" + bytes([algorithm]) + public)[:4]


def note_digest(text: str) -> str:
    """Return the SHA-256 of a checkpoint's signed text, without its signatures.

    Examples
    --------
    >>> line = f"{chr(8212)} example.org/log {base64.b64encode(bytes(68)).decode()}"
    >>> body = note_body("example.org/log", 2, bytes(32))
    >>> note_digest(f"{body.decode()}{chr(10)}{line}{chr(10)}") == hashlib.sha256(body).hexdigest()
    True
    """
    return _sha256(read_note(text).body).hex()


def read_note(text: str) -> Note:
    """Parse a C2SP checkpoint in canonical form; extension lines are not accepted.

    Returns
    -------
    Note

    Examples
    --------
    >>> body = note_body("example.org/log", 2, bytes(32)).decode()
    >>> line = f"{chr(8212)} example.org/log {base64.b64encode(bytes(68)).decode()}"
    >>> read_note(f"{body}{chr(10)}{line}{chr(10)}").size
    2
    """
    body, _, signed = text.partition("\n\n")
    parts, lines = body.split("\n"), signed.split("\n")
    require(len(parts) == 3 and lines.pop() == "" and 0 < len(lines) <= 64, "not a checkpoint")
    _match("0|[1-9][0-9]{0,15}", parts[1], "the size of the checkpoint is not valid")
    note = Note(parts[0], int(parts[1]), from_base64(parts[2]), tuple(map(_parse_signature, lines)))
    require(len(note.root) == 32, "the root of the checkpoint is not valid")
    require(note.body == f"{body}\n".encode(), "the checkpoint is not in canonical form")
    return note


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    pattern = "\u2014 ([^\\s+]{1,255}) ([A-Za-z0-9+/=]{1,512})"
    name, text = _match(pattern, line, "not a signature line").groups()
    data = from_base64(text)
    return name, data[:4], data[4:]


def check_note(
    note: Note, trust: Trust, witnesses: Iterable[str] = (), *, revoked_too: bool = False
) -> None:
    """Raise unless the ledger and every pinned witness signed a checkpoint.

    Signatures of others are ignored. A witness is given by the C2SP verifier key of its
    cosignature/v1 key, ``name+hash+base64``. A checkpoint has no sequence number, so any key of the
    ledger may sign it. A revoked key is accepted only with `revoked_too`.

    Parameters
    ----------
    revoked_too : bool, default=False
        Whether a revoked key may have signed.

    Examples
    --------
    >>> trust = Trust.from_pinned("00" * 32)
    >>> check_note(Note("example.org/log", 2, bytes(32), ()), trust)
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: expected one signature by a trusted key
    """
    require(trust.ledger in (None, note.origin), f"the origin {note.origin} is not this ledger")
    keys = {
        note_key_hash(note.origin, 1, key.public): key
        for key in trust.keys.values()
        if revoked_too or not key.revoked
    }
    own = [(key_hash, sig) for name, key_hash, sig in note.signatures if name == note.origin]
    require(len(own) == 1 and own[0][0] in keys, "expected one signature by a trusted key")
    check_signature(keys[own[0][0]].public, own[0][1], note.body)
    for witness in witnesses:
        with _prefix_errors(f"witness {witness.partition('+')[0]}"):
            _check_witness(note, witness)


def _check_witness(note: Note, verifier_key: str) -> None:
    name, _, rest = verifier_key.partition("+")
    key = from_base64(rest.partition("+")[2])
    require(len(key) == 33 and key[0] == 4, "not a cosignature/v1 witness key")
    key_hash = note_key_hash(name, 4, key[1:])
    require(rest.partition("+")[0] == key_hash.hex(), "the key does not match its hash")
    signatures = [item[2] for item in note.signatures if item[:2] == (name, key_hash)]
    require(len(signatures) == 1, "has not signed the checkpoint")
    seconds = int.from_bytes(signatures[0][:8], "big")
    check_signature(key[1:], signatures[0][8:], b"cosignature/v1\ntime %d\n" % seconds + note.body)


# V2: the salted slots of the data set. Erasing a row replaces its leaf by TOMBSTONE.

TOMBSTONE = _sha256(b"letheon/tombstone/v1")


def slot_leaf(salt: bytes, place: int, row_bytes: bytes) -> bytes:
    """Return the leaf of a row; without the salt, a guess of the row cannot be tested.

    `place` is the row's position when the model was registered. It fixes the order of the rows,
    which an operator could otherwise choose after a request.

    Examples
    --------
    >>> leaf = slot_leaf(bytes(32), 5, b"row")
    >>> leaf == commitment_leaf(slot_commitment(bytes(32), 5, b"row"))
    True
    """
    return commitment_leaf(slot_commitment(salt, place, row_bytes))


def slot_commitment(salt: bytes, place: int, row_bytes: bytes) -> bytes:
    """Return the commitment to a row: ``HMAC-SHA256(salt, place || row)``.

    Examples
    --------
    >>> slot_commitment(bytes(32), 5, b"row") == slot_commitment(bytes(32), 6, b"row")
    False
    """
    return hmac.digest(salt, place.to_bytes(8, "big") + row_bytes, "sha256")


def commitment_leaf(commitment: bytes) -> bytes:
    """Return the leaf of a commitment: ``SHA-256(00 || commitment)``.

    Examples
    --------
    >>> len(commitment_leaf(slot_commitment(bytes(32), 5, b"row")))
    32
    """
    return _sha256(b"\0" + commitment)


def transition_roots(proof: bytes) -> tuple[bytes, bytes, int]:
    """Return the roots before and after an erasure, and the number of slots that became empty.

    Both roots are computed with the same siblings, so all other slots are the same in both. The
    proof does not show which rows were in the erased slots.

    Returns
    -------
    before, after : bytes
        The roots.
    n_erased : int
        Number of slots.

    Examples
    --------
    >>> leaf = commitment_leaf(slot_commitment(bytes(32), 0, b"row"))
    >>> erased = [{"leaf": leaf.hex(), "slot": 0}]
    >>> proof = {"erased": erased, "scheme": "salted-slot-merkle-v1", "siblings": [], "slots": 1}
    >>> transition_roots(canonical(proof)) == (leaf, TOMBSTONE, 1)
    True
    """
    before, after, erased, _ = _read_transition(proof)
    return before, after, len(erased)


def _read_transition(proof: bytes) -> tuple[bytes, bytes, dict[int, str], int]:
    content = parse_strict(proof)
    _check_form(content, _TRANSITION, "transition proof")
    slots, erased = content["slots"], {leaf["slot"]: leaf["leaf"] for leaf in content["erased"]}
    require(slots & (slots - 1) == 0, "slots is not a power of two")
    require([leaf["slot"] for leaf in content["erased"]] == sorted(erased), "erased is not sorted")
    require(
        max(erased) < slots and TOMBSTONE.hex() not in erased.values(),
        "an erased slot is not valid",
    )
    nodes = {slot: (from_hex(leaf), TOMBSTONE) for slot, leaf in erased.items()}
    siblings = iter(content["siblings"])
    while slots > 1:
        nodes, slots = _level_above(nodes, siblings), slots // 2
    require(next(siblings, None) is None, "the transition proof is too long")
    return *nodes[0], erased, content["slots"]


_Pair = tuple[bytes, bytes]


def _level_above(nodes: dict[int, _Pair], siblings: Iterator[str]) -> dict[int, _Pair]:
    above: dict[int, _Pair] = {}
    for index, node in nodes.items():
        if index // 2 in above:
            continue
        other = nodes.get(index ^ 1)
        if other is None:
            text = next(siblings, "")
            require(text != "", "the transition proof is too short")
            other = (from_hex(text),) * 2
        left, right = (other, node) if index & 1 else (node, other)
        above[index // 2] = (node_hash(left[0], right[0]), node_hash(left[1], right[1]))
    return above


def check_receipt(receipt: bytes, row_bytes: bytes, certificate: SignedStatement) -> None:
    """Raise unless a person's row was in the data set before and its slot is empty afterwards.

    This is level W1. `row_bytes` and the salt in the receipt determine the leaf, so the proof is
    about this row only. It does not show what the model has learned.

    Examples
    --------
    >>> statement = SignedStatement({"predicateType": PURGE, "predicate": {}}, (), "")
    >>> check_receipt(b"{}", b"row", statement)
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: receipt: the value violates required: ...
    """
    content = parse_strict(receipt, SMALL)
    _check_form(content, _RECEIPT, "receipt")
    _require_certificate(content, certificate)
    leaf = slot_leaf(from_hex(content["salt"]), content["place"], row_bytes)
    _check_paths(content, leaf, certificate)


def check_receipt_commitment(receipt: bytes, certificate: SignedStatement) -> int:
    """Check a receipt without salts; return the number of rows that were erased.

    Each commitment must be in its slot under rootBefore, and the slot must be empty under
    rootAfter. This does not show which row a commitment belongs to; `check_receipt` does, with the
    row and its salt.

    Returns
    -------
    int

    Examples
    --------
    >>> statement = SignedStatement({"predicateType": PURGE, "predicate": {}}, (), "")
    >>> check_receipt_commitment(b"{}", statement)
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: receipt: the value violates required: ...
    """
    content = parse_strict(receipt, SMALL)
    _check_form(content, _COMMITMENTS, "receipt")
    _require_certificate(content, certificate)
    slots = [row["slot"] for row in content["rows"]]
    require(slots == sorted(set(slots)), "the rows are not in the order of their slots")
    for row in content["rows"]:
        _check_paths(row, commitment_leaf(from_hex(row["commitment"])), certificate)
    return len(slots)


def _require_certificate(receipt: dict[str, Any], certificate: SignedStatement) -> None:
    require(certificate.is_certificate, "expected a certificate of unlearning")
    require(receipt["certificate"] == certificate.id, "the receipt is for another certificate")


def _check_paths(row: dict[str, Any], leaf: bytes, certificate: SignedStatement) -> None:
    """Check that the leaf leads to rootBefore, and an empty slot in its place to rootAfter."""
    data, slot = certificate.predicate["dataset"], row["slot"]
    for when, start, root in (("before", leaf, "rootBefore"), ("after", TOMBSTONE, "rootAfter")):
        require(1 << len(row[when]) == data["slots"] > slot, "a path has the wrong length")
        node = start
        for level, sibling in enumerate(map(from_hex, row[when])):
            node = node_hash(sibling, node) if slot >> level & 1 else node_hash(node, sibling)
        require(node.hex() == data[root], f"the row's slot does not lead to {root}")


def check_predictor(predictor: bytes, certificate: SignedStatement) -> None:
    """Raise unless a file is the predictor of the model that a certificate is about.

    This is level W2. The file begins with 32 random bytes, so that its digest in the certificate
    does not help to guess what it contains. The certificate may be an old one; `verify_bundle`
    requires the newest certificate of the model.

    Parameters
    ----------
    predictor : bytes
        Content of the file that ``ledger.models.save_predictor`` wrote.

    Examples
    --------
    >>> check_predictor(b"", SignedStatement({"predicateType": PURGE}, (), ""))
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: expected a certificate of unlearning
    """
    require(certificate.is_certificate, "expected a certificate of unlearning")
    stated = certificate.predicate["model"].get("predictor", {"reason": "earlier-version"})
    number, reason = certificate.sequence, stated.get("reason")
    require(reason is None, f"certificate {number} states no predictor: {reason}")
    require(
        _sha256(predictor).hex() == stated["sha256"],
        f"the file is not the predictor that certificate {number} states",
    )


# The bundle: a folder with all these files. A signed index lists every file.

TOP_PUBLIC = {"keys", "certificates", "purges", "checkpoints", "log.json", "bundle.json"}
TOP_AUDITOR = TOP_PUBLIC | {"events.jsonl", "proofs", "models", "definitions"}
MODEL_FILES = ("model.blob", "rows.blob", "vault.blob", "training.json")
INDEX_FILES = ("index.json", "index.signed.json")
DEFAULT_TENANT = "default"
_DEEPEST_FOLDER = 5


@dataclass(frozen=True)
class Verdict:
    """The outcome of one level.

    Parameters
    ----------
    level : str
        The level, such as "V0".
    passed : bool or None
        None if the level was skipped.
    reason : str
        What was checked, or why it failed or was skipped.
    promised : bool
        Whether the tier of the bundle or the caller requires the level. If it is skipped then, the
        bundle is incomplete.

    Examples
    --------
    >>> print(Verdict("V0", True, "1 certificate"))
    V0  pass    1 certificate
    """

    level: str
    passed: bool | None
    reason: str
    promised: bool = True

    def __str__(self) -> str:
        """Return level, result and reason in one line."""
        word = {True: "pass", False: "FAIL", None: "skipped"}[self.passed]
        return f"{self.level}  {word:8}{self.reason}"


def overall(verdicts: Iterable[tuple[bool | None, bool]]) -> str:
    """Return the overall verdict "passed", "failed" or "incomplete".

    Each pair (passed, promised) is the result of a check. The verdict is "failed" if a check
    failed, and "passed" if a check passed and no promised check was skipped.

    Parameters
    ----------
    verdicts : iterable of (bool or None, bool)
        Whether each check passed, with None if it was skipped, and whether it was promised.

    Examples
    --------
    >>> overall([(True, True), (None, False)]), overall([(True, True), (None, True)])
    ('passed', 'incomplete')
    """
    pairs = list(verdicts)
    if any(passed is False for passed, _ in pairs):
        return "failed"
    is_incomplete = any(passed is None and promised for passed, promised in pairs)
    has_passed = any(passed is True for passed, _ in pairs)
    return "passed" if has_passed and not is_incomplete else "incomplete"


EXIT_CODES = {"passed": 0, "failed": 1, "incomplete": 3}


def _format_count(items: Sized, word: str) -> str:
    return f"1 {word}" if len(items) == 1 else f"{len(items)} {word}s"


class _SkipLevel(Exception):  # noqa: N818
    """Raised if the bundle does not contain the files that a level needs."""


class _SkipUnpromised(_SkipLevel):
    """Raised to skip a level that the tier of the bundle does not promise."""


@dataclass(frozen=True)
class _Bundle:
    folder: Path
    files: Mapping[str, int]
    trust: Trust
    chain: list[SignedStatement]
    seen: str | None
    witnesses: tuple[str, ...]
    receipt: bytes | None = None
    predictor: bytes | None = None

    @property
    def tier(self) -> str:
        """The tier according to the files; the signed index must state the same tier."""
        return tier_of(self.files)


def verify_bundle(
    folder: str | Path,
    pinned_hex: str,
    *,
    seen_checkpoint: str | None = None,
    witnesses: Iterable[str] = (),
    receipt: bytes | None = None,
    predictor: bytes | None = None,
) -> list[Verdict]:
    """Check levels V0 to V3 of an exported folder, W1 of a receipt, and W2 of a predictor.

    V0 has two verdicts: one for the chain of certificates, and one for the signed index. If the
    chain is not valid, all other levels are skipped. Of V3, only the signed attestations are
    checked.

    Parameters
    ----------
    pinned_hex : str
        First public key of the ledger, from a source other than the bundle.
    seen_checkpoint : str, optional
        Text of a checkpoint from an earlier check; the log must continue it.
    predictor : bytes, optional
        A predictor file, as ``ledger.models.save_predictor`` writes it.

    Returns
    -------
    list of Verdict

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NaiveUnlearner
    >>> from letheon.ledger import Ledger
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.create(Path(folder, "ledger"), name="demo") as ledger:
    ...         _ = ledger.models.register(model, X, y, name="m")
    ...         _ = ledger.requests.submit([3], model="m", verified=True)
    ...         _ = ledger.run_once(force=True)
    ...         bundle = ledger.export(Path(folder, "bundle"))
    ...     verdicts = verify_bundle(bundle, ledger.public_key)
    >>> [(verdict.level, verdict.passed) for verdict in verdicts]
    [('V0', True), ('V0', True), ('V1', True), ('V2', None), ('V3', True)]
    """
    folder = Path(folder)
    levels = [("V0", _check_v0), ("V0", _check_index)]
    levels += [("V1", _check_v1), ("V2", _check_v2), ("V3", _check_v3)]
    levels += [] if receipt is None else [("W1", _check_w1)]
    levels += [] if predictor is None else [("W2", _check_w2)]
    try:
        files = list_files(folder)
        trust, chain = _read_chain(folder, pinned_hex)
    except VerificationError as error:
        later = [Verdict(level, None, "not checked: V0 failed") for level, _ in levels[2:]]
        return [Verdict("V0", False, str(error)), *later]
    given = (tuple(witnesses), receipt, predictor)
    bundle = _Bundle(folder, files, trust, chain, seen_checkpoint, *given)
    return [_run_level(level, check, bundle) for level, check in levels]


def _run_level(level: str, check: Callable[[_Bundle], str], bundle: _Bundle) -> Verdict:
    try:
        return Verdict(level, True, check(bundle))
    except _SkipLevel as reason:
        return Verdict(level, None, str(reason), promised=not isinstance(reason, _SkipUnpromised))
    except VerificationError as reason:
        return Verdict(level, False, str(reason))


def list_files(folder: Path) -> dict[str, int]:
    """Return the size of every file in a bundle, by path.

    Links, pipes, sockets and devices are rejected. Names that differ only in case are rejected too,
    because they would refer to the same file on some machines.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "log.json").write_bytes(b"{}")
    ...     list_files(Path(folder))
    {'log.json': 2}
    """
    sizes: dict[str, int] = {}
    known: set[str] = set()
    open_folders = [("", 0)]
    while open_folders:
        prefix, depth = open_folders.pop()
        require(depth < _DEEPEST_FOLDER, f"{prefix}: folders are nested too deeply")
        with _prefix_errors(prefix or "the bundle"), os.scandir(folder / prefix) as entries:
            for entry in entries:
                name, shown = f"{prefix}{entry.name}", entry.name[:80]
                _match("[A-Za-z0-9._:@+-]{1,255}", entry.name, f"{shown!r}: invalid name")
                require(name.lower() not in known, f"{shown}: two names that differ only in case")
                known.add(name.lower())
                require(len(known) <= MOST_FILES, f"more than {MOST_FILES} files")
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    open_folders.append((f"{name}/", depth + 1))
                    continue
                require(stat.S_ISREG(facts.st_mode), f"{shown}: a link or device, not a plain file")
                require(facts.st_size <= LARGEST, f"{shown}: larger than {LARGEST} bytes")
                sizes[name] = facts.st_size
    require(sum(sizes.values()) <= LARGEST_BUNDLE, f"larger than {LARGEST_BUNDLE} bytes")
    return sizes


def tier_of(files: Iterable[str]) -> str:
    """Return "auditor" if there are files that a public bundle does not have, or "public".

    Parameters
    ----------
    files : iterable of str
        Paths in the bundle.

    Examples
    --------
    >>> tier_of(["log.json", "bundle.json"]), tier_of(["log.json", "events.jsonl"])
    ('public', 'auditor')
    """
    tops = {name.partition("/")[0] for name in files}
    return "auditor" if tops & (TOP_AUDITOR - TOP_PUBLIC) else "public"


def _check_index(bundle: _Bundle) -> str:
    """Check that the signed index lists exactly these files, and that bundle.json matches them."""
    if not set(INDEX_FILES) & bundle.files.keys():
        raise _SkipLevel(
            "the bundle has no signed index, so bundle.json, training.json and definitions/ are "
            "not signed; it was written by an older version of letheon: request a new export"
        )
    text = read_capped(bundle.folder / INDEX_FILES[0], LARGE)
    with _prefix_errors(INDEX_FILES[1]):
        claims = _read_index_claims(bundle, text)
    with _prefix_errors(INDEX_FILES[0]):
        listed = parse_strict(text)
        _check_form(listed, _FILES, "index")
        n_files = claims["files"]
        require(len(listed) == n_files, f"lists {len(listed)} files; expected {n_files}")
        _check_files(bundle, listed)
    with _prefix_errors("bundle.json"):
        _check_description(bundle, claims["tier"])
    return f"{_format_count(listed, 'file')}, each as the signed index lists it"


def _read_index_claims(bundle: _Bundle, text: bytes) -> dict[str, Any]:
    signed = open_envelope(read_capped(bundle.folder / INDEX_FILES[1], SMALL), bundle.trust)
    require(signed.statement["predicateType"] == INDEX, "not the index of a bundle")
    subject = {"name": INDEX_FILES[0], "digest": {"sha256": _sha256(text).hex()}}
    require(signed.statement["subject"] == [subject], "belongs to another index.json")
    claims = signed.predicate
    require(
        claims["ledger"]["sequence"] == len(bundle.chain),
        "belongs to another number of certificates",
    )
    ledgers = {item.predicate["ledger"]["id"] for item in bundle.chain} | {claims["ledger"]["id"]}
    require(
        len(ledgers) == 1 and bundle.trust.ledger in (None, *ledgers), "belongs to another ledger"
    )
    return claims


def _check_files(bundle: _Bundle, listed: Mapping[str, str]) -> None:
    present = bundle.files.keys() - set(INDEX_FILES)
    extra, missing = sorted(present - listed.keys()), sorted(listed.keys() - present)
    require(not extra, f"does not list these files: {', '.join(extra[:3])}; they are not signed")
    require(not missing, f"lists missing files: {', '.join(missing[:3])}")
    for name, digest in listed.items():
        with (bundle.folder / name).open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        require(actual == digest, f"{name} is not the file that was signed")


def _check_description(bundle: _Bundle, tier: str) -> None:
    """Check that bundle.json agrees with the certificates, checkpoints and files."""
    description = read_description(bundle.folder)
    require(
        description["tier"] == tier == bundle.tier, f"the files are those of the tier {bundle.tier}"
    )
    tops = {name.partition("/")[0] for name in bundle.files} - set(INDEX_FILES)
    extra = sorted(tops - (TOP_AUDITOR if tier == "auditor" else TOP_PUBLIC))
    require(not extra, f"{', '.join(extra[:3])} must not be in a bundle of the tier {tier}")
    sizes = [int(name[12:-4]) for name in bundle.files if re.match(r"checkpoints/\d+\.txt$", name)]
    is_newest = description["size"] == max(sizes, default=0)
    require(is_newest, "the size is not that of the newest checkpoint")
    newest = {item.predicate["model"]["id"]: item for item in bundle.chain}
    ledgers = {item.predicate["ledger"]["id"] for item in newest.values()}
    require(ledgers <= {description["ledger"]}, f"the ledger is not {description['ledger']}")
    scope, models = description["scope"], description["models"]
    expected = {name for name in newest if tier == "auditor" and is_in_scope(name, scope)}
    listed = {model_id(item["tenant"], item["name"]): item["sequence"] for item in models}
    missing = sorted(expected - listed.keys())
    require(not missing, f"the files of {', '.join(missing[:3])} are missing")
    require(
        listed == {name: newest[name].sequence for name in expected},
        "the models are not those of the newest certificates",
    )
    if tier == "auditor":
        _check_model_files(bundle, [newest[name] for name in sorted(expected)])


def _check_model_files(bundle: _Bundle, newest: Sequence[SignedStatement]) -> None:
    names = [model_folder(certificate.predicate["model"]["id"]) for certificate in newest]
    expected = {f"{name}/{file}" for name in names for file in MODEL_FILES}
    present = {name for name in bundle.files if name.startswith("models/")}
    differing = sorted(present ^ expected)
    require(not differing, f"{', '.join(differing[:3])}: missing, or not of a listed model")
    texts = {name for name in bundle.files if name.startswith("definitions/")}
    for name in texts:
        digest = _sha256(read_capped(bundle.folder / name, SMALL)).hex()
        require(name == f"definitions/{digest}.md", f"the name of {name} is not its hash")
    for certificate in newest:
        digest = certificate.predicate["method"]["definition"]["sha256"]
        require(f"definitions/{digest}.md" in texts, f"the definition {digest[:16]} is missing")


def read_description(folder: Path) -> dict[str, Any]:
    """Read bundle.json of a bundle that has a signed index, and check its schema.

    Returns
    -------
    dict

    Examples
    --------
    >>> read_description(Path("no-bundle"))
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: no-bundle/bundle.json: is missing, or not a plain file
    """
    description = parse_strict(read_capped(folder / "bundle.json", SMALL), SMALL)
    _check_form(description, _DESCRIPTION, "bundle")
    return dict(description)


def model_id(tenant: str, name: str) -> str:
    """Return the id that a model has in certificates: its name, with the tenant if needed.

    Examples
    --------
    >>> model_id("default", "churn"), model_id("north", "churn")
    ('churn', 'north/churn')
    """
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


def model_folder(name: str) -> str:
    """Return the folder in a bundle with the files of a model, given its id.

    Examples
    --------
    >>> model_folder("churn"), model_folder("north/churn")
    ('models/default/churn', 'models/north/churn')
    """
    tenant, _, bare = name.rpartition("/")
    require(".." not in (tenant, bare) and "/" not in tenant, f"{name} is not a valid model name")
    return f"models/{tenant or DEFAULT_TENANT}/{bare}"


def is_in_scope(name: str, scope: Mapping[str, str]) -> bool:
    """Return whether an export with this scope contains the files of a model.

    Parameters
    ----------
    scope : mapping of str to str
        The "tenant" and the "model" of the export; empty for everything.

    Examples
    --------
    >>> is_in_scope("north/churn", {"tenant": "north"}), is_in_scope("churn", {"tenant": "north"})
    (True, False)
    """
    tenant, _, bare = name.rpartition("/")
    return scope.items() <= {"tenant": tenant or DEFAULT_TENANT, "model": bare}.items()


def read_capped(path: Path, limit: int) -> bytes:
    """Read a plain file of at most `limit` bytes.

    Returns
    -------
    bytes

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "log.json").write_bytes(b"{}")
    ...     read_capped(Path(folder, "log.json"), limit=100)
    b'{}'
    """
    with _prefix_errors("/".join(path.parts[-2:])):
        require(path.is_file(), "is missing, or not a plain file")
        with path.open("rb") as file:
            # `read` reserves memory for the size that it is given, so the size is limited first.
            data = file.read(min(path.stat().st_size, limit) + 1)
        require(len(data) <= limit, f"larger than {limit} bytes")
    return data


def _list_numbered(folder: Path, digits: int, suffix: str, other: str = "") -> dict[int, Path]:
    """Return the numbered files of a folder by number; reject all other names but `other`."""
    paths = {}
    with _prefix_errors(f"{folder.name}/"):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        for name in names:
            number = name.removesuffix(suffix)
            is_numbered = number.isdecimal() and name == f"{int(number):0{digits}d}{suffix}"
            require(is_numbered or name == other, f"unexpected file {name!r}")
            if is_numbered:
                paths[int(number)] = folder / name
    return dict(sorted(paths.items()))


def _read_chain(folder: Path, pinned_hex: str) -> tuple[Trust, list[SignedStatement]]:
    """Check the keys, starting with the pinned key, and the chain of certificates (V0)."""
    statements = _list_numbered(folder / "keys", 4, ".json", other="root.pub")
    certificates = _list_numbered(folder / "certificates", 6, ".json")
    for name, paths in (("keys", statements), ("certificates", certificates)):
        require(list(paths) == list(range(1, len(paths) + 1)), f"{name}/: a number is missing")
    trust = Trust.from_pinned(
        pinned_hex, (read_capped(path, SMALL) for path in statements.values())
    )
    return trust, check_chain((read_capped(p, SMALL) for p in certificates.values()), trust)


def _check_v0(bundle: _Bundle) -> str:
    if not bundle.chain:
        raise _SkipLevel("the bundle has no certificate")
    return (
        f"{_format_count(bundle.chain, 'certificate')}, each signed and linked to the previous one"
    )


def _check_v1(bundle: _Bundle) -> str:
    notes = _read_notes(bundle)
    if bundle.seen is not None:
        with _prefix_errors("the checkpoint from the earlier check"):
            _check_seen(read_note(bundle.seen), notes, bundle.trust)
    check_log(read_capped(bundle.folder / "log.json", LARGE), notes, bundle.chain)
    events, size = bundle.folder / "events.jsonl", max(notes)
    if events.exists():
        _check_events(events, bundle, notes[size].root)
        return f"log of {size} events, all of them read"
    require(
        bundle.tier == "public",
        "events.jsonl is missing; an auditor's bundle must have it, to detect certificates that "
        "are missing at the end of the log",
    )
    return f"log of {size} events; without them, missing certificates at the end are not detected"


def _read_notes(bundle: _Bundle) -> dict[int, Note]:
    """Return the checkpoints by size of the log, after checking their signatures.

    The newest checkpoint must also be signed by every witness.
    """
    notes: dict[int, Note] = {}
    paths = _list_numbered(bundle.folder / "checkpoints", 12, ".txt")
    for size, path in paths.items():
        newest = size == max(paths)
        with _prefix_errors(f"checkpoints/{path.name}"):
            note = read_note(read_capped(path, SMALL).decode("utf-8", "replace"))
            require(note.size == size, f"has size {note.size}")
            witnesses = bundle.witnesses if newest else ()
            check_note(note, bundle.trust, witnesses, revoked_too=not newest)
        notes[size] = note
    require(bool(notes), "checkpoints/: no checkpoint")
    ledgers = {certificate.predicate["ledger"]["id"] for certificate in bundle.chain}
    require(
        len(ledgers | {note.origin for note in notes.values()}) == 1,
        "checkpoints/: some belong to another ledger",
    )
    return notes


def _check_seen(seen: Note, notes: dict[int, Note], trust: Trust) -> None:
    check_note(seen, trust, revoked_too=True)
    require(seen.size <= max(notes), f"the log was rolled back from {seen.size} to {max(notes)}")
    require(seen.size in notes, f"the bundle lacks the checkpoint of size {seen.size}")
    require(seen.body == notes[seen.size].body, f"the log was forked before {seen.size}")


def check_log(data: bytes, notes: Mapping[int, Note], chain: Sequence[SignedStatement]) -> None:
    """Check log.json against the signed checkpoints, by ascending size, and the chain.

    Each checkpoint must continue the previous checkpoint. The certificates must be in the log in
    their order, each after the checkpoint that it names.

    Examples
    --------
    >>> note = Note("example.org/log", 0, log_root([]), ())
    >>> log = {"certificates": [], "consistency": [], "root": note.root.hex(), "size": 0}
    >>> check_log(canonical(log), {0: note}, [])
    """
    with _prefix_errors("log.json"):
        log = parse_strict(data)
        _check_form(log, _LOG, "log")
        newest = notes[max(notes)]
        same = (log["size"], log["root"]) == (newest.size, newest.root.hex())
        require(same, "does not match the newest checkpoint")
        steps = [(step["from"], step["to"]) for step in log["consistency"]]
        require(steps == list(pairwise(notes)), "expected one consistency proof per step")
        for step in log["consistency"]:
            first, second = notes[step["from"]], notes[step["to"]]
            with _prefix_errors(f"checkpoints {first.size} and {second.size}"):
                proof = [from_hex(text) for text in step["proof"]]
                check_consistency(first.size, first.root, second.size, second.root, proof)
        require(len(log["certificates"]) == len(chain), "expected one entry per certificate")
        _check_entries(log["certificates"], chain, notes)


def _check_entries(
    entries: list[dict[str, Any]], chain: Sequence[SignedStatement], notes: Mapping[int, Note]
) -> None:
    sizes = {_sha256(note.body).hex(): size for size, note in notes.items()}
    least, newest = 0, notes[max(notes)]
    for entry, certificate in zip(entries, chain, strict=True):
        with _prefix_errors(f"certificate {certificate.sequence}"):
            named = (entry["sequence"], *_certificate_event(entry["event"]))
            expected = (certificate.sequence, certificate.sequence, certificate.id)
            require(named == expected, "the event is not about this certificate")
            leaf, proof = leaf_hash(canonical(entry["event"])), map(from_hex, entry["proof"])
            check_inclusion(leaf, entry["index"], newest.size, list(proof), newest.root)
            before = certificate.predicate["ledger"]["checkpointBefore"]["sha256"]
            require(before in sizes, "checkpointBefore is not among the checkpoints")
            least = max(least, sizes[before])
            require(least <= entry["index"], "the event is too early in the log")
            least = entry["index"] + 1


def _certificate_event(event: dict[str, Any]) -> tuple[Any, Any]:
    require(event.get("kind") == "certificate", "the event is not a certificate")
    return event.get("sequence"), event.get("certificate")


def _check_events(path: Path, bundle: _Bundle, root: bytes) -> None:
    """Check that the events have the signed root, none is missing, and models are registered."""
    certificates: list[tuple[Any, Any]] = []
    statements: list[Any] = []
    registered: dict[Any, dict[str, Any]] = {}

    def leaves() -> Iterator[bytes]:
        for line, event in _read_events(path):
            if event.get("kind") == "certificate":
                certificates.append(_certificate_event(event))
            elif event.get("kind") in ("key-rotation", "key-revocation"):
                statements.append(event.get("statement"))
            elif event.get("kind") == "registered":
                registered.setdefault(event.get("subject"), event)
            yield leaf_hash(line)

    with _prefix_errors("events.jsonl"):
        require(log_root(leaves()) == root, "the events do not give the log's root")
        chain = [(certificate.sequence, certificate.id) for certificate in bundle.chain]
        require(certificates == chain, "certificates and events do not match")
        require(set(statements) <= set(bundle.trust.statements), "a key statement is missing")
        _check_registrations(bundle.chain, registered)


def _check_registrations(
    chain: Sequence[SignedStatement], registered: Mapping[Any, dict[str, Any]]
) -> None:
    """Check that each model's first certificate starts from the registered data and seed."""
    for first in {item.predicate["model"]["id"]: item for item in reversed(chain)}.values():
        claims = first.predicate
        data, method = claims["dataset"], claims["method"]
        with _prefix_errors(f"certificate {first.sequence}"):
            event = registered.get(claims["model"]["before"]["sha256"], {})
            live = data["liveAfter"] + claims["erasure"]["rows"]
            registration = (event.get("root"), event.get("slots"), event.get("live"))
            start = (data["rootBefore"], data["slots"], live)
            require(registration == start, "the model was not registered with this data set")
            seed = method["trainingRandomness"]
            commitment = {"keyCommitment": event.get("training"), "beacon": event.get("beacon")}
            is_same = commitment.items() <= seed.items()
            require(
                is_same or method["name"] == "retrain", "the seed differs from the registration"
            )


def _read_events(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line of a log as bytes, with the event that it contains."""
    require(path.is_file(), "not a plain file")
    with path.open("rb") as file:
        while line := file.readline(SMALL + 1):
            require(line.endswith(b"\n") and len(line) <= SMALL, "a line is truncated or too long")
            event = parse_strict(line[:-1], SMALL)
            require(isinstance(event, dict), "an event is not an object")
            yield line[:-1], event


def _check_v2(bundle: _Bundle) -> str:
    folder = bundle.folder / "proofs"
    if bundle.tier == "public":
        raise _SkipUnpromised("a public bundle has no proofs; request the auditor's bundle")
    require(folder.is_dir(), "proofs/ is missing; an auditor's bundle must have it")
    since: dict[str, dict[int, str]] = {}
    for certificate in bundle.chain:
        with _prefix_errors(f"certificate {certificate.sequence}"):
            erased = _check_transition(folder, certificate.predicate["dataset"], certificate)
            model = certificate.predicate["model"]["id"]
            earlier = since.get(model, {})
            if certificate.predicate["method"]["name"] == "retrain":
                require(earlier.items() <= erased.items(), "an erased row is back in the data set")
                since[model] = {}
            else:
                since[model] = earlier | erased
    return (
        f"{_format_count(bundle.chain, 'transition')}: only erased slots changed, as many as stated"
    )


def _check_transition(
    folder: Path, data: dict[str, Any], certificate: SignedStatement
) -> dict[int, str]:
    digest = data["transitionProof"]["sha256"]
    proof = read_capped(folder / f"{digest}.json", LARGE)
    require(_sha256(proof).hex() == digest, "the transition proof was altered")
    before, after, erased, slots = _read_transition(proof)
    require(slots == data["slots"], f"the transition proof has {slots} slots")
    require(before.hex() == data["rootBefore"], "the transition does not start at rootBefore")
    require(after.hex() == data["rootAfter"], "the transition does not end at rootAfter")
    rows = certificate.predicate["erasure"]["rows"]
    require(len(erased) == rows, f"{len(erased)} slots were erased, not {rows}")
    return erased


def _check_v3(bundle: _Bundle) -> str:
    purges = _list_numbered(bundle.folder / "purges", 6, ".json")
    erased = count_erased_rows(bundle.chain)
    attested: dict[Any, Any] = {}
    gaps: list[str] = []
    for sequence, path in purges.items():
        with _prefix_errors(f"purges/{path.name}"):
            require(1 <= sequence <= len(bundle.chain), "there is no such certificate")
            certificate = bundle.chain[sequence - 1]
            purge = check_purge(read_capped(path, SMALL), certificate, bundle.trust)
            attested[sequence] = purge.id
            salts = purge.predicate["salts"]["destroyed"]
            rows = erased[sequence - 1]
            require(salts == rows, f"{salts} salts were destroyed, and {rows} rows were erased")
            require(rows == 0 or purge.predicate["scanner"]["markers"] > 0, "searched for nothing")
            if words := search_gaps(purge.predicate):
                gaps.append(f"certificate {sequence}: {words}")
    if (events := bundle.folder / "events.jsonl").exists():
        with _prefix_errors("events.jsonl"):
            named = [event for _, event in _read_events(events) if event.get("kind") == "purge"]
            listed = {event.get("sequence"): event.get("purge") for event in named}
            require(listed == attested, "purges and events do not match")
    sequences = [certificate.sequence for certificate in bundle.chain]
    missing = [sequence for sequence in sequences if sequence not in purges]
    if missing or not purges:
        raise _SkipLevel(
            f"{_format_count(purges, 'purge')} attested; "
            f"not yet attested for certificates {missing[:8]}"
        )
    if gaps:
        raise _SkipLevel(
            f"{_format_count(purges, 'purge')} attested, {len(gaps)} of them not fully searched: "
            + "; ".join(gaps[:8])
        )
    return f"{_format_count(purges, 'purge')} attested; each scan found nothing"


def _check_w1(bundle: _Bundle) -> str:
    receipt = parse_strict(bundle.receipt or b"", SMALL)
    named = receipt.get("certificate") if isinstance(receipt, dict) else None
    matches = [certificate for certificate in bundle.chain if certificate.id == named]
    require(bool(matches), "the receipt does not belong to a certificate of this bundle")
    rows = check_receipt_commitment(bundle.receipt or b"", matches[0])
    return f"certificate {matches[0].sequence} covers the receipt: {rows} rows were erased"


def _check_w2(bundle: _Bundle) -> str:
    digest = _sha256(bundle.predictor or b"").hex()
    newest = {opened.predicate["model"]["id"]: opened for opened in bundle.chain}
    matches = [
        opened
        for opened in bundle.chain
        if opened.predicate["model"].get("predictor", {}).get("sha256") == digest
    ]
    require(len(matches) > 0, "no certificate of this bundle states this predictor")
    # All of them, because the certificate of another model could state an old predictor again.
    for certificate in matches:
        model, number = certificate.predicate["model"]["id"], certificate.sequence
        last = newest[model].sequence
        require(
            number == last,
            f"the file is the predictor of certificate {number}; certificate {last} of "
            f"{model} is newer",
        )
    return f"certificate {number} states this predictor of {model}"


def count_erased_rows(chain: Sequence[SignedStatement]) -> list[int]:
    """Return for each certificate how many rows it was the first to erase.

    A retrain also lists rows that earlier certificates erased; they do not count again.

    Examples
    --------
    >>> count_erased_rows([])
    []
    """
    live: dict[str, int] = {}
    counts = []
    for certificate in chain:
        data, model = certificate.predicate["dataset"], certificate.predicate["model"]["id"]
        before = live.get(model, data["liveAfter"] + certificate.predicate["erasure"]["rows"])
        counts.append(before - data["liveAfter"])
        live[model] = data["liveAfter"]
    return counts


# Stores of the ledger itself, which every purge destroys.
_OWN_STORES = {"blobs", "key", "intake", "training", "temporary", "database"}
# The clocks of two workers may differ by this much.
_CLOCKS_DIFFER = timedelta(minutes=10)


def _parse_time(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise VerificationError(f"{text} is not a valid time") from None


def check_purge(data: bytes, certificate: SignedStatement, trust: Trust) -> SignedStatement:
    """Check the purge attestation of a certificate, and return it.

    The ledger's own stores must be purged, files must be searched, and times must be in order.

    Returns
    -------
    SignedStatement

    Examples
    --------
    >>> purged = SignedStatement({"predicateType": UNLEARNING, "predicate": {}}, (), "")
    >>> check_purge(b"{}", purged, Trust.from_pinned("00" * 32))
    Traceback (most recent call last):
    ...
    letheon.verifier.VerificationError: envelope: the value violates required: ...
    """
    purge = open_envelope(data, trust)
    require(purge.statement["predicateType"] == PURGE, "not a purge attestation")
    claims, ledger = purge.predicate, certificate.predicate["ledger"]
    same = claims["ledger"] == {"id": ledger["id"], "sequence": ledger["sequence"]}
    same = same and purge.statement["subject"] == certificate.statement["subject"]
    require(
        same and claims["certificate"]["sha256"] == certificate.id, "belongs to another certificate"
    )
    purged = {store["store"] for store in claims["stores"] if store["state"] == "purged"}
    missing = sorted(_OWN_STORES - purged)
    require(not missing, f"not purged in the ledger itself: {', '.join(missing)}")
    require(claims["scanner"]["files"] > 0, "no file was searched")
    _check_gaps(claims)
    started, ended = (_parse_time(claims["times"][name]) for name in ("startedAt", "purgedAt"))
    certified = _parse_time(certificate.predicate["times"]["certifiedAt"])
    require(started <= ended, "ended before it started")
    require(started >= certified - _CLOCKS_DIFFER, "started before the certificate was issued")
    return purge


def _check_gaps(claims: dict[str, Any]) -> None:
    """Check that the counts of unsearched files and ids agree with each other and the codes."""
    gaps = claims["scanner"].get("notSearched", {"files": 0, "ids": 0})
    for store in claims["stores"]:
        is_unsearched = store["state"] == "not-searched"
        has_count = "notSearched" in store
        require(is_unsearched == has_count, "counts files not searched in a purged store")
    in_stores = sum(store.get("notSearched", 0) for store in claims["stores"])
    require(in_stores <= gaps["files"], "stores count more unsearched files than the total")
    for name, code in (("files", FILES_NOT_SEARCHED), ("ids", WORDS_NOT_SEARCHED)):
        if "notSearched" in claims["scanner"]:
            agrees = (gaps[name] > 0) == (code in claims["notClaimed"])
            require(
                agrees, f"{gaps[name]} {name} not searched, which contradicts notClaimed ({code})"
            )


def search_gaps(claims: dict[str, Any]) -> str:
    """Return a text that says what a purge did not search; empty if it searched everything.

    An earlier scanner searched registered stores only for bytes, and did not count skipped files.

    Parameters
    ----------
    claims : dict
        Predicate of an attestation.

    Examples
    --------
    >>> search_gaps({"scanner": {"notSearched": {"files": 2, "ids": 0}}})
    '2 files not searched'
    """
    gaps = claims["scanner"].get("notSearched")
    if gaps is None:
        stores = [store["store"] for store in claims["stores"]]
        has_stores = any(name.startswith("store:") for name in stores)
        return "an older scanner did not report skipped files" if has_stores else ""
    counts = [(gaps["files"], "file"), (gaps["ids"], "id")]
    parts = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n > 0]
    return " and ".join(parts) and f"{' and '.join(parts)} not searched"


def main(argv: Sequence[str] | None = None) -> int:
    """Check a bundle from the command line.

    Return the exit status: 0 passed, 1 failed, 2 could not be checked, 3 incomplete.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int

    Examples
    --------
    >>> main(["no-bundle", "--key", "00" * 32])
    2
    """
    parser = argparse.ArgumentParser(
        description="Check certificates of unlearning.",
        epilog="Exit status: 0 passed, 1 failed, 2 could not be checked, 3 incomplete. Models are "
        "not checked: `letheon audit report` does that.",
    )
    parser.add_argument("bundle", type=Path, help="folder that the ledger exported")
    parser.add_argument("--key", required=True, help="public key (hex), or a file with it")
    parser.add_argument("--seen", type=Path, help="checkpoint file from an earlier check")
    parser.add_argument(
        "--witness", action="append", default=[], help="verifier key of a witness; repeatable"
    )
    parser.add_argument("--receipt", type=Path, help="receipt of a person, to check too")
    parser.add_argument("--predictor", type=Path, help="predictor of a model, to check too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        require(options.bundle.is_dir(), f"{options.bundle} is not a folder")
        key = options.key
        if re.fullmatch("[0-9a-f]{64}", key) is None:
            key = read_capped(Path(key), SMALL).decode("ascii", "replace").strip()
        from_hex(key)
        seen = read_capped(options.seen, SMALL).decode("utf-8", "replace") if options.seen else None
        receipt = read_capped(options.receipt, SMALL) if options.receipt else None
        predictor = read_capped(options.predictor, LARGEST) if options.predictor else None
        verdicts = verify_bundle(
            options.bundle,
            key,
            seen_checkpoint=seen,
            witnesses=options.witness,
            receipt=receipt,
            predictor=predictor,
        )
    except (VerificationError, ImportError) as error:
        sys.stderr.write(f"cannot check: {error}\n")
        return 2
    outcome = overall((verdict.passed, verdict.promised) for verdict in verdicts)
    lines = [str(verdict) for verdict in verdicts]
    lines.append(f"{outcome}; models are not checked here: `letheon audit report` does that")
    levels = [asdict(verdict) for verdict in verdicts]
    report = json.dumps({"verdict": outcome, "passed": outcome == "passed", "levels": levels})
    sys.stdout.write((report if options.json else "\n".join(lines)) + "\n")
    return EXIT_CODES[outcome]


if __name__ == "__main__":
    sys.exit(main())
