"""Rules, SCRAM credentials, delegation tokens and quota entities as bodies of metadata records, in both directions."""

from __future__ import annotations

from uuid import UUID

from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import ACL_FIELDS, Acl, check_principal
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import BY_NUMBER, MECHANISMS, Credential
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.protocol.codec import Body


def acl_body(acl_id: UUID, acl: Acl) -> Body:
    """Return the body of the AccessControlEntryRecord of a rule."""
    return {"Id": acl_id, **acl_fields(acl)}


def acl_fields(acl: Acl) -> Body:
    """Return the fields of a rule, in the form of records and responses."""
    return dict(zip(ACL_FIELDS, acl, strict=True))


def scram_key(body: Body) -> tuple[str, str]:
    """Return user and mechanism name of a (Remove)UserScramCredentialRecord.

    Raises: MetadataReplayError for an unknown mechanism.
    """
    mechanism = BY_NUMBER.get(body["Mechanism"])
    if mechanism is None:
        expected = " or ".join(f"{one.number} ({one.name})" for one in MECHANISMS.values())
        raise MetadataReplayError(
            f"SCRAM credential of user {body['Name']}: expected mechanism {expected}, found {body['Mechanism']}"
        )
    return body["Name"], mechanism.name


def credential_of(body: Body) -> Credential:
    """Return the credential in a UserScramCredentialRecord."""
    return Credential(bytes(body["Salt"]), body["Iterations"], bytes(body["StoredKey"]), bytes(body["ServerKey"]))


def credential_body(user: str, mechanism: str, credential: Credential) -> Body:
    """Return the body of the UserScramCredentialRecord of a credential."""
    return {
        "Name": user,
        "Mechanism": MECHANISMS[mechanism].number,
        "Salt": credential.salt,
        "StoredKey": credential.stored_key,
        "ServerKey": credential.server_key,
        "Iterations": credential.iterations,
    }


def token_of(body: Body) -> DelegationToken:
    """Return the token in a DelegationTokenRecord. Raises: MetadataReplayError for an invalid principal."""
    try:
        for text in (body["Owner"], body["Requester"], *body["Renewers"]):
            check_principal(text)
    except ValueError as error:
        raise MetadataReplayError(f"delegation token {body['TokenId']}: {error}") from None
    return DelegationToken(
        body["TokenId"],
        Principal.parse(body["Owner"]),
        Principal.parse(body["Requester"]),
        tuple(map(Principal.parse, body["Renewers"])),
        body["IssueTimestamp"],
        body["MaxTimestamp"],
        body["ExpirationTimestamp"],
    )


def token_body(token: DelegationToken) -> Body:
    """Return the body of the DelegationTokenRecord of a token."""
    return {
        "Owner": str(token.owner),
        "Requester": str(token.requester),
        "Renewers": [str(renewer) for renewer in token.renewers],
        "IssueTimestamp": token.issue_ms,
        "MaxTimestamp": token.max_ms,
        "ExpirationTimestamp": token.expiry_ms,
        "TokenId": token.token_id,
    }


def quota_entity_of(body: Body) -> QuotaEntity:
    """Return the entity in a ClientQuotaRecord."""
    return QuotaEntity.of({row["EntityType"]: row["EntityName"] for row in body["Entity"]})


def quota_entity_rows(entity: QuotaEntity) -> list[Body]:
    """Return an entity as the ``Entity`` of a ClientQuotaRecord."""
    return [{"EntityType": kind, "EntityName": name} for kind, name in entity.parts_by_type]
