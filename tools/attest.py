"""Sign verification records, and refuse those that were changed since.

    python tools/attest.py keygen KEY               KEY (private, keep it offline) and KEY.pub
    python tools/attest.py sign RECORD … --key KEY  RECORD.dsse beside each
    python tools/attest.py check RECORD … --by PUB  each is signed by one of the keys, and as it was

An attestation is a DSSE envelope (by securesystemslib) around an in-toto statement with the predicate
`test-result`: the record's SHA-256, which ops passed and which did not. Exit status 1 where a record is
refused, 2 for a wrong call. Needs what `hatch run tools:attest` has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

PAYLOAD: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://in-toto.io/attestation/test-result/v0.1"


class AttestationError(ValueError):
    """A record has no attestation, or one that does not hold; says which and why."""


def attestation_of(record: Path) -> Path:
    """Where a record's attestation lies."""
    return record.with_name(record.name + ".dsse")


def statement(record: Path) -> dict[str, Any]:
    """What is signed of a record.

    Raises:
        AttestationError: the file is no verification record.
    """
    content = record.read_bytes()
    try:
        held = json.loads(content)
        passed = {op["op"]: op["status"] == "passed" for op in held["ops"]}
        described = {name: held[name] for name in ("created", "device", "target", "tier", "versions")}
    except (ValueError, KeyError, TypeError) as error:
        raise AttestationError(f"{record}: is no verification record ({error})") from error
    failed = [op for op, well in passed.items() if not well]
    return {
        "_type": STATEMENT,
        "subject": [{"name": record.name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}],
        "predicateType": PREDICATE,
        "predicate": {
            "result": "FAILED" if failed else "PASSED",
            "configuration": [{"name": name, "annotations": {"value": v}} for name, v in described.items()],
            "passedTests": [op for op, well in passed.items() if well],
            "failedTests": failed,
        },
    }


def sign(record: Path, signer: CryptoSigner) -> Path:
    """Write the attestation of a record and return its path."""
    envelope = Envelope(json.dumps(statement(record), sort_keys=True).encode(), PAYLOAD, {})
    envelope.sign(signer)
    out = attestation_of(record)
    out.write_text(json.dumps(envelope.to_dict(), indent=1) + "\n", encoding="utf-8")
    return out


def check(record: Path, keys: Sequence[SSlibKey]) -> str:
    """Return the id of the key that vouches for a record as it is.

    Raises:
        AttestationError: none does.
    """
    place = attestation_of(record)
    try:
        envelope = Envelope.from_dict(json.loads(place.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise AttestationError(f"{record}: is not signed ({place.name} is missing)") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AttestationError(f"{place}: is no DSSE envelope ({error})") from error
    try:
        (keyid,) = envelope.verify(list(keys), 1)
    except VerificationError:
        raise AttestationError(f"{place}: none of {len(keys)} keys signed it, or it was altered") from None
    if envelope.payload_type != PAYLOAD:
        raise AttestationError(f"{place}: holds {envelope.payload_type!r}, expected {PAYLOAD!r}")
    signed, now = json.loads(envelope.payload), statement(record)
    if signed != now:
        was, found = (_subject(s) for s in (signed, now))
        raise AttestationError(f"{record}: is not what was signed ({found}, signed {was})")
    return keyid


def _subject(said: dict[str, Any]) -> str:
    subject = said["subject"][0]
    return f"{subject['name']} of SHA-256 {subject['digest']['sha256'][:12]}"


def read_signer(path: Path) -> CryptoSigner:
    """A private key in PEM form, as `keygen` writes it."""
    try:
        return CryptoSigner(serialization.load_pem_private_key(path.read_bytes(), password=None))
    except (OSError, ValueError, TypeError) as error:
        raise AttestationError(f"{path}: is no private key ({error})") from error


def read_key(path: Path) -> SSlibKey:
    """A public key in PEM form."""
    try:
        return SSlibKey.from_crypto(serialization.load_pem_public_key(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise AttestationError(f"{path}: is no public key ({error})") from error


def keygen(path: Path) -> Path:
    """Make an Ed25519 key pair; refuses to replace one."""
    private = Ed25519PrivateKey.generate()
    try:
        public = path.with_name(path.name + ".pub")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AttestationError(f"{path}: is there already, and is not replaced") from None
    except (OSError, ValueError) as error:
        raise AttestationError(f"{path}: cannot be written ({error})") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    public.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return public


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("keygen", help="a key pair")
    making.add_argument("key", type=Path, metavar="KEY", help="file for the private key; KEY.pub is made too")
    signing = actions.add_parser("sign", help="attest records")
    signing.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="verification record")
    signing.add_argument("--key", type=Path, required=True, metavar="KEY", help="private key")
    checking = actions.add_parser("check", help="refuse records that are not as they were signed")
    checking.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="verification record")
    checking.add_argument(
        "--by",
        action="append",
        type=Path,
        required=True,
        metavar="PUB",
        help="a trusted key; repeatable",
    )
    args = parser.parse_args(argv)
    refused = 0
    try:
        if args.action == "keygen":
            print(keygen(args.key))
            return 0
        signer = read_signer(args.key) if args.action == "sign" else None
        keys = [read_key(path) for path in args.by] if args.action == "check" else []
    except AttestationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for record in args.records:
        try:
            print(sign(record, signer) if signer else f"{record}: held by key {check(record, keys)[:12]}")
        except (AttestationError, OSError) as error:
            refused += 1
            print(f"refused: {error}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
