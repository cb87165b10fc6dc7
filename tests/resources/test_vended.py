"""Vended credentials open their prefixes and nothing else, however one asks."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Signing
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from pydantic import SecretStr

from chaos.waiting import PATIENCE_S
from pulse_resources import object_store
from pulse_resources.errors import Terminal, UserError
from pulse_resources.settings import Settings, load_settings
from pulse_resources.store_keys import vended, vending_accounts
from pulse_resources.store_keys.vended import Credentials, Mode

BODY = b"of a tenant"


@pytest.fixture
def mine(stack: Settings) -> Iterator[str]:
    """The location of a table that has a file, beside one of somebody else's."""
    root = f"s3://{stack.object_store.bucket}/iceberg/vended-{uuid.uuid4().hex[:8]}"
    for owner in ("mine", "mine2", "theirs"):
        object_store.put(f"{root}/{owner}/data/a.parquet", BODY)
    yield f"{root}/mine"
    object_store.delete(item.path for item in object_store.listed(root))


def client(issued: Credentials, service: str = "s3") -> Any:
    store = load_settings().object_store
    return Session().create_client(
        service,
        region_name=store.region,
        endpoint_url=store.endpoint,
        aws_access_key_id=issued.access_key,
        aws_secret_access_key=issued.secret_key,
        aws_session_token=issued.session_token,
    )


def raw(issued: Credentials, method: str, path: str, body: bytes = b"") -> int:
    """The status of a signed request whose path is sent as it is written."""
    store = load_settings().object_store
    request = AWSRequest(method, f"{store.endpoint}{path}", {"Host": urlsplit(store.endpoint).netloc}, body)
    S3SigV4Auth(
        Signing(issued.access_key, issued.secret_key, issued.session_token), "s3", store.region
    ).add_auth(request)
    return int(URLLib3Session(timeout=PATIENCE_S).send(request.prepare()).status_code)


def split(location: str) -> dict[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


def refused(ask: Callable[..., object], **arguments: object) -> bool:
    try:
        ask(**arguments)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)
    return False


def test_a_reader_reads_below_its_prefix(mine: str) -> None:
    issued = vended.credentials([mine], Mode.READ)
    s3, place = client(issued), split(mine)
    assert s3.get_object(**split(f"{mine}/data/a.parquet"))["Body"].read() == BODY
    listed = s3.list_objects_v2(Bucket=place["Bucket"], Prefix=f"{place['Key']}/")["Contents"]
    assert [item["Key"] for item in listed] == [f"{place['Key']}/data/a.parquet"]
    assert timedelta(minutes=14) < issued.expires_at - datetime.now(UTC) <= timedelta(minutes=15, seconds=5)


def test_a_writer_writes_and_deletes_below_its_prefix(mine: str) -> None:
    s3, place = client(vended.credentials([mine], Mode.WRITE)), split(f"{mine}/data/b.parquet")
    s3.put_object(**place, Body=b"b")
    assert s3.get_object(**place)["Body"].read() == b"b"
    s3.delete_object(**place)
    upload = s3.create_multipart_upload(**place)["UploadId"]
    s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"c")
    s3.abort_multipart_upload(**place, UploadId=upload)


