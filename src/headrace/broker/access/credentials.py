"""The SCRAM credentials of users, in the metadata store and in memory.

The key of a credential is `scram/<mechanism>/<user>`. A change applies to the next authentication. Open sessions
continue until they have to be renewed (`connections.max.reauth.ms`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from headrace.broker.metadata.commit_lane import CommitError
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.waiting.steps import Work
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import (
    SCRAM,
    UNKNOWN_USERS_KEY,
    ScramRecord,
    ScramSecretRecord,
    decode,
    encode,
)
from headrace.errors import StorageError
from headrace.ports import Check, Conflict, Delete, Entropy, Journal, MetadataEntry, Put
from headrace.security.mechanisms import SaslError
from headrace.security.scram import ScramCredential, ScramMechanism
from headrace.security.unknown_users import FORMS_LIMIT, USUAL, Form, Forms, form_of, unknown_user

USER_CHARACTERS_LIMIT: Final = 450
"""The length of the longest user name, in characters of its percent-encoded form in the metadata store."""
CREDENTIALS_LIMIT: Final = 10_000
"""The greatest number of stored credentials."""


class Credential(NamedTuple):
    """The key of a credential: user and mechanism."""

    user: str
    mechanism: ScramMechanism


def credential_key(user: str, mechanism: ScramMechanism) -> str:
    """Return the key of a credential in the metadata store."""
    return f"{SCRAM}{mechanism.sasl_name}/{quote(user, safe='')}"


def credential_value(credential: ScramCredential) -> bytes:
    """Return the stored form of a credential."""
    return encode(
        ScramRecord(
            credential.salt.hex(),
            credential.iterations,
            credential.stored_key.hex(),
            credential.server_key.hex(),
        )
    )


def user_name_fits(user: str) -> bool:
    """Return whether a name can be stored: it is neither empty nor too long."""
    return 0 < len(quote(user, safe="", errors="replace")) <= USER_CHARACTERS_LIMIT


_Stored = tuple[Credential, ScramCredential]


class ScramCredentials:
    """The SCRAM credentials of all users."""

    __slots__ = (
        "_by_key",
        "_common_forms",
        "_credentials",
        "_entropy",
        "_forms",
        "_journal",
        "_metadata",
        "_plain_mechanisms",
        "_secret",
    )

    def __init__(self, metadata: MetadataWriter, entropy: Entropy, journal: Journal) -> None:
        self._metadata = metadata
        self._entropy = entropy
        self._journal = journal
        self._credentials: dict[Credential, ScramCredential] = {}
        self._by_key: dict[str, Credential] = {}
        """The users and mechanisms by their keys in the metadata store."""
        self._forms: dict[ScramMechanism, Counter[Form]] = {
            each: Counter() for each in ScramMechanism
        }
        self._common_forms: dict[ScramMechanism, Forms] = dict.fromkeys(
            ScramMechanism, ((USUAL, 1),)
        )
        """The most frequent forms. They are replaced as a whole, because threads that check passwords read them."""
        self._plain_mechanisms: Counter[ScramMechanism] = Counter()
        """The number of users by the mechanism that checks their password."""
        self._secret = b""

    def load(self) -> None:
        """Read the stored credentials, and follow their changes from now on.

        Raises:
            StorageError: A credential cannot be read.
        """
        image = self._metadata.image
        self._put(image.consume(SCRAM, _read, self._apply))
        self._use_secret(image.consume(UNKNOWN_USERS_KEY, _read_secret, self._secret_changed))

    def _apply(self, changes: Changes[_Stored]) -> None:
        for key in changes.deletes:
            if (whose := self._by_key.pop(key, None)) is not None:
                self._replace(whose, None)
        self._put(changes.puts)

    def _put(self, stored: Mapping[str, _Stored]) -> None:
        for key, (whose, credential) in stored.items():
            self._by_key[key] = whose
            self._replace(whose, credential)
        for mechanism in ScramMechanism:
            self._find_common_forms(mechanism)

    def _secret_changed(self, changes: Changes[bytes]) -> None:
        self._use_secret(changes.puts)

    def _use_secret(self, stored: Mapping[str, bytes]) -> None:
        self._secret = stored.get(UNKNOWN_USERS_KEY, self._secret)

    def __len__(self) -> int:
        return len(self._credentials)

    def __iter__(self) -> Iterator[tuple[Credential, ScramCredential]]:
        return iter(self._credentials.items())

    def __contains__(self, whose: object) -> bool:
        return whose in self._credentials

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential of a user. For an unknown user it is made up, and no password matches it.

        The made-up credential is computed in both cases, so that both take the same time.
        """
        forms = self._common_forms[mechanism]
        made_up = unknown_user(self.secret(), user, mechanism, forms)
        return self._credentials.get(Credential(user, mechanism), made_up)

    def known(self, user: str) -> Sequence[ScramCredential | None]:
        """Return the stored credential of a user for each mechanism. It is another object after every change."""
        return [self._credentials.get(Credential(user, mechanism)) for mechanism in ScramMechanism]

    def is_password(self, user: str, password: str) -> bool:
        """Check a password in plain text. This takes milliseconds, whether or not the user exists.

        Any thread may call this method after `secret` was called.
        """
        mechanism = self._plain_mechanism(user) or self._usual_plain_mechanism(user)
        return self.find(user, mechanism).is_password(password, mechanism)

    def _plain_mechanism(self, user: str) -> ScramMechanism | None:
        """Return the mechanism whose credential checks the password of a user; None if the user does not exist.

        If a user has credentials for both mechanisms, they are of the same password, and the first one is used.
        """
        return next((m for m in ScramMechanism if Credential(user, m) in self._credentials), None)

    def _usual_plain_mechanism(self, user: str) -> ScramMechanism:
        """Draw the mechanism for a user that does not exist, in the proportion of the stored users."""
        first, second = ScramMechanism
        drawn = int.from_bytes(
            first.hmac(self.secret(), f"plain {user}".encode("utf-8", "surrogatepass"))[:8]
        )
        counts = self._plain_mechanisms
        return second if drawn * counts.total() < counts[second] << 64 else first

    def secret(self) -> bytes:
        """Return the secret for made-up credentials. The first call makes and stores it.

        If another broker stores its secret first, the image replaces this one.
        """
        if not self._secret:
            self._secret = self._entropy.uuid() + self._entropy.uuid()
            put = Put(UNKNOWN_USERS_KEY, encode(ScramSecretRecord(self._secret.hex())))
            stored = self._metadata.commit([Check(UNKNOWN_USERS_KEY, "absent")], [put])
            stored.on_done(self._secret_stored)
        return self._secret

    def _secret_stored(self, error: CommitError) -> None:
        if error is not None and not isinstance(error, Conflict):
            # The secret of this broker still hides unknown users until the next start.
            self._journal.warning("scram_secret_not_stored", error=str(error))

    def change(self, whose: Credential, credential: ScramCredential | None) -> Work[None]:
        """Store a credential, or delete it if `credential` is None. The change is in force when the work is done.

        Raises:
            ApiError: The change could not be stored.
        """
        key = credential_key(*whose)
        operation = Delete(key) if credential is None else Put(key, credential_value(credential))
        yield from self._metadata.committing([], [operation])

    def _replace(self, whose: Credential, credential: ScramCredential | None) -> None:
        """Replace a credential, and update the counts of forms and mechanisms."""
        forms = self._forms[whose.mechanism]
        checked_by = self._plain_mechanism(whose.user)
        earlier = self._credentials.pop(whose, None)
        if earlier is not None:
            forms -= Counter([form_of(earlier)])
        if credential is not None:
            self._credentials[whose] = credential
            forms[form_of(credential)] += 1
        for mechanism, change in ((checked_by, -1), (self._plain_mechanism(whose.user), 1)):
            if mechanism is not None:
                self._plain_mechanisms[mechanism] += change

    def _find_common_forms(self, mechanism: ScramMechanism) -> None:
        common = tuple(self._forms[mechanism].most_common(FORMS_LIMIT))
        self._common_forms[mechanism] = common or ((USUAL, 1),)


def _read(entry: MetadataEntry) -> _Stored:
    name, _, user = entry.key.removeprefix(SCRAM).partition("/")
    record = decode(entry, ScramRecord)
    try:
        mechanism = ScramMechanism.named(name)
        credential = ScramCredential(
            bytes.fromhex(record.salt),
            record.iterations,
            bytes.fromhex(record.stored_key),
            bytes.fromhex(record.server_key),
        )
    except (SaslError, ValueError) as error:
        raise StorageError(f"{entry.key}: {error}") from error
    if {len(credential.stored_key), len(credential.server_key)} != {mechanism.size}:
        raise StorageError(f"{entry.key}: a key is too short or too long")
    return Credential(unquote(user), mechanism), credential


def _read_secret(entry: MetadataEntry) -> bytes:
    try:
        return bytes.fromhex(decode(entry, ScramSecretRecord).secret)
    except ValueError as error:
        raise StorageError(f"{entry.key}: {error}") from error