@pytest.mark.parametrize("mode", Mode)
def test_credentials_do_not_open_another_prefix(mine: str, mode: Mode) -> None:
    s3 = client(vended.credentials([mine], mode))
    bucket, own = split(mine).values()
    for other in ("theirs", "mine2", "mine/../theirs", "mine/./../theirs", "mine%2f..%2ftheirs"):
        place = split(f"{mine.rpartition('/')[0]}/{other}/data/a.parquet")
        assert refused(s3.get_object, **place)
        assert refused(s3.head_object, **place)
        assert refused(s3.put_object, **place, Body=b"x")
        assert refused(s3.delete_object, **place)
        assert refused(s3.create_multipart_upload, **place)
        assert refused(s3.copy_object, Bucket=bucket, Key=f"{own}/copy", CopySource=place)
    for prefix in ("", "iceberg/", own, own[:-1], f"{own}/../", f"{own}/../theirs/", "raw/", f"{own}2/"):
        assert refused(s3.list_objects_v2, Bucket=bucket, Prefix=prefix), prefix
        assert refused(s3.list_object_versions, Bucket=bucket, Prefix=prefix), prefix
    for ask in (s3.list_objects_v2, s3.list_multipart_uploads, s3.get_bucket_policy, s3.delete_bucket):
        assert refused(ask, Bucket=bucket)
    assert refused(s3.list_buckets)
    assert refused(s3.create_bucket, Bucket=f"pulse-{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize(
    "trick", ["{own}/../theirs", "{own}/%2e%2e/theirs", "{own}/%2E%2E%2Ftheirs", "{own}//../theirs"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_path_leads_out_whatever_it_is_written_like(mine: str, trick: str, method: str) -> None:
    bucket, own = split(mine).values()
    issued = vended.credentials([mine], Mode.WRITE)
    assert raw(issued, "GET", f"/{bucket}/{own}/data/a.parquet") == 200
    status = raw(
        issued, method, f"/{bucket}/{trick.format(own=own)}/data/a.parquet", b"x" if method == "PUT" else b""
    )
    assert status in (400, 403, 404), "neither read, nor written"
    theirs = f"{mine.rpartition('/')[0]}/theirs"
    assert [item.bytes for item in object_store.listed(theirs)] == [len(BODY)]


def test_a_reader_writes_nothing(mine: str) -> None:
    s3, place = client(vended.credentials([mine], Mode.READ)), split(f"{mine}/data/a.parquet")
    assert refused(s3.put_object, **place, Body=b"x")
    assert refused(s3.delete_object, **place)
    assert refused(s3.create_multipart_upload, **place)
    assert refused(s3.put_object_tagging, **place, Tagging={"TagSet": []})
    assert refused(s3.copy_object, **place, CopySource=place, MetadataDirective="REPLACE")
    assert s3.get_object(**place)["Body"].read() == BODY


@pytest.mark.parametrize("request_", ["add-user?accessKey=me", "list-users", "export-iam", "info"])
def test_credentials_make_no_others(mine: str, request_: str) -> None:
    issued = vended.credentials([mine], Mode.WRITE)
    method = "PUT" if request_.startswith("add") else "GET"
    assert raw(issued, method, f"/minio/admin/v3/{request_}", b"{}") == 403
    assert refused(
        client(issued, "sts").assume_role, RoleArn="arn:aws:iam::000000000000:role/x", RoleSessionName="again"
    )


def test_the_account_that_vends_reaches_tables_alone(mine: str, stack: Settings) -> None:
    store = stack.object_store
    assert store.vending_secret_key
    account = Credentials(
        store.vending_access_key, store.vending_secret_key.get_secret_value(), "", datetime.max
    )
    s3 = Session().create_client(
        "s3",
        region_name=store.region,
        endpoint_url=store.endpoint,
        aws_access_key_id=account.access_key,
        aws_secret_access_key=account.secret_key,
    )
    assert s3.get_object(**split(f"{mine}/data/a.parquet"))["Body"].read() == BODY
    assert refused(s3.put_object, Bucket=store.bucket, Key="raw/x", Body=b"x")
    assert refused(s3.list_objects_v2, Bucket=store.bucket)
    for method, path in (("PUT", "add-user?accessKey=x"), ("PUT", "import-iam-v2"), ("GET", "list-users")):
        request = AWSRequest(method, f"{store.endpoint}/minio/admin/v3/{path}", data=b"{}")
        S3SigV4Auth(Signing(account.access_key, account.secret_key), "s3", store.region).add_auth(request)
        assert URLLib3Session(timeout=PATIENCE_S).send(request.prepare()).status_code == 403


def test_credentials_are_cached_per_prefix_and_mode_until_they_are_old(
    mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{mine.rpartition('/')[0]}/mine2"
    assert vended.cached([mine], Mode.READ) is None
    first = vended.credentials([mine], Mode.READ)
    assert vended.credentials([f"{mine}/"], Mode.READ) is first
    assert vended.cached([mine], Mode.READ) is first
    assert vended.credentials([mine], Mode.WRITE) != first
    both = vended.credentials([mine, other], Mode.READ)
    assert both == vended.credentials([other, mine], Mode.READ) != first
    old = Credentials(
        first.access_key, first.secret_key, first.session_token, datetime.now(UTC) + timedelta(minutes=4)
    )
    (known,) = [key for key, value in vended._cache.items() if value is first]
    monkeypatch.setitem(vended._cache, known, old)
    assert vended.cached([mine], Mode.READ) is None
    assert vended.credentials([mine], Mode.READ) not in (old, first)


@pytest.fixture
def of_two(stack: Settings) -> Iterator[tuple[str, str]]:
    """A location of each of two tenants that have vending accounts, with a file."""
    namespaces = [f"pulse_v{uuid.uuid4().hex[:8]}" for _ in range(2)]
    vending_accounts.ensure_tenant_accounts(stack, namespaces)
    one, other = (f"s3://{stack.object_store.bucket}/iceberg/{name}/orders/x" for name in namespaces)
    for location in (one, other):
        object_store.put(f"{location}/data/a.parquet", BODY)
    yield one, other
    for location in (one, other):
        object_store.delete(file.path for file in object_store.listed(location))


def opens(key: Credentials, location: str) -> bool:
    return not refused(client(key).get_object, **split(f"{location}/data/a.parquet"))


def test_a_key_that_a_tenant_may_have_revoked_is_not_handed_out_for_long(
    of_two: tuple[str, str], stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog handed a dead key out for ten minutes: only its use shows that."""
    one, _ = of_two
    key, pulse_key = (vended.credentials([one], Mode.READ, to_tenant=to) for to in (True, False))
    vending_accounts.revoke(stack, key)
    monkeypatch.setattr(vended, "TO_TENANT_S", 0)
    assert opens(vended.credentials([one], Mode.READ, to_tenant=True), one)
    assert vended.credentials([one], Mode.READ) is pulse_key


def test_accounts_without_a_secret_are_refused_for_that_reason(stack: Settings) -> None:
    store = stack.object_store.model_copy(update={"vending_secret_key": None, "vending_by_tenant": True})
    without = stack.model_copy(update={"object_store": store})
    with pytest.raises(Terminal, match="no secret is set"):
        vending_accounts.ensure_tenant_accounts(without, ["pulse_x"])


def test_a_tenant_that_revokes_keys_revokes_its_own(of_two: tuple[str, str], stack: Settings) -> None:
    """One request revoked the keys of all tenants, and Pulse's own: SQL and commits were gone for minutes."""
    one, other = of_two
    first, second = (vended.credentials([at], Mode.READ, to_tenant=True) for at in of_two)
    own = [vended.credentials([one], mode) for mode in Mode]
    assert opens(first, one)
    assert vending_accounts.revoke(stack, first) == 204
    assert not opens(first, one)
    assert opens(second, other)
    assert all(opens(key, one) for key in own)
    assert vended.credentials([one], Mode.READ, to_tenant=True) is first, "nobody has noticed yet"
    vended.drop([first.access_key])
    assert opens(vended.credentials([one], Mode.READ, to_tenant=True), one)


def test_a_tenant_s_account_opens_its_tables_alone(of_two: tuple[str, str], stack: Settings) -> None:
    one, other = of_two
    account = vended.account(stack.object_store, one.split("/")[4])
    key = Credentials(account.access_key, account.secret_key, "", datetime.max)
    s3 = Session().create_client(
        "s3",
        region_name=stack.object_store.region,
        endpoint_url=stack.object_store.endpoint,
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
    )
    assert s3.get_object(**split(f"{one}/data/a.parquet"))["Body"].read() == BODY
    assert refused(s3.get_object, **split(f"{other}/data/a.parquet"))
    with pytest.raises(UserError, match="one tenant"):
        vended.credentials([one, other], Mode.READ, to_tenant=True)


def test_accounts_that_are_missing_or_have_another_secret_are_reported(
    of_two: tuple[str, str], stack: Settings
) -> None:
    """At each start of the API, which would otherwise write all of them, 7 ms each."""
    namespaces = [location.split("/")[4] for location in of_two]
    assert vending_accounts.find_missing(stack, namespaces) == []
    assert vending_accounts.find_missing(stack, [namespaces[0], "pulse_absent"]) == ["pulse_absent"]
    store = stack.object_store.model_copy(update={"vending_secret_key": SecretStr("another-secret")})
    other = stack.model_copy(update={"object_store": store})
    assert vending_accounts.find_missing(other, namespaces) == namespaces


def test_a_tenant_without_an_account_gets_no_key_and_no_other_s(mine: str) -> None:
    with pytest.raises(Terminal, match="to this tenant"):
        vended.credentials([mine], Mode.READ, to_tenant=True)


def test_keys_of_a_store_without_such_accounts_are_issued_to_the_one_that_it_has(
    mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_OBJECT_STORE__VENDING_BY_TENANT", "false")
    load_settings.cache_clear()
    vended.forget()
    try:
        assert opens(vended.credentials([mine], Mode.READ, to_tenant=True), mine)
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()
        vended.forget()


def test_secrets_are_not_shown(mine: str) -> None:
    issued = vended.credentials([mine], Mode.READ)
    assert issued.access_key in repr(issued)
    assert issued.secret_key not in f"{issued}{issued!r}"
    assert issued.session_token not in f"{issued}{issued!r}"


def test_a_refused_vending_account_is_an_error_until_it_is_renewed(
    stack: Settings, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_OBJECT_STORE__VENDING_SECRET_KEY", "another-secret")
    load_settings.cache_clear()
    vended.forget()
    try:
        with pytest.raises(Terminal, match="refuses the account that vends") as refusal:
            vended.credentials([mine], Mode.READ)
        assert "another-secret" not in str(refusal.value)
        vending_accounts.ensure_pulse_account(load_settings())  # it has this one from now on
        assert vended.credentials([mine], Mode.READ)
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()
        vended.forget()
        vending_accounts.ensure_pulse_account(load_settings())
    assert vended.credentials([mine], Mode.READ)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/..",
        "/a/../b",
        "/a/*",
        "/a?",
        "/a/${aws:username}",
        "/a//b",
        "/a/%2e%2e/b",
        "/a b",
        "/.",
        "/a/é",
    ],
)
def test_a_location_that_is_not_a_plain_folder_gets_no_credentials(path: str) -> None:
    with pytest.raises(UserError, match="no credentials"):
        vended.prefix_of(f"s3://{load_settings().object_store.bucket}{path}")


@pytest.mark.parametrize(
    "location", ["s3://other/iceberg/a", "s3a://pulse/a", "/iceberg/a", "file:///pulse/a", ""]
)
def test_a_location_of_another_store_gets_none(location: str) -> None:
    with pytest.raises(UserError, match="no credentials"):
        vended.prefix_of(location)


def test_more_locations_than_a_policy_holds_are_refused(stack: Settings) -> None:
    many = [f"s3://{stack.object_store.bucket}/iceberg/t/{number:040}" for number in range(40)]
    with pytest.raises(UserError, match="too many"):
        vended.credentials(many, Mode.READ)


def test_arrow_reads_with_vended_credentials(mine: str, stack: Settings) -> None:
    issued = vended.credentials([mine], Mode.READ)
    address = urlsplit(stack.object_store.endpoint)
    files = pafs.S3FileSystem(
        access_key=issued.access_key,
        secret_key=issued.secret_key,
        session_token=issued.session_token,
        endpoint_override=address.netloc,
        scheme=address.scheme,
    )
    with files.open_input_file(object_store.key(f"{mine}/data/a.parquet")) as file:
        assert file.read() == BODY
    with pytest.raises(OSError, match=r"(?i)access.?denied"):
        files.open_input_file(object_store.key(f"{mine.rpartition('/')[0]}/theirs/data/a.parquet"))
